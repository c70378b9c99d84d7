"""Reproduction of the reference system's published search statistics: ``python -m mirage_formal.reproduce``.

Takes names of workloads and limits. Returns tables and plots of search statistics beside the published ones. Imports
graph, logic, prove, records, run, search, support and workers.
"""

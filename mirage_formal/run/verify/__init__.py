"""Verification: the policy for candidates of a search, and verdicts for graphs from files.

Takes a candidate or a graph from a file. Returns a verdict, and whether the policy accepts it. Imports cache, check,
codegen, graph, prove, records, run, support and workers.
"""

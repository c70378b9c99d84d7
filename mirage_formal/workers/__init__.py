"""Tasks on worker processes, of this machine or of a dask cluster.

Takes tasks and a number of processes. Returns answers in order, from processes of this machine or a dask cluster.
Imports support.

How many processes: support/resources.py, ``worker_count``.
"""

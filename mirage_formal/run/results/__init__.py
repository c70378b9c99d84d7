"""Results of a search, and lists of them.

Takes a run directory. Returns results as values that can be called on tensors. Imports device, frontend, graph,
kernel_build, records and report.
"""

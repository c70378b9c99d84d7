"""Cache of finished runs: their results as values, and their entries in the store for later calls.

Takes the key of a search. Returns results of an earlier search that were checked again, or none. Imports cache,
check, codegen, graph, kernel_build, records, revalidate, run, run.results and support.
"""

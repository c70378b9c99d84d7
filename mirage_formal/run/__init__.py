"""Search pipeline, from a program to verified candidates and their evidence.

Takes a program and settings. Returns a run directory with proved, ranked candidates. Imports cache, check, codegen,
device, frontend, graph, kernel_build, logic, prove, records, report, revalidate, run_directory, search, semantics,
support and workers.
"""

"""Reports of runs: one model of the shown values, and printers for terminal, notebook, page and JSON.

Takes a run directory. Returns what a person reads: terminal text, a notebook's view, one HTML page, JSON. Imports
cache, check, codegen, device, graph, records, run_directory, search and support.

``reading`` makes the values of ``model`` from files; the printers read no file. No solver is loaded, and nothing here
is trusted: the shown values are read from evidence, and only ``check`` establishes them.
"""

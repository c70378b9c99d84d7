"""Reports of runs: one model of the shown values, and printers for terminal, notebook, page and JSON.

``reading`` makes the values of ``model`` from files; the printers read no file. No solver is loaded, and nothing here
is trusted: the shown values are read from evidence, and only ``check`` establishes them.
"""

"""Reports of runs: one model of the values to show, and its printers.

``reading`` makes the values of ``model`` from files; a terminal, a notebook, a page and JSON print those values, and
read no file. Nothing here loads a solver, and nothing here is trusted: what is shown was read from evidence, and
``check`` alone establishes it.
"""

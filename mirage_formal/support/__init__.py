"""Base of every other folder: errors, limits, files, strict JSON, option checks, signals, terminal output.

Takes bytes, paths and options of users. Returns checked values, or errors that say where, what was expected and what
to do. Imports nothing of this package.

``limits.py`` has the sizes of files and proofs and the solvers' timeouts, ``resources.py`` the numbers of processors
and of worker processes.
"""

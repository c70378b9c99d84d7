"""Base of every other folder: errors, size limits, files, strict JSON, option checks, signals, terminal output.

Takes bytes, paths and options of users. Returns checked values, or errors that say where, what was expected and what
to do. Imports nothing of this package.
"""

"""Directory of a run: its files, the lock of its writer, and rules of removal.

Takes a path. Returns the locked directory of one run, and which files may be replaced. Imports records and support.
"""

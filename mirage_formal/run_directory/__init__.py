"""Directory of a run: its files, the lock of its writer, and rules of removal."""

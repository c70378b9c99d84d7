"""Kernels of a run: built, written, measured. ``python -m mirage_formal.run.build`` is the command."""

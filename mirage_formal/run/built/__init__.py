"""Kernels of a run: built, written, measured. ``python -m mirage_formal.run.built`` is the command."""

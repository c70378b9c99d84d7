"""Kernels of a run: built, written, measured. ``python -m mirage_formal.run.kernel_build`` is the command."""

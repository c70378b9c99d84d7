"""Kernels of a run: built, written, measured. ``python -m mirage_formal.kernel_build`` is the command."""

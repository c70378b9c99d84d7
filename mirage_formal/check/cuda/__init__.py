"""Kernels of a run: their files, launches and records, as far as no code generation is needed."""

"""Execution of kernels: compilation, launches and timing on a GPU; and the CPU emulator."""

"""Execution of kernels: compilation, launches and timing on a GPU; and the CPU emulator.

Takes CUDA text and launches. Returns machine code, results of kernels, and times; on the CPU the emulator's results.
Imports cache, codegen, frontend, graph, records, semantics and support.

The emulator's launch has the kernel's own shared memory (``emulate.py``); a GPU's limit is in gpu/targets.
"""

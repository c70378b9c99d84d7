"""Kernels of a run: built, written, measured. ``python -m mirage_formal.kernel_build`` is the command.

Takes proved candidates of a run and a target. Returns kernels on disk: plan, CUDA text, machine code, obligations,
numerics. Imports cache, check, codegen, device, frontend, graph, logic, prove, records, run_directory, search and
support.
"""

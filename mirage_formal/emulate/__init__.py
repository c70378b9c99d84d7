"""Command ``emulate``: runs candidates' kernels on the CPU emulator and compares them with float64.

Takes a run or candidate directory. Returns the errors of its kernels on the CPU emulator, beside float64. Imports
codegen, device, graph, kernel_build, partition, records, support and workers.
"""

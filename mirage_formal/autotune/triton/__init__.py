"""Triton back end of autotuning: writes, compiles, tests and times Triton files beside CUDA kernels.

Takes built candidates and launch options. Returns compiled Triton files and their times. Imports autotune, codegen,
device, graph, kernel_build, records, support and workers.
"""

"""Triton files of the best candidates: written, compiled, tested, timed, and compared with CUDA kernels."""

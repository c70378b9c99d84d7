"""Triton back end of autotuning: writes, compiles, tests and times Triton files beside CUDA kernels."""

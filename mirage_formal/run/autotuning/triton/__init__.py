"""Triton files of the best candidates beside their CUDA kernels: written, compiled, judged, timed, and chosen among."""

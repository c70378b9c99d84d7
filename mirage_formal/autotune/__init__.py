"""Autotuning: choice of the fastest kernels on one GPU for the candidates of a run.

Takes built candidates of a finished run, and a GPU. Returns the measured order of the candidates, with the kernels of
the fastest. Imports cache, check, codegen, device, graph, kernel_build, records, run, support and workers.
"""

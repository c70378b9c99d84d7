"""Autotuning: choice of the fastest kernels on one GPU for the candidates of a run."""

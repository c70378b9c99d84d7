"""Tuning: from the candidates of a run to the kernels that are fastest on one GPU."""

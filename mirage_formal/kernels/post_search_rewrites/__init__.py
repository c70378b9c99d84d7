"""Rewritings of kernels that come after the search: another graph for a graph-defined kernel, with the same results."""

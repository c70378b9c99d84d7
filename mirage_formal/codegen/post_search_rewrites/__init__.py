"""Post-search rewrites of kernels: each replaces a graph-defined kernel by another graph with the same results."""

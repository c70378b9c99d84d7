"""Post-search rewrites of kernels: each replaces a graph-defined kernel by another graph with the same results.

Takes a proved candidate. Returns further candidates for the prover: split-K, other tiles, hoisted factors. Imports
codegen, codegen.planning, graph, rewrite and support.
"""

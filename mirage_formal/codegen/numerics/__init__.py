"""Results of kernels within a tolerance that is derived from the program.

Takes a µGraph, and outputs of its kernels. Returns an answer with the largest error, compared with a derived
tolerance. Imports codegen.planning, graph, records, rewrite, semantics and support.
"""

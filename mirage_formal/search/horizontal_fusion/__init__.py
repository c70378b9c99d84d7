"""Horizontal fusion: one kernel for several outputs of a program.

Takes a program with several outputs. Returns candidates with one kernel for several of them. Imports graph, rewrite,
search, search.guided and support.
"""

"""Claim ``realizes``: every element that a Program stores is the element that its µGraph's kernel computes.

Takes a µGraph and one of its generated kernels. Returns a verdict, with the first element that differs if one does.
Imports codegen, codegen.program, graph, prove and semantics.
"""

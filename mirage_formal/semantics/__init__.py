"""Semantics of µGraphs: an interpreter over any domain of values, and the float64 reference.

Takes a graph and a domain of values. Returns the values of its tensors: reals, finite fields, intervals, types.
Imports graph and support.
"""

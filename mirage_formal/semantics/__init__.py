"""Semantics of µGraphs: an interpreter over any domain of values, and the float64 reference.

Takes a graph and a domain of values. Returns the values of its tensors: reals, finite fields, intervals, types.
Imports graph and support.

The float64 meaning of a function of one element is in ``function_table.py``, of other primitives in
``float64_reference.py``, and of operators that are made of others in ``operator_semantics.py``.
"""

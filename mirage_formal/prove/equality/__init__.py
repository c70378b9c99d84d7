"""Exact equivalence proofs: normal forms of tensor elements over index digits.

Takes two graphs. Returns a proof with its conditions, or unknown. Imports graph, semantics and support.
"""

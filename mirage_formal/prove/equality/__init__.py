"""Exact equivalence proofs: normal forms of tensor elements over index digits.

Takes two graphs. Returns a proof with its conditions, or unknown. Imports graph, semantics and support.

Laws of numbers and functions are in ``polynomials.py``, those of sums and maxima in ``canonical_reductions.py``.
"""

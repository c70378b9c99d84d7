"""Exact equivalence proofs: normal forms of tensor elements over index digits."""

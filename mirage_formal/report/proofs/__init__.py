"""Formulas of proofs that the checker's proof kernel has replayed, linked to the operators of both graphs."""

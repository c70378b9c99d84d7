"""Formulas of proofs that the checker's proof kernel has replayed, linked to the operators of both graphs.

Takes the proof of a candidate. Returns formulas that are linked to the operators of both graphs. Imports check, graph
and support.
"""

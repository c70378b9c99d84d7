"""Recomputation of fingerprints, in fields of galois, with the checker's own degrees and error bound.

Takes two graphs and a record of fingerprints. Returns the record's values computed again, and the bound of a false
agreement. Imports check, graph, logic, records and support.
"""

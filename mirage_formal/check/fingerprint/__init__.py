"""Recomputation of fingerprints, with the checker's own residues, fields, degrees and error bound.

Takes two graphs and a record of fingerprints. Returns the record's values computed again, and the bound of a false
agreement. Imports check, graph, logic, records and support.
"""

"""Equality at random points of Z_p x Z_q: fingerprints (paper, section 5).

Takes two graphs and a seed. Returns whether they agree at random points modulo two primes, with the error bound.
Imports graph, records, semantics and support.
"""

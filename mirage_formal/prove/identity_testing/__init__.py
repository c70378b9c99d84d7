"""Equality at random points of Z_p x Z_q: fingerprints (paper, section 5)."""

"""Recomputation of fingerprints, with the checker's own residues, fields, degrees and error bound."""

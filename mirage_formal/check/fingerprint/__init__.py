"""Fingerprints drawn again: the checker's own residues, fields, degrees and bound."""

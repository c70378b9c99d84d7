"""Torch modules whose regions are computed by operators made of candidates."""

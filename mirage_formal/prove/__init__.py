"""Claims about a candidate: one package for each, with its decision procedure."""

"""Page sections on a search: units, pruning, the roofline, and searches for a whole program's subgraphs."""

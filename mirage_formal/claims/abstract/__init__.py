"""Abstract expressions: which partial µGraphs cannot become part of the program any more (paper, section 4.3)."""

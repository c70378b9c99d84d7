"""Running maxima under exponentials that are summed, as a rewrite of µGraphs."""

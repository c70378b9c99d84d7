"""The online-softmax rewrite of µGraphs: running maxima under summed exponentials."""

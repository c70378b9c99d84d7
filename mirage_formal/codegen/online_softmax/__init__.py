"""The online-softmax rewrite of µGraphs: running maxima under summed exponentials.

Takes a block graph with a sum of exponentials over its loop. Returns the graph with a running maximum, or the reason
why there is none. Imports graph, logic, prove, rewrite and support.
"""

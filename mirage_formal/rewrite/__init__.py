"""The machinery of rewritings of µGraphs: builders of graphs, rules for single operators, and the end of a match.

Takes operators of an old graph. Returns a new graph, or None where a rewriting does not match. Imports graph and
support.
"""

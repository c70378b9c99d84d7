"""The machinery of rewritings of µGraphs: builders, rules for single operators, constant folding, the end of a match.

Takes operators of an old graph. Returns a new graph, or None where a rewriting does not match. Imports graph and
support.
"""

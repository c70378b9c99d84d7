"""File formats of µGraphs: our JSON, readable text, Graphviz, and checkpoints of Mirage.

Takes bytes of a file, or a µGraph. Returns a µGraph, or text; errors name the place in the file. Imports graph and
support.
"""

"""µGraphs as levels of nodes and edges, with descriptions in words.

Takes a µGraph. Returns levels of nodes and edges with descriptions. Imports graph.
"""

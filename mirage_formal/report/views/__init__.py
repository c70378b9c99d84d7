"""µGraphs as levels of nodes and edges, with descriptions in words."""

"""File formats of µGraphs: our JSON, readable text, Graphviz, and checkpoints of Mirage."""

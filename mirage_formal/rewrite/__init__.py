"""The machinery of rewritings of µGraphs: builders of graphs, rules for single operators, and the end of a match."""

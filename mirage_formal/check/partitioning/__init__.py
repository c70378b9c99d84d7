"""Check of graphs with replaced subgraphs, and of whole programs that were searched in subgraphs."""

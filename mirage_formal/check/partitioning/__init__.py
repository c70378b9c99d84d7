"""Check of graphs with replaced subgraphs, and of whole programs that were searched in subgraphs.

Takes a program, its subgraphs and their candidates. Returns findings about the composed graph. Imports check,
check.cuda, check.proof, graph, records and support.
"""

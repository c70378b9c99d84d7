"""Front end: the Python interface for writing kernel graphs and block graphs, checked line by line.

Takes calls of a user's Python file. Returns a checked graph, with the user's line for each operator. Imports graph
and support.
"""

"""Front end: the Python interface for writing kernel graphs and block graphs, checked line by line."""

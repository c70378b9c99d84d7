"""How users write programs: kernel graphs and block graphs, checked line by line."""

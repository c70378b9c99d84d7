"""Rows moved and scaled to 0 to 1: (X - min X) / (max X - min X + 0.001).

The textbook min-max normalisation; 100 rows of 784 pixels (MNIST), float16.

    python -m mirage_formal.search examples/corpus/heads/min_max_normalisation.py
"""

import mirage_formal as mf

SMALL = {"rows": 5, "columns": 28}


def program(rows: int = 100, columns: int = 784) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((rows, columns))
    lowest = graph.min(x, dim=-1)
    highest = graph.max(x, dim=-1)
    graph.mark_output((x - lowest) / (highest - lowest + 0.001))
    return graph


min_max_normalisation = program()

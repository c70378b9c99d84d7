"""Euclidean length of a vector of 262,144 elements: sqrt(sum x^2).

A textbook reduction (BLAS nrm2), as gradient clipping takes it of each tensor, float16.

    python -m mirage_formal.search examples/corpus/linear/long_norm.py
"""

import mirage_formal as mf

SMALL = {"length": 300}


def program(length: int = 262144) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((1, length))
    graph.mark_output(graph.sqrt(graph.sum(x**2, dim=-1)))
    return graph


long_norm = program()

"""Scalar product of two vectors of 262,144 elements: x^T y.

A textbook reduction (BLAS dot), float16.

    python -m mirage_formal.search examples/corpus/linear/long_dot.py
"""

import mirage_formal as mf

SMALL = {"length": 257}


def program(length: int = 262144) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((1, length))
    y = graph.new_input((length, 1))
    graph.mark_output(x @ y)
    return graph


long_dot = program()

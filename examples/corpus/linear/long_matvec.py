"""A vector of 262,144 elements times a matrix of 16 columns: x A.

A textbook product (BLAS gemv) with a long sum and a small result, float16.

    python -m mirage_formal.search examples/corpus/linear/long_matvec.py
"""

import mirage_formal as mf

SMALL = {"length": 384, "columns": 16}


def program(length: int = 262144, columns: int = 16) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((1, length))
    a = graph.new_input((length, columns))
    graph.mark_output(x @ a)
    return graph


long_matvec = program()

"""A linear layer whose matrix is a Kronecker product: row x as a matrix M, (A kron B) x is A M B^T.

Hidden 4096 = 64 * 64, 16 rows, float16; both factors are 64 x 64. Edalati et al., "Kronecker Decomposition for GPT
Compression", 2021.

    python -m mirage_formal.search examples/corpus/linear/kronecker_linear.py
"""

import mirage_formal as mf

SMALL = {"rows": 4, "left": 8, "right": 6}


def program(rows: int = 16, left: int = 64, right: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((rows, left * right))
    a = graph.new_input((left, left))
    b = graph.new_input((right, right))
    m = graph.reshape(x, (rows * left, right)) @ b.mT
    m = graph.reshape(m, (rows, left, right)).mT
    m = graph.reshape(m, (rows * right, left)) @ a.mT
    m = graph.reshape(m, (rows, right, left)).mT
    graph.mark_output(graph.reshape(m, (rows, left * right)))
    return graph


kronecker_linear = program()

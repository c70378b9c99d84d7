"""A linear layer in two factors: (X U) V + b.

The embedding factorisation of ALBERT: 128 to 768, behind a projection of 768 to 128, 512 tokens, float16.

    python -m mirage_formal.search examples/corpus/linear/low_rank_linear.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "rank": 8}


def program(tokens: int = 512, hidden: int = 768, rank: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    u = graph.new_input((hidden, rank))
    v = graph.new_input((rank, hidden))
    b = graph.new_input((hidden,))
    graph.mark_output(x @ u @ v + b)
    return graph


low_rank_linear = program()

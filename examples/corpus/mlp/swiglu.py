"""Gated linear unit with silu, from one product that is cut into halves: silu(G) * A, [G, A] = X W.

Shazeer, "GLU Variants Improve Transformer", 2020: hidden 768, inner 2048, 512 tokens, float16.

    python -m mirage_formal.search examples/corpus/mlp/swiglu.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "inner": 64}


def program(tokens: int = 512, hidden: int = 768, inner: int = 2048) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, 2 * inner))
    both = x @ w
    graph.mark_output(graph.silu(both[:, :inner]) * both[:, inner:])
    return graph


swiglu = program()

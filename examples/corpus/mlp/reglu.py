"""Gated linear unit with ReLU: relu(X W) * (X V).

Shazeer, "GLU Variants Improve Transformer", 2020: hidden 768, inner 2048, 512 tokens, float16.

    python -m mirage_formal.search examples/corpus/mlp/reglu.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "inner": 64}


def program(tokens: int = 512, hidden: int = 768, inner: int = 2048) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, inner))
    v = graph.new_input((hidden, inner))
    graph.mark_output(graph.relu(x @ w) * (x @ v))
    return graph


reglu = program()

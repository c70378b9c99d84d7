"""A residual block of two linear layers: X + relu(X W1) W2.

The textbook residual block with the sizes of the original Transformer base: hidden 512, inner 2048, 128 tokens,
float16.

    python -m mirage_formal.search examples/corpus/mlp/residual_mlp.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "inner": 64}


def program(tokens: int = 128, hidden: int = 512, inner: int = 2048) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w1 = graph.new_input((hidden, inner))
    w2 = graph.new_input((inner, hidden))
    graph.mark_output(x + graph.relu(x @ w1) @ w2)
    return graph


residual_mlp = program()

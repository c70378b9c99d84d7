"""Norm of Gemma, whose weight is an offset from 1, and a linear layer: (rms_norm(X) * (1 + w)) W.

Gemma 2B: hidden 2048, 8 heads of 256, 128 tokens, float16; eps = 1e-6.

    python -m mirage_formal.search examples/corpus/norm/gemma_norm_linear.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "out": 48}


def program(tokens: int = 128, hidden: int = 2048, out: int = 2048) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    weight = graph.new_input((hidden,))
    w = graph.new_input((hidden, out))
    graph.mark_output(graph.rms_norm(x, eps=1e-6) * (1 + weight) @ w)
    return graph


gemma_norm_linear = program()

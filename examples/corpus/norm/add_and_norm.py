"""Residual and norm with both results, as pre-norm layers pass them on: S = X + H and rms_norm(S).

Llama 3 8B: hidden 4096, 8 tokens, float16; eps = 1e-5.

    python -m mirage_formal.search examples/corpus/norm/add_and_norm.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32}


def program(tokens: int = 8, hidden: int = 4096) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    h = graph.new_input((tokens, hidden))
    weight = graph.new_input((hidden,))
    total = x + h
    graph.mark_output(total)
    graph.mark_output(graph.rms_norm(total, weight=weight, eps=1e-5))
    return graph


add_and_norm = program()

"""Learned factors in front of a linear layer (IA3): (X * l) W.

The second half of T5 base's feed-forward block: inner 3072, hidden 768, 128 tokens, float16; Liu et al., 2022.

    python -m mirage_formal.search examples/corpus/linear/scaled_inputs_linear.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "inner": 32, "hidden": 24}


def program(tokens: int = 128, inner: int = 3072, hidden: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, inner))
    factors = graph.new_input((inner,))
    w = graph.new_input((inner, hidden))
    graph.mark_output(x * factors @ w)
    return graph


scaled_inputs_linear = program()

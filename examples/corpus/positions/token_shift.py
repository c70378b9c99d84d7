"""Token shift of RWKV-4 and the projection behind it: (X * m + shift(X) * (1 - m)) W, shift moves every token one on.

RWKV-4 169M: hidden 768, 128 tokens, float16. A row of zeros stands in front of the tokens.

    python -m mirage_formal.search examples/corpus/positions/token_shift.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32}


def program(tokens: int = 128, hidden: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    mix = graph.new_input((hidden,))
    w = graph.new_input((hidden, hidden))
    before = graph.pad(x, 0, 1, 0)[:tokens]
    graph.mark_output((x * mix + before * (1 - mix)) @ w)
    return graph


token_shift = program()

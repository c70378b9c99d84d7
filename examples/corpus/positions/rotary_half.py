"""Rotary embedding of halves, as in Llama: X * cos + rotate_half(X) * sin, rotate_half([a, b]) = [-b, a].

Queries of Llama 3 8B: 32 heads of 128, 128 tokens, float16; cos and sin are [tokens, 128].

    python -m mirage_formal.search examples/corpus/positions/rotary_half.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 8, "head": 16}


def program(heads: int = 32, tokens: int = 128, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((heads, tokens, head))
    cos = graph.new_input((tokens, head))
    sin = graph.new_input((tokens, head))
    rotated = graph.concat([-x[:, :, head // 2 :], x[:, :, : head // 2]], dim=-1)
    graph.mark_output(x * cos + rotated * sin)
    return graph


rotary_half = program()

"""Rotary embedding of neighbouring pairs, as in RoFormer and GPT-J: (a, b) -> (a cos - b sin, a sin + b cos).

Queries of GPT-J 6B: 16 heads, of which 64 elements are rotated, 128 tokens, float16. The pairs are elements 2i and
2i + 1 of a head; cos and sin are [tokens, 32].

    python -m mirage_formal.search examples/corpus/positions/rotary_interleaved.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 8, "head": 16}


def program(heads: int = 16, tokens: int = 128, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((heads, tokens, head))
    cos = graph.new_input((tokens, head // 2))
    sin = graph.new_input((tokens, head // 2))
    pairs = graph.reshape(x, (heads, tokens, head // 2, 2))
    a, b = graph.split(pairs, 1, dim=-1)
    c = graph.unsqueeze(cos, -1)
    s = graph.unsqueeze(sin, -1)
    turned = graph.concat([a * c - b * s, a * s + b * c], dim=-1)
    graph.mark_output(graph.reshape(turned, (heads, tokens, head)))
    return graph


rotary_interleaved = program()

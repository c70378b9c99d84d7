"""Differential attention: (softmax(Q1 K1^T / 8) - lambda softmax(Q2 K2^T / 8)) V.

Ye et al., "Differential Transformer", 2024: 12 heads with two pairs of queries and keys of 64 and values of 128, 512
tokens, float16. lambda[12,1,1] is learned for each head.

    python -m mirage_formal.search examples/corpus/attention_forms/differential_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 12, tokens: int = 512, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q1 = graph.new_input((heads, tokens, head))
    q2 = graph.new_input((heads, tokens, head))
    k1 = graph.new_input((heads, tokens, head))
    k2 = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, 2 * head))
    weight = graph.new_input((heads, 1, 1))
    first = graph.softmax(q1 @ k1.mT / math.sqrt(head), dim=-1)
    second = graph.softmax(q2 @ k2.mT / math.sqrt(head), dim=-1)
    graph.mark_output((first - weight * second) @ v)
    return graph


differential_attention = program()

"""Attention with linear biases of MPT 7B, one new token over 2048 cached keys: softmax(Q K^T / sqrt(128) + B) V.

32 heads of 128, float16. B[32,1,2048] is the slope of the head times the distance of the key.

    python -m mirage_formal.search examples/corpus/attention/alibi_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "keys": 64, "head": 16}


def program(heads: int = 32, keys: int = 2048, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, 1, head))
    k = graph.new_input((heads, keys, head))
    v = graph.new_input((heads, keys, head))
    bias = graph.new_input((heads, 1, keys))
    graph.mark_output(graph.softmax(q @ k.mT / math.sqrt(head) + bias, dim=-1) @ v)
    return graph


alibi_attention = program()

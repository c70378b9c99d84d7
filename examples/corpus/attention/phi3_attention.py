"""Attention of Phi-3 mini with heads of 96, one new token over 4096 cached keys: softmax(Q K^T / sqrt(96)) V.

32 heads, float16; the probabilities are computed in float32 and cast back, as the published implementation does.

    python -m mirage_formal.search examples/corpus/attention/phi3_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "keys": 64, "head": 24}


def program(heads: int = 32, keys: int = 4096, head: int = 96) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, 1, head))
    k = graph.new_input((heads, keys, head))
    v = graph.new_input((heads, keys, head))
    scores = graph.cast(q @ k.mT / math.sqrt(head), mf.float32)
    graph.mark_output(graph.cast(graph.softmax(scores, dim=-1), mf.float16) @ v)
    return graph


phi3_attention = program()

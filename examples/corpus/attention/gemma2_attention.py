"""Attention of Gemma 2 9B, whose scores are capped softly: softmax(50 tanh(Q K^T / sqrt(256) / 50)) V.

16 query heads share 8 key-value heads of 256; one new token over 4096 cached keys. float16.

    python -m mirage_formal.search examples/corpus/attention/gemma2_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"groups": 2, "queries": 2, "keys": 64, "head": 16}


def program(groups: int = 8, queries: int = 2, keys: int = 4096, head: int = 256) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((groups, queries, head))
    k = graph.new_input((groups, keys, head))
    v = graph.new_input((groups, keys, head))
    scores = graph.tanh(q @ k.mT / math.sqrt(head) / 50) * 50
    graph.mark_output(graph.softmax(scores, dim=-1) @ v)
    return graph


gemma2_attention = program()

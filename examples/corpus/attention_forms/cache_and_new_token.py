"""Attention of one new token, whose key and value are appended to the cache by a concatenation.

Llama 3 8B: 8 groups of 4 queries, heads of 128, 4095 cached keys and the new one, float16:
softmax(Q [K; k]^T / sqrt(128)) [V; v].

    python -m mirage_formal.search examples/corpus/attention_forms/cache_and_new_token.py
"""

import math

import mirage_formal as mf

SMALL = {"groups": 2, "queries": 4, "cached": 31, "head": 16}


def program(groups: int = 8, queries: int = 4, cached: int = 4095, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((groups, queries, head))
    k = graph.new_input((groups, cached, head))
    v = graph.new_input((groups, cached, head))
    k_new = graph.new_input((groups, 1, head))
    v_new = graph.new_input((groups, 1, head))
    keys = graph.concat([k, k_new], dim=1)
    values = graph.concat([v, v_new], dim=1)
    graph.mark_output(graph.softmax(q @ keys.mT / math.sqrt(head), dim=-1) @ values)
    return graph


cache_and_new_token = program()

"""Attention over a part of the keys, with the logarithm of its sum as a second output, for flash decoding.

O = softmax(S) V and L = log sum exp(S), S = Q K^T / sqrt(128); Llama 3 8B: 8 groups of 4 queries, heads of 128, a part
of 1024 keys, float16.

    python -m mirage_formal.search examples/corpus/attention_forms/attention_and_logsumexp.py
"""

import math

import mirage_formal as mf

SMALL = {"groups": 2, "queries": 4, "keys": 64, "head": 16}


def program(groups: int = 8, queries: int = 4, keys: int = 1024, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((groups, queries, head))
    k = graph.new_input((groups, keys, head))
    v = graph.new_input((groups, keys, head))
    scores = q @ k.mT / math.sqrt(head)
    graph.mark_output(graph.softmax(scores, dim=-1) @ v)
    graph.mark_output(graph.logsumexp(scores, dim=-1))
    return graph


attention_and_logsumexp = program()

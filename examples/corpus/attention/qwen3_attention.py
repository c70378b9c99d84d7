"""Attention of Qwen3 8B with normalised queries and keys: softmax(norm(Q) norm(K)^T / sqrt(128)) V.

32 query heads share 8 key-value heads of 128; norm is an RMS norm over the head with a weight and eps = 1e-6. One new
token over 4096 keys, which are normalised here and not in the cache. bfloat16.

    python -m mirage_formal.search examples/corpus/attention/qwen3_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"groups": 2, "queries": 4, "keys": 64, "head": 16}


def program(groups: int = 8, queries: int = 4, keys: int = 4096, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((groups, queries, head), mf.bfloat16)
    k = graph.new_input((groups, keys, head), mf.bfloat16)
    v = graph.new_input((groups, keys, head), mf.bfloat16)
    q_weight = graph.new_input((head,), mf.bfloat16)
    k_weight = graph.new_input((head,), mf.bfloat16)
    q = graph.rms_norm(q, weight=q_weight, eps=1e-6)
    k = graph.rms_norm(k, weight=k_weight, eps=1e-6)
    graph.mark_output(graph.softmax(q @ k.mT / math.sqrt(head), dim=-1) @ v)
    return graph


qwen3_attention = program()

"""Attention with a learned sink of gpt-oss 20B: the softmax has one more column, which no value belongs to.

8 groups of 8 queries, heads of 64, one new token over 1024 cached keys, bfloat16. The sinks[8,8,1] stand beside the
scores; their column is dropped after the softmax.

    python -m mirage_formal.search examples/corpus/attention_forms/attention_sink.py
"""

import math

import mirage_formal as mf

SMALL = {"groups": 2, "queries": 4, "keys": 32, "head": 16}


def program(groups: int = 8, queries: int = 8, keys: int = 1024, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((groups, queries, head), mf.bfloat16)
    k = graph.new_input((groups, keys, head), mf.bfloat16)
    v = graph.new_input((groups, keys, head), mf.bfloat16)
    sinks = graph.new_input((groups, queries, 1), mf.bfloat16)
    scores = q @ k.mT / math.sqrt(head)
    weights = graph.softmax(graph.concat([scores, sinks], dim=-1), dim=-1)
    graph.mark_output(weights[:, :, :keys] @ v)
    return graph


attention_sink = program()

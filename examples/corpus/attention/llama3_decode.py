"""Grouped-query attention of Llama 3 8B, one new token over 4096 cached keys: softmax(Q K^T / sqrt(128)) V.

32 query heads share 8 key-value heads of 128: the 4 queries of a group are the rows of one product. bfloat16.

    python -m mirage_formal.search examples/corpus/attention/llama3_decode.py
"""

import math

import mirage_formal as mf

SMALL = {"groups": 2, "queries": 4, "keys": 64, "head": 16}


def program(groups: int = 8, queries: int = 4, keys: int = 4096, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((groups, queries, head), mf.bfloat16)
    k = graph.new_input((groups, keys, head), mf.bfloat16)
    v = graph.new_input((groups, keys, head), mf.bfloat16)
    graph.mark_output(graph.softmax(q @ k.mT / math.sqrt(head), dim=-1) @ v)
    return graph


llama3_decode = program()

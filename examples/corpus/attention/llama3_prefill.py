"""Grouped-query attention of Llama 3 8B for a prompt of 128 tokens: softmax(Q K^T / sqrt(128) + M) V.

32 query heads; the 8 key-value heads of 128 are repeated for their 4 queries, as widely used code does. M is the causal
mask. bfloat16.

    python -m mirage_formal.search examples/corpus/attention/llama3_prefill.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 4, "groups": 2, "tokens": 32, "head": 16}


def program(heads: int = 32, groups: int = 8, tokens: int = 128, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head), mf.bfloat16)
    k = graph.new_input((groups, tokens, head), mf.bfloat16)
    v = graph.new_input((groups, tokens, head), mf.bfloat16)
    mask = graph.new_input((1, tokens, tokens), mf.bfloat16)
    k_all = graph.repeat_interleave(k, heads // groups, 0)
    v_all = graph.repeat_interleave(v, heads // groups, 0)
    scores = q @ k_all.mT / math.sqrt(head) + mask
    graph.mark_output(graph.softmax(scores, dim=-1) @ v_all)
    return graph


llama3_prefill = program()

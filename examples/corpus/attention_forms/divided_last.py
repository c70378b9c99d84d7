"""Attention that divides after its second product: (exp(S) V) / sum exp(S), S = Q K^T / 8.

The order of FlashAttention (Dao et al., 2022), without a maximum; 12 heads of 64, 512 tokens, float16.

    python -m mirage_formal.search examples/corpus/attention_forms/divided_last.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 12, tokens: int = 512, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    e = graph.exp(q @ k.mT / math.sqrt(head))
    graph.mark_output(e @ v / graph.sum(e, dim=-1))
    return graph


divided_last = program()

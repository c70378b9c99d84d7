"""Attention with the softmax written out and its maximum subtracted: E = exp(S - max S), (E / sum E) V, S = Q K^T / 8.

The textbook form that keeps exponentials within range; heads of GPT-2 small: 12 of 64, 512 tokens, float16.

    python -m mirage_formal.search examples/corpus/attention_forms/softmax_by_hand.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 12, tokens: int = 512, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    scores = q @ k.mT / math.sqrt(head)
    e = graph.exp(scores - graph.max(scores, dim=-1))
    graph.mark_output(e / graph.sum(e, dim=-1) @ v)
    return graph


softmax_by_hand = program()

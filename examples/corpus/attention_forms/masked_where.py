"""Attention whose mask chooses with `where`: softmax(where(M, Q K^T / 8, -10000)) V.

12 heads of 64, 128 tokens, float16. M[1,128,128] is 1 where a token may look and 0 elsewhere.

    python -m mirage_formal.search examples/corpus/attention_forms/masked_where.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 12, tokens: int = 128, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    mask = graph.new_input((1, tokens, tokens))
    scores = graph.where(mask, q @ k.mT / math.sqrt(head), -10000)
    graph.mark_output(graph.softmax(scores, dim=-1) @ v)
    return graph


masked_where = program()

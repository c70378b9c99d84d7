"""Self-attention of BERT base over padded sequences: softmax(Q K^T / sqrt(64) + M) V.

A batch of 8 sequences of 128 tokens, 12 heads of 64, float16. M[8,1,1,128] is 0 at tokens and -10000 at padding.

    python -m mirage_formal.search examples/corpus/attention/bert_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"batch": 2, "heads": 2, "tokens": 32, "head": 16}


def program(batch: int = 8, heads: int = 12, tokens: int = 128, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((batch, heads, tokens, head))
    k = graph.new_input((batch, heads, tokens, head))
    v = graph.new_input((batch, heads, tokens, head))
    mask = graph.new_input((batch, 1, 1, tokens))
    scores = q @ k.mT / math.sqrt(head) + mask
    graph.mark_output(scores.softmax(-1) @ v)
    return graph


bert_attention = program()

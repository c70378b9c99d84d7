"""Causal self-attention of GPT-2 small: softmax(Q K^T / sqrt(64) + M) V.

12 heads of 64, a prompt of 512 tokens, float16. M is 0 where a token may look and a large negative number elsewhere.
Keys are transposed in the program, as the published implementation does.

    python -m mirage_formal.search examples/corpus/attention/gpt2_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 12, tokens: int = 512, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    mask = graph.new_input((1, tokens, tokens))
    scores = q @ graph.transpose(k, -1, -2) / math.sqrt(head)
    graph.mark_output(graph.softmax(scores + mask, dim=-1) @ v)
    return graph


gpt2_attention = program()

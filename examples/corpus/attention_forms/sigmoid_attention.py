"""Attention with a sigmoid in place of the softmax: sigmoid(Q K^T / sqrt(64) - log n) V for n keys.

Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", 2024; 12 heads of 64, 512 tokens,
float16. The bias is rounded to three digits.

    python -m mirage_formal.search examples/corpus/attention_forms/sigmoid_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 12, tokens: int = 512, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    scores = q @ k.mT / math.sqrt(head) - round(math.log(tokens), 3)
    graph.mark_output(graph.sigmoid(scores) @ v)
    return graph


sigmoid_attention = program()

"""Attention of Mistral 7B with its sliding window as a mask: softmax(Q K^T / sqrt(128) + M) V.

32 heads of 128, a prompt of 512 tokens, float16. M[512,512] is 0 where a key lies within the window of 4096 tokens in
front of the query (for a short prompt: the causal mask), and a large negative number elsewhere.

    python -m mirage_formal.search examples/corpus/attention/mistral_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 32, tokens: int = 512, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    window = graph.new_input((tokens, tokens))
    scores = graph.matmul(q, k.mT) * (1 / math.sqrt(head))
    graph.mark_output(graph.matmul(graph.softmax(scores + window, dim=-1), v))
    return graph


mistral_attention = program()

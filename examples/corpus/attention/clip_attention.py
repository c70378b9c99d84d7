"""Self-attention of the image tower of CLIP ViT-L/14: softmax((Q / sqrt(64)) K^T) V.

One image: 257 tokens (16 x 16 patches and one class token; 257 is a prime), 16 heads of 64, float16. The queries are
scaled, not the scores.

    python -m mirage_formal.search examples/corpus/attention/clip_attention.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 29, "head": 16}


def program(heads: int = 16, tokens: int = 257, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    graph.mark_output(graph.softmax(q / math.sqrt(head) @ k.mT, dim=-1) @ v)
    return graph


clip_attention = program()

"""Self-attention of ViT-B/16: softmax(Q K^T * 64^-0.5) V.

A batch of 8 images of 224 x 224: 197 tokens (14 x 14 patches and one class token), 12 heads of 64, float16.

    python -m mirage_formal.search examples/corpus/attention/vit_attention.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 37, "head": 16}


def program(heads: int = 8 * 12, tokens: int = 197, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    graph.mark_output(graph.softmax(q @ k.mT * head**-0.5, dim=-1) @ v)
    return graph


vit_attention = program()

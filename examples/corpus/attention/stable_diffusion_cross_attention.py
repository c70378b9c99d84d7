"""Cross-attention of Stable Diffusion 1.5 from 1024 image positions to 77 words: softmax(Q K^T / sqrt(80)) V.

The blocks of 32 x 32 positions: 8 heads of 80, one image with and one without its text, float16.

    python -m mirage_formal.search examples/corpus/attention/stable_diffusion_cross_attention.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "positions": 48, "words": 13, "head": 20}


def program(heads: int = 2 * 8, positions: int = 1024, words: int = 77, head: int = 80) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, positions, head))
    k = graph.new_input((heads, words, head))
    v = graph.new_input((heads, words, head))
    graph.mark_output(graph.softmax(q @ k.mT * head**-0.5, dim=-1) @ v)
    return graph


stable_diffusion_cross_attention = program()

"""Self-attention of the encoder of T5 base: softmax(Q K^T + B) V, without a scale.

12 heads of 64, 512 tokens, float16. B[12,512,512] is the relative position bias of each head.

    python -m mirage_formal.search examples/corpus/attention/t5_attention.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "head": 16}


def program(heads: int = 12, tokens: int = 512, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    bias = graph.new_input((heads, tokens, tokens))
    graph.mark_output(graph.softmax(q @ k.mT + bias, dim=-1) @ v)
    return graph


t5_attention = program()

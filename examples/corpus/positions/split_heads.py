"""The layout change in front of attention: [batch, tokens, heads * head] to [batch, heads, tokens, head], scaled.

BERT base: a batch of 8, 128 tokens, 12 heads of 64, float16; queries are scaled by 1/8 on the way.

    python -m mirage_formal.search examples/corpus/positions/split_heads.py
"""

import math

import mirage_formal as mf

SMALL = {"batch": 2, "tokens": 6, "heads": 3, "head": 8}


def program(batch: int = 8, tokens: int = 128, heads: int = 12, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, tokens, heads * head))
    parts = graph.reshape(x, (batch, tokens, heads, head))
    graph.mark_output(graph.permute(parts, (0, 2, 1, 3)) / math.sqrt(head))
    return graph


split_heads = program()

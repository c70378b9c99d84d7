"""Scale of an 8-bit quantisation of activations, used twice: m = max |X| / 127 of each row, X / m and m.

Dettmers et al., "LLM.int8()", 2022: hidden 4096, 16 tokens, float16, without the rounding.

    python -m mirage_formal.search examples/corpus/heads/absolute_maximum.py
"""

import mirage_formal as mf

SMALL = {"tokens": 4, "hidden": 40}


def program(tokens: int = 16, hidden: int = 4096) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    largest = graph.max(graph.abs(x), dim=-1)
    scale = largest / 127
    graph.mark_output(graph.clamp(x / scale, -127, 127))
    graph.mark_output(scale)
    return graph


absolute_maximum = program()

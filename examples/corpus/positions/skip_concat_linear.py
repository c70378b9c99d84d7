"""Skip connection of a U-Net of transformers (U-ViT): [X, S] W^T + b.

U-ViT-L/2: hidden 1024, 257 tokens (256 and the time), float16; the concatenation is along the channels.

    python -m mirage_formal.search examples/corpus/positions/skip_concat_linear.py
"""

import mirage_formal as mf

SMALL = {"tokens": 17, "hidden": 32}


def program(tokens: int = 257, hidden: int = 1024) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    skip = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, 2 * hidden))
    b = graph.new_input((hidden,))
    graph.mark_output(graph.linear(graph.concat([x, skip], dim=-1), w, b))
    return graph


skip_concat_linear = program()

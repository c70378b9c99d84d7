"""Layer norm written out, with a mean and a variance: (X - mean) / sqrt(var + eps) * w + b.

BERT base: hidden 768, 128 tokens, float16; eps = 1e-12.

    python -m mirage_formal.search examples/corpus/norm/layer_norm_by_hand.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32}


def program(tokens: int = 128, hidden: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    weight = graph.new_input((hidden,))
    bias = graph.new_input((hidden,))
    centred = x - x.mean(-1)
    variance = (centred**2).mean(-1)
    graph.mark_output(centred / (variance + 1e-12).sqrt() * weight + bias)
    return graph


layer_norm_by_hand = program()

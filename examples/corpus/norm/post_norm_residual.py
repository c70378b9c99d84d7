"""Output projection, residual and norm behind the attention of BERT base: layer_norm(X + H W^T + b).

Hidden 768, 128 tokens, float16; eps = 1e-12.

    python -m mirage_formal.search examples/corpus/norm/post_norm_residual.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32}


def program(tokens: int = 128, hidden: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    h = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, hidden))
    b = graph.new_input((hidden,))
    weight = graph.new_input((hidden,))
    bias = graph.new_input((hidden,))
    graph.mark_output(graph.layer_norm(x + graph.linear(h, w, b), weight=weight, bias=bias, eps=1e-12))
    return graph


post_norm_residual = program()

"""Adaptive layer norm of DiT-XL/2: layer_norm(X) * (1 + scale) + shift, scale and shift of each image.

A batch of 2 images of 256 tokens, hidden 1152, float16; eps = 1e-6, the norm itself has no weights.

    python -m mirage_formal.search examples/corpus/norm/adaptive_layer_norm.py
"""

import mirage_formal as mf

SMALL = {"batch": 2, "tokens": 16, "hidden": 32}


def program(batch: int = 2, tokens: int = 256, hidden: int = 1152) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, tokens, hidden))
    scale = graph.new_input((batch, hidden))
    shift = graph.new_input((batch, hidden))
    h = graph.layer_norm(x, eps=1e-6)
    graph.mark_output(h * (1 + graph.unsqueeze(scale, 1)) + graph.unsqueeze(shift, 1))
    return graph


adaptive_layer_norm = program()

"""Gated linear unit with gelu, from one product that is cut into halves: A * gelu(G), [A, G] = X W^T + b.

Stable Diffusion 1.5 at 16 x 16 positions: hidden 1280, inner 5120, 256 tokens, float16. The exact gelu.

    python -m mirage_formal.search examples/corpus/mlp/geglu.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "inner": 64}


def program(tokens: int = 256, hidden: int = 1280, inner: int = 5120) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w = graph.new_input((2 * inner, hidden))
    b = graph.new_input((2 * inner,))
    a, gate = graph.chunk(graph.linear(x, w, b), 2, dim=-1)
    graph.mark_output(a * graph.gelu(gate))
    return graph


geglu = program()

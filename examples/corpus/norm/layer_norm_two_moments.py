"""Layer norm from the means of the elements and of their squares: (X - m) * rsqrt(mean(X^2) - m^2 + eps).

The form of many hand-written kernels, which need one pass for both means; hidden 768, 128 tokens, float16.

    python -m mirage_formal.search examples/corpus/norm/layer_norm_two_moments.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32}


def program(tokens: int = 128, hidden: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    mean = graph.mean(x, dim=-1)
    variance = graph.mean(x * x, dim=-1) - mean * mean
    graph.mark_output((x - mean) * graph.rsqrt(variance + 1e-5))
    return graph


layer_norm_two_moments = program()

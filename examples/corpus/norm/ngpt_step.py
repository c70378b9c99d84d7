"""Residual step of nGPT on the unit sphere: unit(H + alpha * (unit(A) - H)), unit(x) = x / |x|.

Loshchilov et al., 2024; the 0.5B model: hidden 1024, 256 tokens, bfloat16. alpha[1024] is learned.

    python -m mirage_formal.search examples/corpus/norm/ngpt_step.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32}


def program(tokens: int = 256, hidden: int = 1024) -> mf.Graph:
    graph = mf.new_kernel_graph()
    h = graph.new_input((tokens, hidden), mf.bfloat16)
    a = graph.new_input((tokens, hidden), mf.bfloat16)
    alpha = graph.new_input((hidden,), mf.bfloat16)
    unit = a / graph.sqrt(graph.sum(graph.square(a), dim=-1))
    step = h + alpha * (unit - h)
    graph.mark_output(step * graph.rsqrt(graph.sum(step**2, dim=-1)))
    return graph


ngpt_step = program()

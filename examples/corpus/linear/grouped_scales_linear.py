"""A linear layer whose weights have one scale for each 128 inputs, as after 4-bit quantisation: X (Q * s).

Llama 3 8B: hidden 4096, 4096 columns, 8 tokens, float16; the codes Q are given as numbers, s is [32,4096].

    python -m mirage_formal.search examples/corpus/linear/grouped_scales_linear.py
"""

import mirage_formal as mf

SMALL = {"tokens": 4, "hidden": 32, "out": 24, "group": 8}


def program(tokens: int = 8, hidden: int = 4096, out: int = 4096, group: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    codes = graph.new_input((hidden, out))
    scales = graph.new_input((hidden // group, out))
    graph.mark_output(x @ (codes * graph.repeat_interleave(scales, group, 0)))
    return graph


grouped_scales_linear = program()

"""Layer norm and the joint projection of queries, keys and values of GPT-2 small: norm(X) W + b.

Hidden 768, 128 tokens, float16; eps = 1e-5.

    python -m mirage_formal.search examples/corpus/norm/layer_norm_linear.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "out": 48}


def program(tokens: int = 128, hidden: int = 768, out: int = 2304) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    weight = graph.new_input((hidden,))
    bias = graph.new_input((hidden,))
    w = graph.new_input((hidden, out))
    b = graph.new_input((out,))
    h = graph.layer_norm(x, weight=weight, bias=bias, eps=1e-5)
    graph.mark_output(graph.addmm(b, h, w))
    return graph


layer_norm_linear = program()

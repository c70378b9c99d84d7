"""RMS norm with weight and eps and the joint projection of Llama 3 8B: norm(X) W.

Hidden 4096, 32 + 2 * 8 heads of 128 = 6144 columns, 8 tokens, bfloat16; eps = 1e-5.

    python -m mirage_formal.search examples/corpus/norm/rms_norm_linear.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32, "out": 48}


def program(tokens: int = 8, hidden: int = 4096, out: int = 6144) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden), mf.bfloat16)
    weight = graph.new_input((hidden,), mf.bfloat16)
    w = graph.new_input((hidden, out), mf.bfloat16)
    graph.mark_output(graph.rms_norm(x, weight=weight, eps=1e-5) @ w)
    return graph


rms_norm_linear = program()

"""RMS norm of Llama as its published implementation writes it: w * cast(F * rsqrt(mean(F^2) + eps)), F = X in float32.

Llama 3 8B: hidden 4096, 8 tokens, bfloat16; eps = 1e-5.

    python -m mirage_formal.search examples/corpus/norm/rms_norm_by_hand.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32}


def program(tokens: int = 8, hidden: int = 4096) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden), mf.bfloat16)
    weight = graph.new_input((hidden,), mf.bfloat16)
    f = graph.cast(x, mf.float32)
    f = f * graph.rsqrt(graph.mean(f**2, dim=-1) + 1e-5)
    graph.mark_output(weight * graph.cast(f, mf.bfloat16))
    return graph


rms_norm_by_hand = program()

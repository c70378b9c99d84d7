"""Feed-forward block of Gemma 2B: (gelu(X Wg) * (X Wu)) Wd with the tanh form of gelu.

Hidden 2048, inner 16384, 8 tokens (a batch that decodes), float16.

    python -m mirage_formal.search examples/corpus/mlp/gemma_mlp.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32, "inner": 64}


def program(tokens: int = 8, hidden: int = 2048, inner: int = 16384) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w_gate = graph.new_input((hidden, inner))
    w_up = graph.new_input((hidden, inner))
    w_down = graph.new_input((inner, hidden))
    gate = graph.gelu(x @ w_gate, approximate="tanh")
    graph.mark_output(gate * (x @ w_up) @ w_down)
    return graph


gemma_mlp = program()

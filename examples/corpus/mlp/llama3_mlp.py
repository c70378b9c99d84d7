"""Feed-forward block of Llama 3 8B: (silu(X Wg^T) * (X Wu^T)) Wd^T.

Hidden 4096, inner 14336, 8 tokens (a batch that decodes), bfloat16. Weights stand [out, in].

    python -m mirage_formal.search examples/corpus/mlp/llama3_mlp.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32, "inner": 64}


def program(tokens: int = 8, hidden: int = 4096, inner: int = 14336) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden), mf.bfloat16)
    w_gate = graph.new_input((inner, hidden), mf.bfloat16)
    w_up = graph.new_input((inner, hidden), mf.bfloat16)
    w_down = graph.new_input((hidden, inner), mf.bfloat16)
    h = graph.silu(graph.linear(x, w_gate)) * graph.linear(x, w_up)
    graph.mark_output(graph.linear(h, w_down))
    return graph


llama3_mlp = program()

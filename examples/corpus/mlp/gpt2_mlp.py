"""Feed-forward block of GPT-2 small: gelu(X W1 + b1) W2 + b2 with the tanh form of gelu.

Hidden 768, inner 3072, 128 tokens, float16. Weights stand [in, out], as the Conv1D of the published implementation.

    python -m mirage_formal.search examples/corpus/mlp/gpt2_mlp.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "inner": 64}


def program(tokens: int = 128, hidden: int = 768, inner: int = 3072) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w1 = graph.new_input((hidden, inner))
    b1 = graph.new_input((inner,))
    w2 = graph.new_input((inner, hidden))
    b2 = graph.new_input((hidden,))
    h = graph.gelu(graph.addmm(b1, x, w1), approximate="tanh")
    graph.mark_output(graph.addmm(b2, h, w2))
    return graph


gpt2_mlp = program()

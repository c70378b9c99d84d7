"""Feed-forward block of BERT base: gelu(X W1^T + b1) W2^T + b2 with the exact gelu, by the error function.

Hidden 768, inner 3072, 128 tokens, float16. Weights stand [out, in], as torch.nn.Linear has them.

    python -m mirage_formal.search examples/corpus/mlp/bert_mlp.py
"""

import math

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "inner": 64}


def program(tokens: int = 128, hidden: int = 768, inner: int = 3072) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w1 = graph.new_input((inner, hidden))
    b1 = graph.new_input((inner,))
    w2 = graph.new_input((hidden, inner))
    b2 = graph.new_input((hidden,))
    h = graph.linear(x, w1, b1)
    h = h * 0.5 * (1 + graph.erf(h / math.sqrt(2)))
    graph.mark_output(graph.linear(h, w2, b2))
    return graph


bert_mlp = program()

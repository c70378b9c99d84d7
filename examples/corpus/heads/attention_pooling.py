"""Pooling by attention and a classifier: softmax over tokens of tanh(X W) u weighs the tokens; (a^T X) C.

Yang et al., "Hierarchical Attention Networks", 2016: 50 tokens of 100, 5 classes, a batch of 1, float16.

    python -m mirage_formal.search examples/corpus/heads/attention_pooling.py
"""

import mirage_formal as mf

SMALL = {"tokens": 14, "hidden": 24, "classes": 5}


def program(tokens: int = 50, hidden: int = 100, classes: int = 5) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, hidden))
    b = graph.new_input((hidden,))
    u = graph.new_input((hidden, 1))
    c = graph.new_input((hidden, classes))
    weights = graph.softmax(graph.tanh(x @ w + b) @ u, dim=0)
    graph.mark_output(weights.mT @ x @ c)
    return graph


attention_pooling = program()

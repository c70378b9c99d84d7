"""Pooler and classifier of BERT base: tanh(X[first token] W^T + b) C^T + c.

A batch of 3 sequences of 128 tokens, hidden 768, 2 classes, float16.

    python -m mirage_formal.search examples/corpus/heads/bert_pooler.py
"""

import mirage_formal as mf

SMALL = {"batch": 3, "tokens": 6, "hidden": 32, "classes": 2}


def program(batch: int = 3, tokens: int = 128, hidden: int = 768, classes: int = 2) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, tokens, hidden))
    w = graph.new_input((hidden, hidden))
    b = graph.new_input((hidden,))
    w_classes = graph.new_input((classes, hidden))
    b_classes = graph.new_input((classes,))
    first = graph.squeeze(x[:, 0:1], 1)
    graph.mark_output(graph.linear(graph.tanh(graph.linear(first, w, b)), w_classes, b_classes))
    return graph


bert_pooler = program()

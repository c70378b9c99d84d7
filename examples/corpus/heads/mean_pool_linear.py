"""Mean of the tokens and a linear layer: mean(X) W^T + b, the classifier behind a vision transformer.

ViT-B/16 with mean pooling: a batch of 8, 196 tokens, hidden 768, 1000 classes, float16.

    python -m mirage_formal.search examples/corpus/heads/mean_pool_linear.py
"""

import mirage_formal as mf

SMALL = {"batch": 2, "tokens": 9, "hidden": 32, "classes": 10}


def program(batch: int = 8, tokens: int = 196, hidden: int = 768, classes: int = 1000) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, tokens, hidden))
    w = graph.new_input((classes, hidden))
    b = graph.new_input((classes,))
    graph.mark_output(graph.linear(graph.mean(x, dim=1, keepdim=False), w, b))
    return graph


mean_pool_linear = program()

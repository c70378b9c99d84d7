"""Two layers that share a product, and a third output of the product itself: H = X W, H A, H B.

A multi-task head: hidden 768, inner 256, two tasks with 10 and 2 classes, a batch of 3, float16.

    python -m mirage_formal.search examples/corpus/linear/shared_product.py
"""

import mirage_formal as mf

SMALL = {"batch": 3, "hidden": 32, "inner": 16}


def program(batch: int = 3, hidden: int = 768, inner: int = 256) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, hidden))
    w = graph.new_input((hidden, inner))
    a = graph.new_input((inner, 10))
    b = graph.new_input((inner, 2))
    h = x @ w
    for output in (h, h @ a, h @ b):
        graph.mark_output(output)
    return graph


shared_product = program()

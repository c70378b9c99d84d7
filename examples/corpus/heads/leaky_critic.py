"""A discriminator's two layers with leaky ReLU and its loss: relu(1 - (leaky(X W1 + b1) W2 + b2)) on average.

Hinge loss as in SAGAN, 2018; 64 samples of 784, inner 512, slope 0.2, float16.

    python -m mirage_formal.search examples/corpus/heads/leaky_critic.py
"""

import mirage_formal as mf

SMALL = {"batch": 6, "width": 28, "inner": 16}


def program(batch: int = 64, width: int = 784, inner: int = 512) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, width))
    w1 = graph.new_input((width, inner))
    b1 = graph.new_input((inner,))
    w2 = graph.new_input((inner, 1))
    b2 = graph.new_input((1,))
    critic = graph.leaky_relu(x @ w1 + b1, 0.2) @ w2 + b2
    graph.mark_output(graph.mean(graph.relu(1 - critic), dim=0))
    return graph


leaky_critic = program()

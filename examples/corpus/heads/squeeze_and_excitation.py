"""Squeeze and excitation of SENet: X * sigmoid(relu(mean(X) W1^T + b1) W2^T + b2), a factor for each channel.

SE-ResNet-50, stage 3: 1024 channels, 14 x 14 positions, reduction 16, a batch of 2, float16.

    python -m mirage_formal.search examples/corpus/heads/squeeze_and_excitation.py
"""

import mirage_formal as mf

SMALL = {"batch": 2, "channels": 32, "side": 4, "reduction": 4}


def program(batch: int = 2, channels: int = 1024, side: int = 14, reduction: int = 16) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, channels, side, side))
    w1 = graph.new_input((channels // reduction, channels))
    b1 = graph.new_input((channels // reduction,))
    w2 = graph.new_input((channels, channels // reduction))
    b2 = graph.new_input((channels,))
    mean = graph.reshape(graph.mean(x, dim=(2, 3)), (batch, channels))
    factor = graph.sigmoid(graph.linear(graph.relu(graph.linear(mean, w1, b1)), w2, b2))
    graph.mark_output(x * graph.reshape(factor, (batch, channels, 1, 1)))
    return graph


squeeze_and_excitation = program()

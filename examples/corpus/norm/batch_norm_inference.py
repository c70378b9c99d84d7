"""Batch norm of ResNet-50 with its stored statistics, and ReLU: relu((X - m) / sqrt(v + eps) * w + b).

64 channels of 56 x 56 positions, one image, float16; eps = 1e-5. Inputs of the variance are drawn as squares: s^2 = v.

    python -m mirage_formal.search examples/corpus/norm/batch_norm_inference.py
"""

import mirage_formal as mf

SMALL = {"channels": 8, "positions": 49}


def program(channels: int = 64, positions: int = 56 * 56) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((channels, positions))
    mean = graph.new_input((channels, 1))
    deviation = graph.new_input((channels, 1))
    weight = graph.new_input((channels, 1))
    bias = graph.new_input((channels, 1))
    normed = (x - mean) / graph.sqrt(graph.square(deviation) + 1e-5)
    graph.mark_output(graph.relu(normed * weight + bias))
    return graph


batch_norm_inference = program()

"""A 1 x 1 convolution of ResNet-50 with its folded batch norm and ReLU: relu((W X) * s + b).

Channels before positions: 256 to 64 channels, 56 x 56 positions, one image, float16.

    python -m mirage_formal.search examples/corpus/linear/pointwise_convolution.py
"""

import mirage_formal as mf

SMALL = {"channels": 16, "out": 8, "positions": 49}


def program(channels: int = 256, out: int = 64, positions: int = 56 * 56) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((channels, positions))
    w = graph.new_input((out, channels))
    scale = graph.new_input((out, 1))
    shift = graph.new_input((out, 1))
    graph.mark_output(graph.relu(w @ x * scale + shift))
    return graph


pointwise_convolution = program()

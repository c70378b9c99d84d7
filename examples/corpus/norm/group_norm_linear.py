"""Group norm in front of a linear layer, as where Stable Diffusion's transformer blocks begin: group_norm(X) W + b.

16 x 16 positions of 1280 channels in 32 groups of 40, float16. A group is normalised over its channels and all
positions: X[positions, groups, channels of a group].

    python -m mirage_formal.search examples/corpus/norm/group_norm_linear.py
"""

import mirage_formal as mf

SMALL = {"positions": 16, "groups": 4, "width": 8}


def program(positions: int = 256, groups: int = 32, width: int = 40) -> mf.Graph:
    channels = groups * width
    graph = mf.new_kernel_graph()
    x = graph.new_input((positions, channels))
    weight = graph.new_input((channels,))
    bias = graph.new_input((channels,))
    w = graph.new_input((channels, channels))
    b = graph.new_input((channels,))
    parts = graph.reshape(x, (positions, groups, width))
    centred = parts - graph.mean(parts, dim=(0, 2))
    variance = graph.mean(graph.square(centred), dim=(0, 2))
    normed = graph.reshape(centred * graph.rsqrt(variance + 1e-6), (positions, channels))
    graph.mark_output((normed * weight + bias) @ w + b)
    return graph


group_norm_linear = program()

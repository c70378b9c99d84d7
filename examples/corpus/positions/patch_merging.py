"""Patch merging of Swin-T: each 2 x 2 positions become one row, layer norm, linear layer.

Stage 1 of an image of 224 x 224: 56 x 56 positions of 96 channels to 28 x 28 rows of 384, to 192, float16.

    python -m mirage_formal.search examples/corpus/positions/patch_merging.py
"""

import mirage_formal as mf

SMALL = {"side": 4, "channels": 8}


def program(side: int = 56, channels: int = 96) -> mf.Graph:
    half = side // 2
    graph = mf.new_kernel_graph()
    x = graph.new_input((side, side, channels))
    weight = graph.new_input((4 * channels,))
    bias = graph.new_input((4 * channels,))
    w = graph.new_input((2 * channels, 4 * channels))
    cut = graph.reshape(x, (half, 2, half, 2, channels))
    rows = graph.reshape(graph.permute(cut, (0, 2, 3, 1, 4)), (half * half, 4 * channels))
    graph.mark_output(graph.linear(graph.layer_norm(rows, weight=weight, bias=bias, eps=1e-5), w))
    return graph


patch_merging = program()

"""Window partition of Swin-T with its cyclic shift: positions rolled by 3, then cut into windows of 7 x 7.

56 x 56 positions of 96 channels to 64 windows of 49 rows, float16. The roll is made of slices and concatenations.

    python -m mirage_formal.search examples/corpus/positions/window_partition.py
"""

import mirage_formal as mf

SMALL = {"windows": 2, "size": 4, "shift": 1, "channels": 8}


def program(windows: int = 8, size: int = 7, shift: int = 3, channels: int = 96) -> mf.Graph:
    side = windows * size
    graph = mf.new_kernel_graph()
    x = graph.new_input((side, side, channels))
    x = graph.concat([x[shift:], x[:shift]], dim=0)
    x = graph.concat([x[:, shift:], x[:, :shift]], dim=1)
    cut = graph.reshape(x, (windows, size, windows, size, channels))
    cut = graph.permute(cut, (0, 2, 1, 3, 4))
    graph.mark_output(graph.reshape(cut, (windows * windows, size * size, channels)))
    return graph


window_partition = program()

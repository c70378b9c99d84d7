"""Patch embedding of ViT-B/16: the image cut into patches of 16 x 16, each a row, times a matrix, plus positions.

One image of 3 x 224 x 224, 196 patches of 768 numbers, hidden 768, float16.

    python -m mirage_formal.search examples/corpus/positions/patch_embedding.py
"""

import mirage_formal as mf

SMALL = {"patches": 3, "size": 4, "hidden": 32}


def program(patches: int = 14, size: int = 16, hidden: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    image = graph.new_input((3, patches * size, patches * size))
    w = graph.new_input((hidden, 3 * size * size))
    b = graph.new_input((hidden,))
    positions = graph.new_input((patches * patches, hidden))
    cut = graph.reshape(image, (3, patches, size, patches, size))
    rows = graph.reshape(graph.permute(cut, (1, 3, 0, 2, 4)), (patches * patches, 3 * size * size))
    graph.mark_output(graph.linear(rows, w, b) + positions)
    return graph


patch_embedding = program()

"""Class token and positions in front of a transformer: [c; X] + P.

ViT-B/16: 196 patches of a batch of 8, hidden 768, float16; the class token is the same for every image.

    python -m mirage_formal.search examples/corpus/positions/class_token.py
"""

import mirage_formal as mf

SMALL = {"batch": 2, "patches": 9, "hidden": 32}


def program(batch: int = 8, patches: int = 196, hidden: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, patches, hidden))
    token = graph.new_input((1, 1, hidden))
    positions = graph.new_input((1, patches + 1, hidden))
    graph.mark_output(graph.concat([graph.expand(token, (batch, 1, hidden)), x], dim=1) + positions)
    return graph


class_token = program()

"""Interactions of DLRM: the embeddings of a sample, all their scalar products, beside the dense features.

Naumov et al., 2019: 26 embeddings and one dense row of 128, a batch of 32, float16; all products are kept.

    python -m mirage_formal.search examples/corpus/heads/feature_interaction.py
"""

import mirage_formal as mf

SMALL = {"batch": 3, "embeddings": 6, "width": 16}


def program(batch: int = 32, embeddings: int = 26, width: int = 128) -> mf.Graph:
    rows = embeddings + 1
    graph = mf.new_kernel_graph()
    dense = graph.new_input((batch, 1, width))
    sparse = graph.new_input((batch, embeddings, width))
    x = graph.concat([dense, sparse], dim=1)
    products = graph.reshape(x @ x.mT, (batch, rows * rows))
    graph.mark_output(graph.concat([graph.squeeze(dense, 1), products], dim=1))
    return graph


feature_interaction = program()

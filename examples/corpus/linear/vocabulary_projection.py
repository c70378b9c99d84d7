"""Scores of all words of GPT-2 small behind its last norm, a batch of 3: layer_norm(X) E^T.

Hidden 768, 50,257 words (an odd number, 29 * 1733), float16; E is the embedding table, [words, hidden].

    python -m mirage_formal.search examples/corpus/linear/vocabulary_projection.py
"""

import mirage_formal as mf

SMALL = {"batch": 3, "hidden": 32, "words": 101}


def program(batch: int = 3, hidden: int = 768, words: int = 50257) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, hidden))
    weight = graph.new_input((hidden,))
    bias = graph.new_input((hidden,))
    table = graph.new_input((words, hidden))
    graph.mark_output(graph.layer_norm(x, weight=weight, bias=bias, eps=1e-5) @ table.mT)
    return graph


vocabulary_projection = program()

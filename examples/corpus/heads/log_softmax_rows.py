"""Log-probabilities of all words: log_softmax(X).

Llama 3: 128,256 words, a batch of 4, bfloat16.

    python -m mirage_formal.search examples/corpus/heads/log_softmax_rows.py
"""

import mirage_formal as mf

SMALL = {"rows": 4, "words": 48}


def program(rows: int = 4, words: int = 128256) -> mf.Graph:
    graph = mf.new_kernel_graph()
    scores = graph.new_input((rows, words), mf.bfloat16)
    graph.mark_output(graph.log_softmax(scores, dim=-1))
    return graph


log_softmax_rows = program()

"""Auxiliary loss of PaLM beside the log-probabilities: log_softmax(X) and 0.0001 * (log sum exp X)^2.

32 tokens, 4096 scores of a shard of the words, float16.

    python -m mirage_formal.search examples/corpus/heads/z_loss.py
"""

import mirage_formal as mf

SMALL = {"rows": 4, "words": 48}


def program(rows: int = 32, words: int = 4096) -> mf.Graph:
    graph = mf.new_kernel_graph()
    scores = graph.new_input((rows, words))
    total = graph.logsumexp(scores, dim=-1)
    graph.mark_output(scores - total)
    graph.mark_output(0.0001 * total**2)
    return graph


z_loss = program()

"""Cross-entropy of each row of scores: log sum exp(x) - x[target], the target as a row of zeros with a single one.

GPT-2 small: 64 tokens, 50,257 words, float16.

    python -m mirage_formal.search examples/corpus/heads/cross_entropy_rows.py
"""

import mirage_formal as mf

SMALL = {"rows": 4, "words": 29}


def program(rows: int = 64, words: int = 50257) -> mf.Graph:
    graph = mf.new_kernel_graph()
    scores = graph.new_input((rows, words))
    target = graph.new_input((rows, words))
    graph.mark_output(graph.logsumexp(scores, dim=-1) - graph.sum(scores * target, dim=-1))
    return graph


cross_entropy_rows = program()

"""Two parts of flash decoding put together: weights e^(L1 - M), e^(L2 - M) with M = max(L1, L2), their outputs' mean.

Llama 3 8B: 32 heads of 128, a batch of 4, float16. O1, O2 are attention over halves of the keys, L1, L2 the logarithms
of their sums of exponentials.

    python -m mirage_formal.search examples/corpus/attention_forms/combined_parts.py
"""

import mirage_formal as mf

SMALL = {"rows": 12, "head": 16}


def program(rows: int = 4 * 32, head: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    o1 = graph.new_input((rows, head))
    o2 = graph.new_input((rows, head))
    l1 = graph.new_input((rows, 1))
    l2 = graph.new_input((rows, 1))
    largest = graph.maximum(l1, l2)
    w1 = graph.exp(l1 - largest)
    w2 = graph.exp(l2 - largest)
    graph.mark_output((o1 * w1 + o2 * w2) / (w1 + w2))
    return graph


combined_parts = program()

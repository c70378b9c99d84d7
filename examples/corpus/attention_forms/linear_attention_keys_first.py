"""Linear attention without a normaliser, keys and values first: relu(Q) (relu(K)^T V).

Heads of the Performer with its ReLU features: 8 heads of 64, 4096 tokens, float16. In this order the work grows with
the tokens, not with their square; see linear_attention_queries_first.py.

    python -m mirage_formal.search examples/corpus/attention_forms/linear_attention_keys_first.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 64, "head": 16}


def program(heads: int = 8, tokens: int = 4096, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    graph.mark_output(graph.relu(q) @ (graph.relu(k).mT @ v))
    return graph


linear_attention_keys_first = program()

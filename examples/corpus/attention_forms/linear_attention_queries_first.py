"""Linear attention without a normaliser, queries and keys first: (relu(Q) relu(K)^T) V.

8 heads of 64, 1024 tokens, float16; the same function as linear_attention_keys_first.py, in the order of softmax
attention.

    python -m mirage_formal.search examples/corpus/attention_forms/linear_attention_queries_first.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 64, "head": 16}


def program(heads: int = 8, tokens: int = 1024, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    graph.mark_output(graph.relu(q) @ graph.relu(k).mT @ v)
    return graph


linear_attention_queries_first = program()

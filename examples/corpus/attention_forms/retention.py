"""Retention of RetNet in its parallel form: (Q K^T * D) V.

16 heads with keys of 128 and values of 256, 512 tokens, float16. D[16,512,512] is the decay of each head to the power
of the distance, and 0 for later tokens.

    python -m mirage_formal.search examples/corpus/attention_forms/retention.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 32, "key": 16, "value": 32}


def program(heads: int = 16, tokens: int = 512, key: int = 128, value: int = 256) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, key))
    k = graph.new_input((heads, tokens, key))
    v = graph.new_input((heads, tokens, value))
    decay = graph.new_input((heads, tokens, tokens))
    graph.mark_output(q @ k.mT * decay @ v)
    return graph


retention = program()

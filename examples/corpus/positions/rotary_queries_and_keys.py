"""Rotary embedding of queries and keys behind their projection, as two outputs, one token of each of 8 sequences.

Llama 3 8B: hidden 4096, 32 query and 8 key heads of 128, float16; cos and sin are [batch, 1, 128].

    python -m mirage_formal.search examples/corpus/positions/rotary_queries_and_keys.py
"""

import mirage_formal as mf

SMALL = {"batch": 2, "queries": 2, "keys": 1, "head": 16}


def program(batch: int = 8, queries: int = 32, keys: int = 8, head: int = 128) -> mf.Graph:
    hidden = queries * head
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, hidden))
    w_q = graph.new_input((hidden, queries * head))
    w_k = graph.new_input((hidden, keys * head))
    cos = graph.new_input((batch, 1, head))
    sin = graph.new_input((batch, 1, head))
    for w, heads in ((w_q, queries), (w_k, keys)):
        t = graph.reshape(x @ w, (batch, heads, head))
        low, high = graph.chunk(t, 2, dim=-1)
        graph.mark_output(t * cos + graph.concat([-high, low], dim=-1) * sin)
    return graph


rotary_queries_and_keys = program()

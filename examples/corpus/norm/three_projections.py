"""Three projections behind one norm, as three outputs: norm(X) Wq, norm(X) Wk, norm(X) Wv.

Llama 3 8B: hidden 4096, 32 query and 8 key-value heads of 128, 8 tokens, float16.

    python -m mirage_formal.search examples/corpus/norm/three_projections.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32, "queries": 32, "keys": 16}


def program(tokens: int = 8, hidden: int = 4096, queries: int = 4096, keys: int = 1024) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    weight = graph.new_input((hidden,))
    w_q = graph.new_input((hidden, queries))
    w_k = graph.new_input((hidden, keys))
    w_v = graph.new_input((hidden, keys))
    h = graph.rms_norm(x, weight=weight, eps=1e-5)
    for w in (w_q, w_k, w_v):
        graph.mark_output(h @ w)
    return graph


three_projections = program()

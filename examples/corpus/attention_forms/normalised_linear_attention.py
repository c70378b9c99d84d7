"""Linear attention with its normaliser: F (G^T V) / (F sum G), F = sigmoid(Q), G = sigmoid(K).

After Katharopoulos et al., "Transformers are RNNs", 2020, with another positive feature; 8 heads of 64, 1024 tokens,
float16. F sum G is the row sum of F times the column sums of G.

    python -m mirage_formal.search examples/corpus/attention_forms/normalised_linear_attention.py
"""

import mirage_formal as mf

SMALL = {"heads": 2, "tokens": 64, "head": 16}


def program(heads: int = 8, tokens: int = 1024, head: int = 64) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, tokens, head))
    k = graph.new_input((heads, tokens, head))
    v = graph.new_input((heads, tokens, head))
    f = graph.sigmoid(q)
    g = graph.sigmoid(k)
    total = graph.sum(f * graph.sum(g, dim=1), dim=-1)
    graph.mark_output(f @ (g.mT @ v) / total)
    return graph


normalised_linear_attention = program()

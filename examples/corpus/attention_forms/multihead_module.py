"""torch.nn.MultiheadAttention as one program: one projection for Q, K and V, heads, attention, output projection.

Sizes of the original Transformer base: hidden 512, 8 heads of 64, 128 tokens, float16. Weights stand as torch has them,
[out, in]; queries are scaled before the product.

    python -m mirage_formal.search examples/corpus/attention_forms/multihead_module.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "heads": 2, "head": 16}


def program(tokens: int = 128, heads: int = 8, head: int = 64) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w_in = graph.new_input((3 * hidden, hidden))
    b_in = graph.new_input((3 * hidden,))
    w_out = graph.new_input((hidden, hidden))
    b_out = graph.new_input((hidden,))
    q, k, v = (
        graph.transpose(graph.reshape(part, (tokens, heads, head)), 0, 1)
        for part in graph.chunk(graph.linear(x, w_in, b_in), 3, dim=-1)
    )
    mixed = graph.softmax(q * head**-0.5 @ k.mT, dim=-1) @ v
    joined = graph.reshape(graph.transpose(mixed, 0, 1), (tokens, hidden))
    graph.mark_output(graph.linear(joined, w_out, b_out))
    return graph


multihead_module = program()

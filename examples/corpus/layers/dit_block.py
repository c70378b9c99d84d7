"""One block of DiT-XL/2 for one image of 256 tokens: attention and MLP, norms scaled and shifted by a condition.

Hidden 1152, 16 heads of 72, inner 4608, float16. Six rows, from silu(c) and a linear layer, are shift, scale and gate
of the attention and of the MLP.

    python -m mirage_formal.search examples/corpus/layers/dit_block.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "heads": 2, "head": 12}


def program(tokens: int = 256, heads: int = 16, head: int = 72) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, name=name)

    def linear(t: mf.Tensor, name: str, out: int, into: int = hidden) -> mf.Tensor:
        return graph.linear(t, given(f"w_{name}", out, into), given(f"b_{name}", out))

    x = given("x", tokens, hidden)
    condition = linear(graph.silu(given("c", 1, hidden)), "condition", 6 * hidden)
    shift1, scale1, gate1, shift2, scale2, gate2 = graph.chunk(condition, 6, dim=-1)

    h = graph.layer_norm(x, eps=1e-6) * (1 + scale1) + shift1
    q, k, v = (
        graph.transpose(graph.reshape(part, (tokens, heads, head)), 0, 1)
        for part in graph.chunk(linear(h, "qkv", 3 * hidden), 3, dim=-1)
    )
    mixed = graph.softmax(q * head**-0.5 @ k.mT, dim=-1) @ v
    joined = graph.reshape(graph.transpose(mixed, 0, 1), (tokens, hidden))
    x = x + gate1 * linear(joined, "out", hidden)

    h = graph.layer_norm(x, eps=1e-6) * (1 + scale2) + shift2
    inner = graph.gelu(linear(h, "1", 4 * hidden), approximate="tanh")
    graph.mark_output(x + gate2 * linear(inner, "2", hidden, 4 * hidden))
    return graph


dit_block = program()

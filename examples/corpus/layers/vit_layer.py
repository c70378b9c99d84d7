"""One layer of ViT-B/16: X + attention(norm(X)), then Y + mlp(norm(Y)), for one image of 197 tokens.

Hidden 768, 12 heads of 64, inner 3072, float16; weights stand [out, in], the gelu is exact, eps = 1e-6.

    python -m mirage_formal.search examples/corpus/layers/vit_layer.py
"""

import mirage_formal as mf

SMALL = {"tokens": 13, "heads": 2, "head": 16}


def program(tokens: int = 197, heads: int = 12, head: int = 64) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, name=name)

    def linear(t: mf.Tensor, name: str, out: int, into: int = hidden) -> mf.Tensor:
        return graph.linear(t, given(f"w_{name}", out, into), given(f"b_{name}", out))

    def norm(t: mf.Tensor, name: str) -> mf.Tensor:
        return graph.layer_norm(t, weight=given(f"{name}_weight", hidden), bias=given(f"{name}_bias", hidden), eps=1e-6)

    x = given("x", tokens, hidden)
    qkv = graph.reshape(linear(norm(x, "norm1"), "qkv", 3 * hidden), (tokens, 3, heads, head))
    q, k, v = (graph.squeeze(part, 0) for part in graph.split(graph.permute(qkv, (1, 2, 0, 3)), 1, dim=0))
    mixed = graph.softmax(q * head**-0.5 @ k.mT, dim=-1) @ v
    x = x + linear(graph.reshape(graph.transpose(mixed, 0, 1), (tokens, hidden)), "out", hidden)
    inner = graph.gelu(linear(norm(x, "norm2"), "1", 4 * hidden))
    graph.mark_output(x + linear(inner, "2", hidden, 4 * hidden))
    return graph


vit_layer = program()

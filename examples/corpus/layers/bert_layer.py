"""One layer of BERT base, norms behind the residuals: Y = norm(X + attention(X)), norm(Y + mlp(Y)).

A batch of 2 sequences of 128 tokens, hidden 768, 12 heads of 64, inner 3072, float16; weights stand [out, in].
mask[2,1,1,128] is 0 at tokens and -10000 at padding.

    python -m mirage_formal.search examples/corpus/layers/bert_layer.py
"""

import math

import mirage_formal as mf

SMALL = {"batch": 2, "tokens": 16, "heads": 2, "head": 16}


def program(batch: int = 2, tokens: int = 128, heads: int = 12, head: int = 64) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, name=name)

    def linear(t: mf.Tensor, name: str, out: int, into: int = hidden) -> mf.Tensor:
        return graph.linear(t, given(f"w_{name}", out, into), given(f"b_{name}", out))

    def norm(t: mf.Tensor, name: str) -> mf.Tensor:
        return graph.layer_norm(
            t, weight=given(f"{name}_weight", hidden), bias=given(f"{name}_bias", hidden), eps=1e-12
        )

    def split(t: mf.Tensor) -> mf.Tensor:
        return graph.permute(graph.reshape(t, (batch, tokens, heads, head)), (0, 2, 1, 3))

    x = given("x", batch, tokens, hidden)
    q, k, v = split(linear(x, "q", hidden)), split(linear(x, "k", hidden)), split(linear(x, "v", hidden))
    scores = q @ k.mT / math.sqrt(head) + given("mask", batch, 1, 1, tokens)
    mixed = graph.permute(graph.softmax(scores, dim=-1) @ v, (0, 2, 1, 3))
    x = norm(x + linear(graph.reshape(mixed, (batch, tokens, hidden)), "out", hidden), "norm1")
    inner = graph.gelu(linear(x, "1", 4 * hidden))
    graph.mark_output(norm(x + linear(inner, "2", hidden, 4 * hidden), "norm2"))
    return graph


bert_layer = program()

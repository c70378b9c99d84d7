"""One layer of GPT-2 small for a prompt of 128 tokens: X + attention(norm(X)), then Y + mlp(norm(Y)).

Hidden 768, 12 heads of 64, inner 3072, float16; weights stand [in, out]. mask[1,128,128] is the causal mask.

    python -m mirage_formal.search examples/corpus/layers/gpt2_layer.py
"""

import math

import mirage_formal as mf

SMALL = {"tokens": 16, "heads": 2, "head": 16}


def program(tokens: int = 128, heads: int = 12, head: int = 64) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, name=name)

    def norm(t: mf.Tensor, name: str) -> mf.Tensor:
        return graph.layer_norm(t, weight=given(f"{name}_weight", hidden), bias=given(f"{name}_bias", hidden), eps=1e-5)

    x = given("x", tokens, hidden)
    h = graph.addmm(given("b_qkv", 3 * hidden), norm(x, "norm1"), given("w_qkv", hidden, 3 * hidden))
    q, k, v = (
        graph.transpose(graph.reshape(part, (tokens, heads, head)), 0, 1) for part in graph.split(h, hidden, dim=-1)
    )
    scores = q @ k.mT / math.sqrt(head) + given("mask", 1, tokens, tokens)
    mixed = graph.transpose(graph.softmax(scores, dim=-1) @ v, 0, 1)
    joined = graph.reshape(mixed, (tokens, hidden))
    x = x + graph.addmm(given("b_out", hidden), joined, given("w_out", hidden, hidden))

    inner = graph.addmm(given("b1", 4 * hidden), norm(x, "norm2"), given("w1", hidden, 4 * hidden))
    inner = graph.gelu(inner, approximate="tanh")
    graph.mark_output(x + graph.addmm(given("b2", hidden), inner, given("w2", 4 * hidden, hidden)))
    return graph


gpt2_layer = program()

"""One layer of GPT-J 6B for 64 tokens, attention and MLP beside each other: X + attention(H) + mlp(H), H = norm(X).

Hidden 4096, 16 heads of 256, inner 16384, float16; weights stand [in, out]. Positions are left out; mask[1,64,64] is
the causal mask.

    python -m mirage_formal.search examples/corpus/layers/parallel_layer.py
"""

import math

import mirage_formal as mf

SMALL = {"tokens": 16, "heads": 2, "head": 16}


def program(tokens: int = 64, heads: int = 16, head: int = 256) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, name=name)

    x = given("x", tokens, hidden)
    h = graph.layer_norm(x, weight=given("weight", hidden), bias=given("bias", hidden), eps=1e-5)
    q, k, v = (
        graph.transpose(graph.reshape(h @ given(name, hidden, hidden), (tokens, heads, head)), 0, 1)
        for name in ("w_q", "w_k", "w_v")
    )
    scores = q @ k.mT / math.sqrt(head) + given("mask", 1, tokens, tokens)
    mixed = graph.transpose(graph.softmax(scores, dim=-1) @ v, 0, 1)
    attention = graph.reshape(mixed, (tokens, hidden)) @ given("w_out", hidden, hidden)
    inner = graph.gelu(graph.addmm(given("b1", 4 * hidden), h, given("w1", hidden, 4 * hidden)), approximate="tanh")
    mlp = graph.addmm(given("b2", hidden), inner, given("w2", 4 * hidden, hidden))
    graph.mark_output(x + attention + mlp)
    return graph


parallel_layer = program()

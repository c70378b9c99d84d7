"""One layer of Llama 3 8B for a prompt of 128 tokens: rotary embedding, grouped-query attention, gated feed-forward.

Hidden 4096, 32 query and 8 key-value heads of 128, inner 14336, bfloat16; weights stand [out, in], eps = 1e-5. cos and
sin are [128,128] for the tokens' positions; mask[1,128,128] is the causal mask. The layer's keys and values are further
outputs, for the cache.

    python -m mirage_formal.search examples/corpus/layers/llama3_layer.py
"""

import math

import mirage_formal as mf

SMALL = {"tokens": 16, "heads": 4, "groups": 2, "head": 16, "inner": 48}


def program(tokens: int = 128, heads: int = 32, groups: int = 8, head: int = 128, inner: int = 14336) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, mf.bfloat16, name=name)

    def linear(t: mf.Tensor, name: str, out: int, into: int = hidden) -> mf.Tensor:
        return graph.linear(t, given(f"w_{name}", out, into))

    def split(t: mf.Tensor, count: int) -> mf.Tensor:
        return graph.transpose(graph.reshape(t, (tokens, count, head)), 0, 1)

    x = given("x", tokens, hidden)
    cos = given("cos", tokens, head)
    sin = given("sin", tokens, head)

    def rotary(t: mf.Tensor) -> mf.Tensor:
        low, high = graph.chunk(t, 2, dim=-1)
        turned: mf.Tensor = t * cos + graph.concat([-high, low], dim=-1) * sin
        return turned

    h = graph.rms_norm(x, weight=given("norm1", hidden), eps=1e-5)
    q = rotary(split(linear(h, "q", heads * head), heads))
    k = rotary(split(linear(h, "k", groups * head), groups))
    v = split(linear(h, "v", groups * head), groups)
    k_all = graph.repeat_interleave(k, heads // groups, 0)
    v_all = graph.repeat_interleave(v, heads // groups, 0)
    scores = q @ k_all.mT / math.sqrt(head) + given("mask", 1, tokens, tokens)
    mixed = graph.transpose(graph.softmax(scores, dim=-1) @ v_all, 0, 1)
    x = x + linear(graph.reshape(mixed, (tokens, hidden)), "out", hidden)

    h = graph.rms_norm(x, weight=given("norm2", hidden), eps=1e-5)
    gated = graph.silu(linear(h, "gate", inner)) * linear(h, "up", inner)
    graph.mark_output(x + linear(gated, "down", hidden, inner))
    graph.mark_output(k)
    graph.mark_output(v)
    return graph


llama3_layer = program()

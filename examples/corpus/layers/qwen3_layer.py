"""One layer of Qwen3 8B that decodes one token over 4096 cached keys: normalised queries and keys, gated feed-forward.

Hidden 4096, 32 query and 8 key-value heads of 128, inner 12288, bfloat16; weights stand [out, in], eps = 1e-6. The new
key and value are appended to the caches by concatenations; both are further outputs.

    python -m mirage_formal.search examples/corpus/layers/qwen3_layer.py
"""

import math

import mirage_formal as mf

SMALL = {"cached": 15, "heads": 4, "groups": 2, "head": 16, "inner": 48}


def program(cached: int = 4095, heads: int = 32, groups: int = 8, head: int = 128, inner: int = 12288) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, mf.bfloat16, name=name)

    def linear(t: mf.Tensor, name: str, out: int, into: int = hidden) -> mf.Tensor:
        return graph.linear(t, given(f"w_{name}", out, into))

    x = given("x", 1, hidden)
    cos = given("cos", 1, head)
    sin = given("sin", 1, head)

    def head_norm(t: mf.Tensor, name: str) -> mf.Tensor:
        t = graph.rms_norm(t, weight=given(name, head), eps=1e-6)
        turned: mf.Tensor = t * cos + graph.concat([-t[:, head // 2 :], t[:, : head // 2]], dim=-1) * sin
        return turned

    h = graph.rms_norm(x, weight=given("norm1", hidden), eps=1e-6)
    q = head_norm(graph.reshape(linear(h, "q", heads * head), (heads, head)), "norm_q")
    k = head_norm(graph.reshape(linear(h, "k", groups * head), (groups, head)), "norm_k")
    k = graph.unsqueeze(k, 1)
    v = graph.reshape(linear(h, "v", groups * head), (groups, 1, head))
    keys = graph.concat([given("k_cache", groups, cached, head), k], dim=1)
    values = graph.concat([given("v_cache", groups, cached, head), v], dim=1)
    q = graph.reshape(q, (groups, heads // groups, head))
    mixed = graph.softmax(q @ keys.mT / math.sqrt(head), dim=-1) @ values
    x = x + linear(graph.reshape(mixed, (1, heads * head)), "out", hidden)

    h = graph.rms_norm(x, weight=given("norm2", hidden), eps=1e-6)
    gated = graph.silu(linear(h, "gate", inner)) * linear(h, "up", inner)
    graph.mark_output(x + linear(gated, "down", hidden, inner))
    graph.mark_output(k)
    graph.mark_output(v)
    return graph


qwen3_layer = program()

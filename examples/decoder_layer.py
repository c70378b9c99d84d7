"""One decoder layer of Llama 3 8B that decodes one new token per sequence, over 4096 cached keys and values.

Hidden size 4096, 32 query heads and 8 key and value heads of 128, feed-forward size 14336, float16. Shapes, for a batch
of b sequences:

    X[b,4096]                      one new token of each sequence
    K[8b,128,4096] V[8b,4096,128]  the caches, one for each sequence and key-value head; keys stand transposed
    cos, sin[b,1,128]              the rotary embedding of each sequence's position
    turn[b,128,128]                rotate_half as a product: x @ turn is concat(-x[64:], x[:64]), for every sequence
    W_q[4096,4096] W_k, W_v[4096,1024] W_o[4096,4096] W_gate, W_up[4096,14336] W_down[14336,4096], norms[1,4096]

The outputs are the layer's result and the new token's key (rotated) and value, which the caller appends to the caches.
The new token attends to itself without a concatenation of the caches: with E = exp of the scores of the cached keys and
e = exp of the score of the new one, its attention is (E V + e v) / (sum E + e). There is no running maximum, which
would cancel in this quotient: scores have to stay within what exp can do in float16.

The layer is larger than one search takes: it is cut into parts, each distinct one is searched, and the whole is proved.

    python -m mirage_formal.search examples/decoder_layer.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/decoder_layer.py
    python examples/decoder_layer.py 8
"""

import os
import sys
from dataclasses import dataclass

import mirage_formal as mf


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model; the defaults are those of Llama 3 8B."""

    hidden: int = 4096
    heads: int = 32
    groups: int = 8
    head: int = 128
    inner: int = 14336
    cached: int = 4096


def program(batch: int, sizes: Sizes = Sizes()) -> mf.Graph:
    """The layer for a batch of ``batch`` sequences."""
    s = sizes
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims=dims, dtype=mf.float16, name=name)

    x = given("X", batch, s.hidden)
    k_cache = given("K", s.groups * batch, s.head, s.cached)
    v_cache = given("V", s.groups * batch, s.cached, s.head)
    cos, sin = given("cos", batch, 1, s.head), given("sin", batch, 1, s.head)
    turn = given("turn", batch, s.head, s.head)

    def rotary(t: mf.Tensor) -> mf.Tensor:
        return graph.add(graph.mul(t, cos), graph.mul(graph.matmul(t, turn), sin))

    # Attention: queries of one group share its key and value.
    h = graph.rms_norm(x, weight=given("norm_attention", 1, s.hidden), eps=1e-5)
    q = graph.matmul(h, given("W_q", s.hidden, s.heads * s.head))
    k = graph.matmul(h, given("W_k", s.hidden, s.groups * s.head))
    v = graph.matmul(h, given("W_v", s.hidden, s.groups * s.head))
    q = rotary(graph.reshape(q, (batch, s.heads, s.head)))
    k = rotary(graph.reshape(k, (batch, s.groups, s.head)))
    v = graph.reshape(v, (s.groups * batch, 1, s.head))
    q = graph.reshape(q, (s.groups * batch, s.heads // s.groups, s.head))
    scale = s.head**-0.5
    old = graph.exp(graph.scale(graph.matmul(q, k_cache), scale))
    new = graph.exp(graph.scale(graph.matmul(q, graph.reshape(k, (s.groups * batch, s.head, 1))), scale))
    total = graph.add(graph.reduction(old, 2), new)
    mixed = graph.div(graph.add(graph.matmul(old, v_cache), graph.mul(new, v)), total)
    mixed = graph.reshape(mixed, (batch, s.heads * s.head))
    x = graph.add(x, graph.matmul(mixed, given("W_o", s.heads * s.head, s.hidden)))

    # Feed-forward, gated.
    h = graph.rms_norm(x, weight=given("norm_feed_forward", 1, s.hidden), eps=1e-5)
    gate = graph.silu(graph.matmul(h, given("W_gate", s.hidden, s.inner)))
    up = graph.matmul(h, given("W_up", s.hidden, s.inner))
    x = graph.add(x, graph.matmul(graph.mul(gate, up), given("W_down", s.inner, s.hidden)))

    graph.mark_output(x)
    graph.mark_output(k)
    graph.mark_output(v)
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
decoder_layer = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(decoder_layer, name=f"decoder_layer_{BATCH}"):
        print(result)

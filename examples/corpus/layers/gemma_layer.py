"""One layer of Gemma 2B that decodes one token of each of 4 sequences over 1024 keys, with one key-value head.

Hidden 2048, 8 query heads of 256, inner 16384, float16; the norms' weights are offsets from 1, eps = 1e-6, the gate is
the tanh form of gelu. Positions are left out: queries and cached keys are rotated elsewhere.

    python -m mirage_formal.search examples/corpus/layers/gemma_layer.py
"""

import mirage_formal as mf

SMALL = {"batch": 2, "keys": 16, "heads": 2, "head": 16, "inner": 48}


def program(batch: int = 4, keys: int = 1024, heads: int = 8, head: int = 256, inner: int = 16384) -> mf.Graph:
    hidden = heads * head
    graph = mf.new_kernel_graph()

    def given(name: str, *dims: int) -> mf.Tensor:
        return graph.new_input(dims, name=name)

    def norm(t: mf.Tensor, name: str) -> mf.Tensor:
        normed: mf.Tensor = graph.rms_norm(t, eps=1e-6) * (1 + given(name, hidden))
        return normed

    x = given("x", batch, hidden)
    k = given("k", batch, keys, head)
    v = given("v", batch, keys, head)
    q = graph.reshape(norm(x, "norm1") @ given("w_q", hidden, hidden), (batch, heads, head))
    mixed = graph.softmax(q @ k.mT * head**-0.5, dim=-1) @ v
    x = x + graph.reshape(mixed, (batch, hidden)) @ given("w_out", hidden, hidden)
    h = norm(x, "norm2")
    gate = graph.gelu(h @ given("w_gate", hidden, inner), approximate="tanh")
    graph.mark_output(x + gate * (h @ given("w_up", hidden, inner)) @ given("w_down", inner, hidden))
    return graph


gemma_layer = program()

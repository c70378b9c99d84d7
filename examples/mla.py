"""Latent attention: two linear layers in front of attention, O = (exp(Q K) / rowsum exp(Q K)) V, K = Wk C^T, V = C Wv.

One head of a large model with latent attention: head dim 128, latent dim 512, 4096 cached tokens, 64b query rows. The
cache holds the latent in both layouts, as examples/attn.py holds its keys transposed; K and V need never be in device
memory. Shapes: Q[64b,128] Wk[128,512] CT[512,4096] C[4096,512] Wv[512,128], float16.

    python -m mirage_formal.search examples/mla.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/mla.py
    python examples/mla.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int, *, rows: int = 64, head: int = 128, latent: int = 512, keys: int = 4096) -> mf.Graph:
    """The program for ``rows * batch`` queries."""
    graph = mf.new_kernel_graph()
    q = graph.new_input(dims=(rows * batch, head), dtype=mf.float16, name="Q")
    wk = graph.new_input(dims=(head, latent), dtype=mf.float16, name="Wk")
    ct = graph.new_input(dims=(latent, keys), dtype=mf.float16, name="CT")
    c = graph.new_input(dims=(keys, latent), dtype=mf.float16, name="C")
    wv = graph.new_input(dims=(latent, head), dtype=mf.float16, name="Wv")
    weights = graph.exp(graph.matmul(q, graph.matmul(wk, ct)))
    total = graph.reduction(weights, 1)
    graph.mark_output(graph.matmul(graph.div(weights, total), graph.matmul(c, wv)))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
mla = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(mla, config="attention", name="mla"):
        print(result)

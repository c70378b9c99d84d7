"""Attention with normalised heads, in two variants; rms_norm over 64 elements, without weights.

- ``qk``: Q and K are normalised along the head dim, which is the last of Q[2b,256,64] and dim 1 of K[2b,64,4096].
- ``qv``: Q and V are, along their last dims, as some published measurements of this workload have it.

    python -m mirage_formal.search examples/qknorm.py --program qk
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/qknorm.py
    python examples/qknorm.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int, *, norm_keys: bool) -> mf.Graph:
    """The program for a batch of ``batch``, with K normalised, or else V."""
    graph = mf.new_kernel_graph()
    q = graph.new_input(dims=(2 * batch, 256, 64), dtype=mf.float16, name="Q")
    k = graph.new_input(dims=(2 * batch, 64, 4096), dtype=mf.float16, name="K")
    v = graph.new_input(dims=(2 * batch, 4096, 64), dtype=mf.float16, name="V")
    q = graph.rms_norm(q, dim=2)
    if norm_keys:
        k = graph.rms_norm(k, dim=1)
    else:
        v = graph.rms_norm(v, dim=2)
    weights = graph.exp(graph.matmul(q, k))
    total = graph.reduction(weights, 2)
    graph.mark_output(graph.matmul(graph.div(weights, total), v))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
qk = program(BATCH, norm_keys=True)
qv = program(BATCH, norm_keys=False)

if __name__ == "__main__":
    for name, graph in (("qk", qk), ("qv", qv)):
        for result in mf.superoptimize(graph, config="attention", name=name):
            print(result)

"""Multi-head attention, 32 heads, no running maximum: O = (exp(Q K) / rowsum exp(Q K)) V.

Shapes: Q[32b,16,64] K[32b,64,4096] V[32b,4096,64], float16.

    python -m mirage_formal.search examples/mha.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/mha.py
    python examples/mha.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int) -> mf.Graph:
    """The program for a batch of ``batch``."""
    graph = mf.new_kernel_graph()
    q = graph.new_input(dims=(32 * batch, 16, 64), dtype=mf.float16, name="Q")
    k = graph.new_input(dims=(32 * batch, 64, 4096), dtype=mf.float16, name="K")
    v = graph.new_input(dims=(32 * batch, 4096, 64), dtype=mf.float16, name="V")
    weights = graph.exp(graph.matmul(q, k))
    total = graph.reduction(weights, 2)
    graph.mark_output(graph.matmul(graph.div(weights, total), v))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
mha = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(mha, config="attention", name="mha"):
        print(result)

"""Multi-query attention: the rows of all heads share one key head: O = (exp(Q K) / rowsum exp(Q K)) V.

Shapes: Q[b,1024,64] K[b,64,4096] V[b,4096,64], float16.

    python -m mirage_formal.search examples/mqa.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/mqa.py
    python examples/mqa.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int) -> mf.Graph:
    """The program for a batch of ``batch``."""
    graph = mf.new_kernel_graph()
    q = graph.new_input(dims=(batch, 1024, 64), dtype=mf.float16, name="Q")
    k = graph.new_input(dims=(batch, 64, 4096), dtype=mf.float16, name="K")
    v = graph.new_input(dims=(batch, 4096, 64), dtype=mf.float16, name="V")
    weights = graph.exp(graph.matmul(q, k))
    total = graph.reduction(weights, 2)
    graph.mark_output(graph.matmul(graph.div(weights, total), v))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
mqa = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(mqa, config="attention", name="mqa"):
        print(result)

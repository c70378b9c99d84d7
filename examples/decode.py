"""Attention of one new token per sequence over 4096 cached keys, without a running maximum.

Shapes: Q[64b,1,128] K[64b,128,4096] V[64b,4096,128], float16.

    python -m mirage_formal.search examples/decode.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/decode.py
    python examples/decode.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int) -> mf.Graph:
    """The program for a batch of ``batch``."""
    graph = mf.new_kernel_graph()
    q = graph.new_input(dims=(64 * batch, 1, 128), dtype=mf.float16, name="Q")
    k = graph.new_input(dims=(64 * batch, 128, 4096), dtype=mf.float16, name="K")
    v = graph.new_input(dims=(64 * batch, 4096, 128), dtype=mf.float16, name="V")
    weights = graph.exp(graph.matmul(q, k))
    total = graph.reduction(weights, 2)
    graph.mark_output(graph.matmul(graph.div(weights, total), v))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
decode = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(decode, config="attention", name="decode"):
        print(result)

"""Normalisation and a linear layer: rms_norm(X) W.

Shapes: X[2b,4096] W[4096,6144], float16.

    python -m mirage_formal.search examples/rmsnorm.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/rmsnorm.py
    python examples/rmsnorm.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int) -> mf.Graph:
    """The program for a batch of ``batch``."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(2 * batch, 4096), dtype=mf.float16, name="X")
    w = graph.new_input(dims=(4096, 6144), dtype=mf.float16, name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
rmsnorm = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(rmsnorm, config="norm", name="rmsnorm"):
        print(result)

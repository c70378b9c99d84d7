"""The gated half of a feed-forward layer: silu(X W1) * (X W2).

Shapes: X[8b,4096] W1, W2[4096,4096], float16.

    python -m mirage_formal.search examples/gated_mlp.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/gated_mlp.py
    python examples/gated_mlp.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int) -> mf.Graph:
    """The program for a batch of ``batch``."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8 * batch, 4096), dtype=mf.float16, name="X")
    w1 = graph.new_input(dims=(4096, 4096), dtype=mf.float16, name="W1")
    w2 = graph.new_input(dims=(4096, 4096), dtype=mf.float16, name="W2")
    graph.mark_output(graph.mul(graph.silu(graph.matmul(x, w1)), graph.matmul(x, w2)))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
gated_mlp = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(gated_mlp, config="mlp", name="gated_mlp"):
        print(result)

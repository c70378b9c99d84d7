"""The residual step of a normalised transformer: rms_norm(X + alpha * (rms_norm(H) + X)).

Shapes: H, X and alpha are all [8b,4096], float16; alpha is a full tensor.

    python -m mirage_formal.search examples/ntrans.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/ntrans.py
    python examples/ntrans.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int) -> mf.Graph:
    """The program for a batch of ``batch``."""
    graph = mf.new_kernel_graph()
    h = graph.new_input(dims=(8 * batch, 4096), dtype=mf.float16, name="H")
    x = graph.new_input(dims=(8 * batch, 4096), dtype=mf.float16, name="X")
    alpha = graph.new_input(dims=(8 * batch, 4096), dtype=mf.float16, name="alpha")
    step = graph.mul(alpha, graph.add(graph.rms_norm(h), x))
    graph.mark_output(graph.rms_norm(graph.add(x, step)))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
ntrans = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(ntrans, config="norm", name="ntrans"):
        print(result)

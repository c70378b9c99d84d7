"""A linear layer with a low-rank adapter: X W + (X A) B.

Shapes: X[16b,256] W[256,4096] A[256,16] B[16,4096], float16.

    python -m mirage_formal.search examples/lora.py
    MIRAGE_BATCH=8 python -m mirage_formal.search examples/lora.py
    python examples/lora.py 8
"""

import os
import sys

import mirage_formal as mf


def program(batch: int) -> mf.Graph:
    """The program for a batch of ``batch``."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(16 * batch, 256), dtype=mf.float16, name="X")
    w = graph.new_input(dims=(256, 4096), dtype=mf.float16, name="W")
    a = graph.new_input(dims=(256, 16), dtype=mf.float16, name="A")
    b = graph.new_input(dims=(16, 4096), dtype=mf.float16, name="B")
    graph.mark_output(graph.add(graph.matmul(x, w), graph.matmul(graph.matmul(x, a), b)))
    return graph


BATCH = int(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("MIRAGE_BATCH", "1"))
lora = program(BATCH)

if __name__ == "__main__":
    for result in mf.superoptimize(lora, config="lora", name="lora"):
        print(result)

"""Small programs that are larger than the operator limits of small spaces."""

from __future__ import annotations

from typing import Any

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph

#: A space in which one kernel of six operators is all there is; parts of at most that size are searched.
TINY: dict[str, Any] = {"config": "tiny", "workers": 1, "keep": 2}


def layers(count: int = 2) -> KernelGraph:
    """Equal layers with residuals, a view of the last one, and its softmax: two outputs."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), name="X")
    for number in range(count):
        gate = graph.new_input(dims=(8, 8), name=f"G{number}")
        up = graph.new_input(dims=(8, 8), name=f"U{number}")
        h = graph.rms_norm(x)
        x = graph.add(x, graph.mul(graph.silu(graph.matmul(h, gate)), graph.matmul(h, up)))
    power = graph.exp(graph.reshape(x, (2, 2, 8)))
    graph.mark_output(x)
    graph.mark_output(graph.div(power, graph.reduction(power, 2)))
    return graph.freeze()

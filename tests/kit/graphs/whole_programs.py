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


def projections(widths: tuple[int, ...] = (32, 16, 16)) -> KernelGraph:
    """Products of several widths behind one norm, each an output."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 32), name="X")
    weights = [graph.new_input(dims=(32, width), name=f"W{i}") for i, width in enumerate(widths)]
    h = graph.rms_norm(x)
    for weight in weights:
        graph.mark_output(graph.matmul(h, weight))
    return graph.freeze()


def gates() -> KernelGraph:
    """The new cell and output of a recurrent unit: two outputs, the first of which reads the second."""
    graph = mf.new_kernel_graph()
    f, c, i, j, o = (graph.new_input(dims=(16, 32), name=name) for name in "FCIJO")
    cell = graph.add(graph.mul(graph.sigmoid(f), c), graph.mul(graph.sigmoid(i), graph.tanh(j)))
    graph.mark_output(graph.mul(graph.sigmoid(o), graph.tanh(cell)))
    graph.mark_output(cell)
    return graph.freeze()


def sum_and_norm() -> KernelGraph:
    """A residual sum and its norm, both of which are outputs."""
    graph = mf.new_kernel_graph()
    x, y = graph.new_input(dims=(8, 32), name="X"), graph.new_input(dims=(8, 32), name="Y")
    total = graph.add(x, y)
    graph.mark_output(graph.rms_norm(total))
    graph.mark_output(total)
    return graph.freeze()


def long_chain(width: int = 32) -> KernelGraph:
    """Eighteen elementwise operators on six tensors, and a norm among them: too many for one kernel of any space."""
    graph = mf.new_kernel_graph()
    a, b, c, d, e, f = (graph.new_input(dims=(16, width), name=name) for name in "ABCDEF")
    t = graph.add(graph.mul(graph.sigmoid(a), b), graph.mul(graph.tanh(c), d))
    u = graph.add(graph.mul(graph.exp(t), e), graph.square(f))
    s = graph.add(graph.rms_norm(u), t)
    graph.mark_output(graph.add(graph.mul(graph.relu(s), graph.sigmoid(s)), graph.mul(a, f)))
    return graph.freeze()

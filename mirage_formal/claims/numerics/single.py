"""One kernel of a µGraph as a graph of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.types import DTensor, row_major


def alone(op: Any, types: Sequence[DTensor]) -> KernelGraph:
    """A program of one kernel, whose inputs are like the tensors of these types that it reads."""
    read = [types[number] for number in op.operands]
    inputs = tuple(Input(f"x{i}", tensor, row_major(tensor.shape)) for i, tensor in enumerate(read))
    own = replace(op, operands=tuple(range(len(read))))
    return KernelGraph(inputs, (own,), tuple(range(len(read), len(read) + op.results)))

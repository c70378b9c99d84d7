"""Extraction of one kernel of a µGraph as a graph of its own, and the element type of its products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mirage_formal.graph.check import block_types
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType, row_major


def extract_kernel(op: Any, types: Sequence[DTensor]) -> KernelGraph:
    """Return a program of one kernel, with an input for each tensor that it reads."""
    read = [types[number] for number in op.operands]
    inputs = tuple(Input(f"x{i}", tensor, row_major(tensor.shape)) for i, tensor in enumerate(read))
    own = replace(op, operands=tuple(range(len(read))))
    return KernelGraph(inputs, (own,), tuple(range(len(read), len(read) + op.results)))


def product_type(op: KernelOp, types: Sequence[DTensor]) -> DType:
    """Return the element type that a kernel rounds the operands of its products to; float32 if it has none.

    Args:
        op: The kernel.
        types: Types of the tensors of its graph.
    """
    operands = tuple(types[number] for number in op.operands)
    if isinstance(op, GraphDefined):
        tiles = block_types(op.graph, operands)
        products = [x for x in op.graph.ops if isinstance(x, Op) and x.kind is OpKind.MATMUL]
        found = [tiles[x.operands[0]].dtype for x in products]
    else:
        found = [operands[0].dtype] if op.kind is OpKind.MATMUL else []
    return next((dtype for dtype in found if dtype is not DType.FLOAT32), DType.FLOAT32)

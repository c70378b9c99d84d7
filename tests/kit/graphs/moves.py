"""Which kernels of a graph only move elements, and which operators make a constant of a tensor."""

from __future__ import annotations

from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, operators
from mirage_formal.graph.ops import SPECS, Family, OpKind
from mirage_formal.graph.storage_views import launched_operators


def copies(graph: KernelGraph) -> list[OpKind]:
    """Return the operator of each kernel that computes nothing: its own, or the last one of its block graph."""
    found = []
    for position in launched_operators(graph):
        op = graph.ops[position]
        inside = op.graph.ops if isinstance(op, GraphDefined) else (op,)
        kinds = [one.kind for one in inside if isinstance(one, Op)]
        if all(SPECS[kind].family is Family.MOVE or kind is OpKind.ACCUM_CONCAT for kind in kinds):
            found.append(kinds[-1])
    return found


def zeros(graph: KernelGraph) -> int:
    """Return how many operators multiply by 0, at all levels: no element of what they read matters."""
    return sum(op.kind is OpKind.SCALE and not op.attrs.factor for op in operators(graph))

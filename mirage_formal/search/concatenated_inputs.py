"""Concatenated inputs as sums of pads: the search sees a sum as one input, and a kernel computes it.

A concatenation of inputs is a sum of pads (``search.normalize_layout_ops``), [a; b] = [a; 0] + [0; b]. A search that
has to find this sum in every kernel takes long, so it gets the sum as an input instead. In each candidate, every kernel
that reads the sum then reads the pads, which are views (``graph.storage_views``), and adds its tiles of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, TypeVar

from mirage_formal.graph.edit import number_in_order, pair_operators_with_results
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    enumerate_results,
)
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import storage_locations
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure
from mirage_formal.rewrite.graph_builders import KernelGraphBuilder

_T = TypeVar("_T")
_Pads = tuple[Attrs, ...]

#: Elementwise operators of one operand that map zeros to zeros, as the prover knows.
KEEP_ZERO: Final = frozenset({OpKind.SCALE, OpKind.SQUARE, OpKind.SQRT, OpKind.ABS, OpKind.TANH})
#: Most pads that a kernel reads in place of one tensor.
_MOST: Final = 4


def reading_operator(tensor: DTensor) -> OpKind:
    """Return an elementwise operator that reads a tensor and whose result is no view of it."""
    return OpKind.ABS if tensor.dtype.floating else OpKind.LOGICAL_NOT


def pad_expressions(graph: KernelGraph) -> frozenset[int]:
    """Return the pads of inputs and of views of inputs, and zero-preserving elementwise operators over such tensors."""
    if not any(isinstance(op, Op) and op.kind is OpKind.PAD for op in graph.ops):
        return frozenset()
    count, known, types = len(graph.inputs), storage_locations(graph), kernel_types(graph)
    found: set[int] = set()
    for first, op in enumerate_results(count, graph.ops):
        if not isinstance(op, Op):
            continue
        inside = found.issuperset(op.operands)
        if op.kind is OpKind.PAD:
            good = inside or known[op.operands[0]].base < count
        elif op.kind is OpKind.ADD:
            good = inside and all(types[i].shape == types[first].shape for i in op.operands)
        else:
            good = inside and op.kind in KEEP_ZERO
        if good:
            found.add(first)
    return frozenset(found)


def fuse_concatenations(graph: KernelGraph) -> KernelGraph:
    """Return the graph with kernels that read pads and compute the sums of them themselves.

    Sound: nothing is accepted here; candidates are proved as they come out. Zeros stay zeros under the operators, so
    a tile of the tensor is the operators' result on the tiles of the pads.
    """
    return _absorb_concatenations(graph) or graph


def sink_pads_to_inputs(graph: KernelGraph) -> KernelGraph:
    """Return the graph with pads at inputs and views of inputs only; pads of sums and functions move to operands."""
    return _sink_pads(graph) or graph


class _PadRewriter:
    """A builder of a new graph, with the pads of sums and functions distributed over their operands.

    Args:
        graph: The old graph.
        share: As of the builder.
    """

    def __init__(self, graph: KernelGraph, share: Container[OpKind]) -> None:
        self.new = KernelGraphBuilder(graph.inputs, share)
        self.number = list(range(len(graph.inputs)))
        inside = pad_expressions(graph)
        items = enumerate_results(len(graph.inputs), graph.ops)
        self.makers = {first: op for first, op in items if first in inside and isinstance(op, Op)}

    def fold(
        self, tensor: int, leaf: Callable[[int, _Pads], _T], node: Callable[[Op, list[_T]], _T], pads: _Pads = ()
    ) -> _T:
        """Return the value of a tensor of the old graph, under further pads.

        Args:
            tensor: The tensor.
            leaf: Returns the value of a view of an input, or another tensor, under pads.
            node: Returns the value of an operator's result, given those of its operands under the same pads.
            pads: The further pads.
        """
        op = self.makers.get(tensor)
        if op is None:
            return leaf(tensor, pads)
        if op.kind is OpKind.PAD:
            return self.fold(op.operands[0], leaf, node, (op.attrs, *pads))
        return node(op, [self.fold(operand, leaf, node, pads) for operand in op.operands])

    def pad(self, tensor: int, pads: _Pads) -> int:
        """Emit the pads of a tensor of the old graph."""
        found = self.number[tensor]
        for attrs in pads:
            found = self.new.emit(OpKind.PAD, found, attrs=attrs)
        return found

    def pad_count(self, tensor: int) -> int:
        """Return the number of pads under the sums and functions that a tensor is made of."""
        return self.fold(tensor, lambda *_: 1, lambda _, counts: sum(counts))

    def is_pad(self, tensor: int) -> bool:
        """Return whether a tensor is made by pads only, without sums and functions."""
        return self.fold(tensor, lambda *_: True, lambda *_: False)


@none_on_match_failure
def _sink_pads(graph: KernelGraph) -> KernelGraph | None:
    made = _PadRewriter(graph, OpKind.__members__.values())
    for first, op in enumerate_results(len(graph.inputs), graph.ops):
        if not isinstance(op, Op):
            raise MatchFailure("expected predefined operators")
        inside = first in made.makers
        made.number.append(
            made.fold(first, made.pad, made.new.copy)
            if inside
            else made.new.copy(op, [made.number[n] for n in op.operands])
        )
    return made.new.finish([made.number[n] for n in graph.outputs])


@none_on_match_failure
def _absorb_concatenations(graph: KernelGraph) -> KernelGraph | None:
    made = _PadRewriter(graph, {OpKind.PAD})
    wanted = {n for n in made.makers if not made.is_pad(n) and made.pad_count(n) <= _MOST}
    if not any(isinstance(op, GraphDefined) and wanted.intersection(op.operands) for op in graph.ops):
        raise MatchFailure("no kernel reads a sum of pads")
    for op in graph.ops:
        if isinstance(op, GraphDefined):
            made.number += made.new.define(*_read_pads(made, op, wanted))
        else:
            made.number += made.new.place(op, [made.number[n] for n in op.operands])
    return made.new.finish([made.number[n] for n in graph.outputs])


def _read_pads(made: _PadRewriter, op: GraphDefined, wanted: set[int]) -> tuple[BlockGraph, list[int]]:
    """Return a block graph that reads pads and computes the sums of them first, and the operands in the new graph."""
    block, fresh = op.graph, count(len(op.operands) + sum(item.results for item in op.graph.ops))
    operands: list[int] = []
    reads: dict[int, InputIterator] = {}
    items: list[tuple[BlockOp, Sequence[int]]] = []
    stands: dict[int, int] = {}
    for position, (tensor, iterator) in enumerate(zip(op.operands, block.inputs, strict=True)):

        def leaf(source: int, pads: _Pads, iterator: InputIterator = iterator) -> int:
            operands.append(made.pad(source, pads))
            reads[tile := next(fresh)] = iterator
            return tile

        def node(inner: Op, parts: list[int]) -> int:
            items.append((replace(inner, operands=tuple(parts)), (result := next(fresh),)))
            return result

        stands[position] = made.fold(tensor, leaf, node) if tensor in wanted else leaf(tensor, ())
    for item, results in pair_operators_with_results(len(block.inputs), block.ops):
        items.append((replace(item, operands=tuple(stands.get(n, n) for n in item.operands)), results))
    ops, number = number_in_order(reads, items)
    savers = tuple(replace(saver, operand=number[saver.operand]) for saver in block.outputs)
    return replace(block, inputs=tuple(reads.values()), ops=ops, outputs=savers), operands


__all__ = ["KEEP_ZERO", "fuse_concatenations", "pad_expressions", "reading_operator", "sink_pads_to_inputs"]

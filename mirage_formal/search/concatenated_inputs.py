"""Concatenated inputs as sums of pads: the search sees a sum as one input, and a kernel computes it.

A concatenation of inputs is a sum of pads (``search.normalize_layout_ops``), [a; b] = [a; 0] + [0; b]. A search that
has to find this sum in every kernel takes long, so it gets the sum as an input instead. In each candidate, every kernel
that reads the sum then reads the pads, which are views (``graph.views``), and adds its tiles of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.edit import eliminate_dead_code, renumber
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    enumerate_results,
)
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.views import storage_locations

#: Elementwise operators of one operand that map zeros to zeros, as the prover knows.
KEEP_ZERO: Final = frozenset({OpKind.SCALE, OpKind.SQUARE, OpKind.SQRT, OpKind.ABS, OpKind.TANH})
#: Most pads that a kernel reads in place of one tensor.
_MOST: Final = 4


@dataclass(frozen=True, slots=True)
class _PaddedView:
    """A view of an input with zeros around it."""

    source: int
    pads: tuple[Attrs, ...]


@dataclass(frozen=True, slots=True)
class _OperatorNode:
    """Tree node: an elementwise operator over pads and other such nodes."""

    op: Op
    parts: tuple[_PaddedView | _OperatorNode, ...]


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


def absorb_concatenations(graph: KernelGraph) -> KernelGraph:
    """Return the graph with kernels that read pads and compute the sums of them themselves.

    Sound: nothing is accepted here; candidates are proved as they come out. Zeros stay zeros under the operators, so
    a tile of the tensor is the operators' result on the tiles of the pads.
    """
    inside = pad_expressions(graph)
    trees: dict[int, _PaddedView | _OperatorNode] = {}
    for first, op in enumerate_results(len(graph.inputs), graph.ops):
        if first in inside and isinstance(op, Op):
            trees[first] = _pad_tree_of(op, trees)
    wanted = {
        n for n, tree in trees.items() if isinstance(tree, _OperatorNode) and len(list(_tree_pads(tree))) <= _MOST
    }
    if not any(isinstance(op, GraphDefined) and wanted.intersection(op.operands) for op in graph.ops):
        return graph
    number = list(range(len(graph.inputs)))
    ops: list[KernelOp] = []
    made: dict[KernelOp, int] = {}
    count = len(number)

    def put(op: KernelOp) -> int:
        """Add an operator and return the number of its first result; equal pads are added once."""
        nonlocal count
        pad = isinstance(op, Op) and op.kind is OpKind.PAD
        if not (pad and op in made):
            ops.append(op)
            made[op], count = count, count + op.results
        return made[op]

    for op in graph.ops:
        if isinstance(op, Op):
            first = put(renumber(op, number))
        else:
            operands: list[int] = []
            for n in op.operands:
                for pad in _tree_pads(trees[n]) if n in wanted else ():
                    last = number[pad.source]
                    for attrs in pad.pads:
                        last = put(Op(OpKind.PAD, (last,), attrs))
                    operands.append(last)
                if n not in wanted:
                    operands.append(number[n])
            first = put(GraphDefined(tuple(operands), _block_over_pads(op, trees, wanted)))
        number += range(first, first + op.results)
    return eliminate_dead_code(replace(graph, ops=tuple(ops), outputs=tuple(number[n] for n in graph.outputs)))


def sink_pads_to_inputs(graph: KernelGraph) -> KernelGraph:
    """Return the graph with pads at inputs and views of inputs only; pads of sums and functions move to operands."""
    count, inside = len(graph.inputs), pad_expressions(graph)
    trees: dict[int, _PaddedView | _OperatorNode] = {}
    number = list(range(count))
    ops: list[KernelOp] = []
    made: dict[KernelOp, int] = {}

    def put(op: Op) -> int:
        if op not in made:
            ops.append(op)
            made[op] = count + len(ops) - 1
        return made[op]

    def grown(tree: _PaddedView | _OperatorNode) -> int:
        if isinstance(tree, _OperatorNode):
            return put(replace(tree.op, operands=tuple(grown(part) for part in tree.parts)))
        return reduce(lambda last, attrs: put(Op(OpKind.PAD, (last,), attrs)), tree.pads, number[tree.source])

    for first, op in enumerate_results(count, graph.ops):
        if not isinstance(op, Op):
            return graph
        if first in inside:
            trees[first] = _pad_tree_of(op, trees)
            number.append(grown(trees[first]))
        else:
            number.append(put(renumber(op, number)))
    return eliminate_dead_code(replace(graph, ops=tuple(ops), outputs=tuple(number[n] for n in graph.outputs)))


def _pad_tree_of(op: Op, trees: dict[int, _PaddedView | _OperatorNode]) -> _PaddedView | _OperatorNode:
    if op.kind is not OpKind.PAD:
        return _OperatorNode(op, tuple(trees[i] for i in op.operands))
    below = trees.get(op.operands[0])
    return _PaddedView(op.operands[0], (op.attrs,)) if below is None else _pad_tree(below, op.attrs)


def _pad_tree(tree: _PaddedView | _OperatorNode, attrs: Attrs) -> _PaddedView | _OperatorNode:
    """Return a further pad of a tree's result, as a tree with each of its pads padded."""
    if isinstance(tree, _PaddedView):
        return replace(tree, pads=(*tree.pads, attrs))
    return replace(tree, parts=tuple(_pad_tree(part, attrs) for part in tree.parts))


def _tree_pads(tree: _PaddedView | _OperatorNode) -> Iterator[_PaddedView]:
    if isinstance(tree, _PaddedView):
        yield tree
    else:
        for part in tree.parts:
            yield from _tree_pads(part)


def _block_over_pads(op: GraphDefined, trees: dict[int, _PaddedView | _OperatorNode], wanted: set[int]) -> BlockGraph:
    """Return the block graph over the pads; the operators that compute the sums come first."""
    block = op.graph
    iterators: list[InputIterator] = []
    first: list[int] = []  # for each old iterator, its first new one
    for n, iterator in zip(op.operands, block.inputs, strict=True):
        first.append(len(iterators))
        iterators += [iterator] * (len(list(_tree_pads(trees[n]))) if n in wanted else 1)
    ops: list[BlockOp] = []

    def put(tree: _PaddedView | _OperatorNode, leaves: Iterator[int]) -> int:
        if isinstance(tree, _PaddedView):
            return next(leaves)
        operands = tuple(put(part, leaves) for part in tree.parts)
        ops.append(replace(tree.op, operands=operands))
        return len(iterators) + len(ops) - 1

    number = [
        put(trees[n], iter(range(start, len(iterators)))) if n in wanted else start
        for n, start in zip(op.operands, first, strict=True)
    ]
    count = len(iterators) + len(ops)
    for item in block.ops:
        ops.append(renumber(item, number))
        number += range(count, count + item.results)
        count += item.results
    savers = tuple(replace(saver, operand=number[saver.operand]) for saver in block.outputs)
    return replace(block, inputs=tuple(iterators), ops=tuple(ops), outputs=savers)


__all__ = ["KEEP_ZERO", "absorb_concatenations", "pad_expressions", "reading_operator", "sink_pads_to_inputs"]

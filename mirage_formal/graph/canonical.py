"""Canonical form of graphs that differ only in order, and its digest.

These orders may vary:

- of operators, as far as operands allow, and of the operands of commutative operators;
- of the input iterators and output savers of a block graph, with the operands and results that go with them;
- of the inputs and outputs of a thread graph, and of grid axes.

Inputs and outputs of the program keep their order, which its caller knows. Maps of grid axes of extent 1, the loop dim
of a loop of one iteration and a reduction_dimx that no operator reads mean nothing and get fixed values. Operators that
compute one value twice are not merged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from heapq import heapify, heappop, heappush
from typing import Final, TypeVar, assert_never

import msgspec

from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
    ThreadDefined,
    ThreadGraph,
    enumerate_results,
)
from mirage_formal.graph.graph_schema import record_of
from mirage_formal.graph.labelling import Nodes, canonical_labels
from mirage_formal.graph.ops import SPECS
from mirage_formal.graph.types import DimMap
from mirage_formal.graph.verifier import kernel_types

_UNREAD_DIMX: Final = 64
_A = TypeVar("_A", Op, BlockOp, KernelOp)


def canonical(graph: KernelGraph) -> KernelGraph:
    """Return the canonical form of a graph; a fixed point of this function.

    Sound: only numbering, the order of commutative operands and the naming of grid axes change, and axes are renamed
    only in block graphs where no two of them split one dim, so every tensor keeps its value.

    Raises:
        GraphError: The graph is not well-formed.
        UnsupportedError: The graph computes equal values so often that its symmetries cannot be searched.
    """
    kernel_types(graph)
    plain = replace(
        graph, ops=tuple(_drop_unused_fields(op) if isinstance(op, GraphDefined) else op for op in graph.ops)
    )
    flat = _ColouredGraph()
    flat.kernel(plain)
    return _CanonicalBuilder(flat, canonical_labels(flat.nodes)).kernel(plain)


def digest(graph: KernelGraph) -> str:
    """Return the sha256, in hexadecimal, of the compact JSON text, keys sorted, of the canonical form.

    It covers everything a graph has: topology, attributes, and the inputs' names, shapes, strides and element types.
    """
    return canonical_with_digest(graph)[1]


def canonical_with_digest(graph: KernelGraph, form: KernelGraph | None = None) -> tuple[KernelGraph, str]:
    """Return the canonical form of a graph, computed unless given, and its digest; see ``canonical`` and ``digest``."""
    form = form or canonical(graph)
    value = msgspec.to_builtins(record_of(form))
    return form, sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _drop_unused_fields(op: GraphDefined) -> GraphDefined:
    """Return a graph-defined kernel with fixed values for maps and numbers that have no effect."""
    block = op.graph

    def mapped(dims: DimMap) -> DimMap:
        x, y, z = (dim if extent > 1 else None for dim, extent in zip(dims, block.grid, strict=True))
        return (x, y, z)

    reads = any(isinstance(o, Op) and SPECS[o.kind].reads_dimx for o in block.ops)
    looped = block.forloop_range > 1
    return GraphDefined(
        op.operands,
        replace(
            block,
            reduction_dimx=block.reduction_dimx if reads else _UNREAD_DIMX,
            inputs=tuple(InputIterator(mapped(i.imap), i.fmap if looped else None) for i in block.inputs),
            outputs=tuple(OutputSaver(s.operand, mapped(s.omap)) for s in block.outputs),
        ),
    )


def _has_fixed_axes(block: BlockGraph) -> bool:
    """Return whether two grid axes split one dim of a tensor, so that their order matters."""
    for dims in (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs)):
        used = [dim for dim in dims if dim is not None]
        if len(set(used)) != len(used):
            return True
    return False


def _operand_labels(op: Op) -> list[str]:
    """Return the edge labels of an operator's operands; those of a commutative operator are equal."""
    return ["both"] * len(op.operands) if SPECS[op.kind].commutative else [str(i) for i in range(len(op.operands))]


@dataclass(slots=True)
class _Block:
    """Nodes of one block graph: axes by grid axis, tensors by number, operators by position, savers by position."""

    axes: dict[int, int] = field(default_factory=dict)
    tensors: list[int] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    savers: list[int] = field(default_factory=list)
    threads: dict[int, _Thread] = field(default_factory=dict)


@dataclass(slots=True)
class _Thread:
    """Nodes of one thread graph: tensors by number and operators by position."""

    tensors: list[int] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)


class _ColouredGraph:
    """Encoding of a µGraph of all levels as one coloured graph."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.tensors: list[int] = []
        self.ops: list[int] = []
        self.blocks: dict[int, _Block] = {}

    def kernel(self, graph: KernelGraph) -> None:
        """Add a kernel graph."""
        places = {number: position for position, number in enumerate(graph.outputs)}
        self.tensors = [self.nodes.add(("input", i, places.get(i))) for i in range(len(graph.inputs))]
        for index, (number, op) in enumerate(enumerate_results(len(graph.inputs), graph.ops)):
            marks = tuple(places.get(number + r) for r in range(op.results))
            match op:
                case Op():
                    self._op(op, marks, self.tensors, self.ops)
                case GraphDefined():
                    self.blocks[index] = self._block(op, marks)
                case _:
                    assert_never(op)

    def _op(
        self, op: Op, marks: Sequence[int | None], tensors: list[int], ops: list[int], *member: tuple[str, int]
    ) -> None:
        """Add a predefined operator of any level; a single result shares its node, several get a node each."""
        edges = [(port, tensors[n]) for port, n in zip(_operand_labels(op), op.operands, strict=True)]
        if op.results == 1:
            node = self.nodes.add(("op", op.kind.value, op.attrs, marks[0]), *edges, *member)
            tensors.append(node)
        else:
            node = self.nodes.add(("op", op.kind.value, op.attrs), *edges, *member)
            tensors += [self.nodes.add(("result", r, mark), ("of", node)) for r, mark in enumerate(marks)]
        ops.append(node)

    def _block(self, op: GraphDefined, marks: Sequence[int | None]) -> _Block:
        """Add a graph-defined kernel: its results are the nodes of its output savers."""
        block, found = op.graph, _Block()
        shape = ("kernel", block.block, block.forloop_range, block.reduction_dimx)
        kernel = self.nodes.add(shape)
        self.ops.append(kernel)
        fixed = _has_fixed_axes(block)
        for axis, extent in enumerate(block.grid):
            if extent > 1:
                # Axes whose order is fixed are labelled by it; axes of extent 1 are left out, so count the others.
                order = len(found.axes) if fixed else None
                found.axes[axis] = self.nodes.add(("axis", extent, order), ("in", kernel))
        for iterator, operand in zip(block.inputs, op.operands, strict=True):
            edges = (("reads", self.tensors[operand]), ("in", kernel), *self._split(found, iterator.imap))
            found.tensors.append(self.nodes.add(("iterator", iterator.fmap), *edges))
        for index, item in enumerate(block.ops):
            match item:
                case Op():
                    self._op(item, (None,) * item.results, found.tensors, found.ops, ("in", kernel))
                case ThreadDefined():
                    found.threads[index] = self._thread(item, found, kernel)
                case _:
                    assert_never(item)
        for saver, mark in zip(block.outputs, marks, strict=True):
            edges = (("saves", found.tensors[saver.operand]), ("in", kernel), *self._split(found, saver.omap))
            found.savers.append(self.nodes.add(("saver", mark), *edges))
        self.tensors += found.savers
        return found

    def _split(self, block: _Block, dims: DimMap) -> list[tuple[str, int]]:
        return [(f"dim{dim}", block.axes[axis]) for axis, dim in enumerate(dims) if dim is not None]

    def _thread(self, op: ThreadDefined, block: _Block, kernel: int) -> _Thread:
        """Add a thread graph: its results are nodes of their own, one for each output."""
        node = self.nodes.add(("thread",), ("in", kernel))
        block.ops.append(node)
        found = _Thread([self.nodes.add(("in",), ("reads", block.tensors[n]), ("of", node)) for n in op.operands])
        for inner in op.graph.ops:
            self._op(inner, (None,) * inner.results, found.tensors, found.ops, ("of", node))
        block.tensors += [
            self.nodes.add(("out",), ("writes", found.tensors[n]), ("of", node)) for n in op.graph.outputs
        ]
        return found


class _CanonicalBuilder:
    """Construction of the canonical graph from the position of every node in the canonical order."""

    def __init__(self, flat: _ColouredGraph, places: list[int]) -> None:
        self._flat = flat
        self._places = places

    def kernel(self, graph: KernelGraph) -> KernelGraph:
        """Rebuild a kernel graph."""
        names = {number: number for number in range(len(graph.inputs))}
        ops: list[KernelOp] = []

        def emit(index: int, number: int, op: KernelOp) -> None:
            if isinstance(op, Op):
                made, order = _rename_operands(op, names), list(range(op.results))
                ops.append(made)
            else:
                defined, order = self._block(op, self._flat.blocks[index], names)
                ops.append(defined)
            for result in order:
                names[number + result] = len(names)

        self._in_order(graph.ops, len(graph.inputs), names, self._flat.ops, emit)
        return KernelGraph(graph.inputs, tuple(ops), tuple(names[n] for n in graph.outputs))

    def _in_order(
        self,
        ops: tuple[_A, ...],
        first: int,
        names: dict[int, int],
        nodes: list[int],
        emit: Callable[[int, int, _A], None],
    ) -> None:
        """Emit operators in topological order.

        Of the ready ones, the one is first whose operands have the least numbers in the new graph; then the kind
        decides, and then its place in the labelling.
        """
        items = list(enumerate_results(first, ops))
        producer = {number + r: index for index, (number, op) in enumerate(items) for r in range(op.results)}
        users: list[list[int]] = [[] for _ in items]
        missing: list[int] = []
        for index, (_, op) in enumerate(items):
            sources = {producer[n] for n in op.operands if n in producer}
            missing.append(len(sources))
            for source in sources:
                users[source].append(index)

        def key(index: int) -> tuple[list[int], str, int, int]:
            op = items[index][1]
            operands = [names[n] for n in op.operands]
            if isinstance(op, Op):
                kind = op.kind.value
                operands = sorted(operands) if SPECS[op.kind].commutative else operands
            else:
                kind, operands = "~", sorted(operands)
            return operands, kind, self._places[nodes[index]], index

        ready = [key(index) for index, count in enumerate(missing) if not count]
        heapify(ready)
        while ready:
            chosen = heappop(ready)[-1]
            emit(chosen, *items[chosen])
            for user in users[chosen]:
                missing[user] -= 1
                if not missing[user]:
                    heappush(ready, key(user))

    def _block(self, op: GraphDefined, nodes: _Block, outer: dict[int, int]) -> tuple[GraphDefined, list[int]]:
        """Return a graph-defined kernel and the old positions of its results in their new order."""
        block, places = op.graph, self._places
        axes = sorted(nodes.axes, key=lambda axis: (-block.grid[axis], places[nodes.axes[axis]]))
        if _has_fixed_axes(block):
            axes = sorted(nodes.axes)
        sizes = [block.grid[axis] for axis in axes] + [1] * (3 - len(axes))

        def mapped(dims: DimMap) -> DimMap:
            x, y, z = ([dims[axis] for axis in axes] + [None] * (3 - len(axes)))[:3]
            return (x, y, z)

        def rank(dims: DimMap) -> tuple[int, ...]:
            return tuple(-1 if dim is None else dim for dim in mapped(dims))

        inputs = sorted(
            range(len(block.inputs)),
            key=lambda i: (
                outer[op.operands[i]],
                rank(block.inputs[i].imap),
                -1 if (fmap := block.inputs[i].fmap) is None else fmap,
                places[nodes.tensors[i]],
            ),
        )
        names = {old: new for new, old in enumerate(inputs)}
        ops: list[BlockOp] = []

        def emit(index: int, number: int, item: BlockOp) -> None:
            if isinstance(item, Op):
                ops.append(_rename_operands(item, names))
                order = list(range(item.results))
            else:
                made, order = self._thread(item, nodes.threads[index], names)
                ops.append(made)
            for result in order:
                names[number + result] = len(names)

        self._in_order(block.ops, len(block.inputs), names, nodes.ops, emit)
        savers = sorted(
            range(len(block.outputs)),
            key=lambda s: (names[block.outputs[s].operand], rank(block.outputs[s].omap), places[nodes.savers[s]]),
        )
        made = replace(
            block,
            grid=(sizes[0], sizes[1], sizes[2]),
            inputs=tuple(InputIterator(mapped(block.inputs[i].imap), block.inputs[i].fmap) for i in inputs),
            ops=tuple(ops),
            outputs=tuple(OutputSaver(names[block.outputs[s].operand], mapped(block.outputs[s].omap)) for s in savers),
        )
        return GraphDefined(tuple(outer[op.operands[i]] for i in inputs), made), savers

    def _thread(self, op: ThreadDefined, nodes: _Thread, outer: dict[int, int]) -> tuple[ThreadDefined, list[int]]:
        """Return a thread-defined operator and the old positions of its results in their new order."""
        graph, places = op.graph, self._places
        inputs = sorted(range(graph.inputs), key=lambda i: (outer[op.operands[i]], places[nodes.tensors[i]]))
        names = {old: new for new, old in enumerate(inputs)}
        ops: list[Op] = []

        def emit(index: int, number: int, item: Op) -> None:
            ops.append(_rename_operands(item, names))
            for result in range(item.results):
                names[number + result] = len(names)

        self._in_order(graph.ops, graph.inputs, names, nodes.ops, emit)
        results = sorted(range(len(graph.outputs)), key=lambda r: names[graph.outputs[r]])
        made = ThreadGraph(graph.inputs, tuple(ops), tuple(names[graph.outputs[r]] for r in results))
        return ThreadDefined(tuple(outer[op.operands[i]] for i in inputs), made), results


def _rename_operands(op: Op, names: dict[int, int]) -> Op:
    operands = tuple(names[n] for n in op.operands)
    return Op(op.kind, tuple(sorted(operands)) if SPECS[op.kind].commutative else operands, op.attrs)

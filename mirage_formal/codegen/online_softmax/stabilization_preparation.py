"""Rewrites that prepare a graph for its stable form, without a change of its results.

Partial sums of the keys of one row must be weighted before they are summed, one weight per part. Block graphs have no
reshape, so the parts must lie along a dim of their own. ``move_partial_results`` makes blocks write them there, and
rewrites the kernel that reads them. ``hoist_exponential`` moves an exponential into the kernels that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_formal.graph.edit import renumber, replace_axis
from mirage_formal.graph.graph import (
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    enumerate_results,
)
from mirage_formal.graph.ops import SPECS, Attrs, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor
from mirage_formal.graph.verifier import block_outputs, block_types, kernel_types
from mirage_formal.rewrite.failure import MatchFailure
from mirage_formal.rewrite.graph_builders import BlockGraphBuilder, KernelGraphBuilder

# --- exponentials that leave a kernel --------------------------------------------------------------------------------


def hoist_exponential(graph: KernelGraph, kernel: int, number: int) -> KernelGraph:
    """Return the graph with an exponential computed in the kernels that read it; unused operators keep their places.

    Args:
        graph: A graph without thread graphs.
        kernel: The kernel operator that computes it.
        number: The block operator, -1 if the kernel operator is the exponential.

    Raises:
        MatchFailure: The exponential is not a result of the kernel, or no reader can compute it.
    """
    items = list(enumerate_results(len(graph.inputs), graph.ops))
    first, op = items[kernel]
    made = op.graph.ops[number] if isinstance(op, GraphDefined) else op
    if not isinstance(made, Op) or made.kind is not OpKind.EXP:
        raise MatchFailure("what is selected of an exponential leaves its kernel and is summed in another")
    if isinstance(op, Op):
        results, source = {first}, op.operands[0]
    else:
        tensor = sum(item.results for item in op.graph.ops[:number]) + len(op.graph.inputs)
        results = {first + r for r, saver in enumerate(op.graph.outputs) if saver.operand == tensor}
        (source,) = op.graph.ops[number].operands
    if not results:
        raise MatchFailure("an exponential is worked on before it leaves its kernel and is summed in another")
    readers = [k for k, (_, reader) in enumerate(items) if set(reader.operands) & results]
    ops = list(graph.ops)
    if isinstance(op, GraphDefined):
        savers = tuple(
            replace(saver, operand=source) if first + r in results else saver
            for r, saver in enumerate(op.graph.outputs)
        )
        ops[kernel] = replace(op, graph=replace(op.graph, outputs=savers))
        if set(graph.outputs) & results or any(isinstance(graph.ops[k], Op) for k in readers):
            # Whoever is no block graph reads it from a kernel operator.
            return _with_kernel_exp(replace(graph, ops=tuple(ops)), kernel, sorted(results))
    if not any(isinstance(graph.ops[k], GraphDefined) for k in readers):
        raise MatchFailure("an exponential cannot be formed nearer to its sum")
    for k in readers:
        reader = ops[k]
        if isinstance(reader, GraphDefined):
            ops[k] = _with_exp(reader, [i for i, n in enumerate(reader.operands) if n in results])
            if isinstance(op, Op):
                ops[k] = replace(ops[k], operands=tuple(source if n in results else n for n in reader.operands))
    return replace(graph, ops=tuple(ops))


def _with_kernel_exp(graph: KernelGraph, kernel: int, results: Sequence[int]) -> KernelGraph:
    """Return the graph in which all readers of some results of a kernel read their exponentials instead."""
    new = KernelGraphBuilder(graph.inputs, share=())
    number = list(range(len(graph.inputs)))
    for index, op in enumerate(graph.ops):
        number += new.place(op, [number[n] for n in op.operands])
        if index == kernel:
            for n in results:
                number[n] = new.emit(OpKind.EXP, number[n])
    return replace(graph, ops=tuple(new.ops), outputs=tuple(number[n] for n in graph.outputs))


def _with_exp(op: GraphDefined, iterators: Sequence[int]) -> GraphDefined:
    """Return the kernel that works on the exponentials of the tiles of some input iterators."""
    block = op.graph
    base, more = len(block.inputs), len(iterators)
    number = {n: n if n < base else n + more for n in range(base + sum(item.results for item in block.ops))}
    number |= {i: base + k for k, i in enumerate(iterators)}
    made: list[BlockOp] = [Op(OpKind.EXP, (i,)) for i in iterators]
    made += [renumber(item, number) for item in block.ops]
    savers = tuple(replace(saver, operand=number[saver.operand]) for saver in block.outputs)
    return replace(op, graph=replace(block, ops=tuple(made), outputs=savers))


# --- parts along a dim of their own ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PartLayout:
    """The layout of partial results before and after ``move_partial_results``.

    Attributes:
        old: The dim along which parts were concatenated.
        tile: The extent of one part along it.
        new: The dim along which they lie after ``move_partial_results``, as its least significant digit.
    """

    old: int
    tile: int
    new: int


def move_partial_results(graph: KernelGraph, kernel: int, iterator: int, dim: int) -> KernelGraph:
    """Return the graph with the partial results that a kernel reads laid out along a dim of their own.

    Args:
        graph: A graph without thread graphs.
        kernel: The kernel that reads them.
        iterator: Its iterator.
        dim: The dim along which the parts are concatenated with their own elements.

    Raises:
        MatchFailure: There is no such dim, or an operator of the kernel has no counterpart in the other layout.
    """
    types = kernel_types(graph)
    items = list(enumerate_results(len(graph.inputs), graph.ops))
    reader = graph.ops[kernel]
    assert isinstance(reader, GraphDefined)
    tensor = reader.operands[iterator]
    maker, first, op = next(
        ((k, n, item) for k, (n, item) in enumerate(items) if n <= tensor < n + item.results), (-1, 0, None)
    )
    if not isinstance(op, GraphDefined):
        raise MatchFailure("expected partial results of a graph-defined kernel")
    mine = range(first, first + op.results)
    if set(graph.outputs).intersection(mine):
        raise MatchFailure("partial results are results of the program")
    made, layouts = _relocate_parts(op, types, tensor - first, dim)
    parts, ops, now = dict(zip(mine, layouts, strict=True)), list(graph.ops), list(types)
    ops[maker] = made
    now[first : first + op.results] = block_outputs(made.graph, tuple(types[n] for n in op.operands))
    for k, other in enumerate(graph.ops):
        if parts.keys().isdisjoint(other.operands):
            continue
        if isinstance(other, Op):
            raise MatchFailure("partial results in which several elements form one part are read by a kernel operator")
        ops[k] = _ReaderRewriter(other, now, parts, _preceding_blocks(made)).rewritten_kernel()
    return replace(graph, ops=tuple(ops))


def _preceding_blocks(op: GraphDefined) -> int:
    """Return the number of blocks along the first two grid axes that split the same dim as the last axis."""
    omap = op.graph.outputs[0].omap
    return prod(extent for extent, dim in zip(op.graph.grid[:2], omap[:2], strict=True) if dim == omap[2])


def _relocate_parts(
    op: GraphDefined, types: Sequence[DTensor], result: int, dim: int
) -> tuple[GraphDefined, list[_PartLayout]]:
    """Return the kernel that writes its parts along a dim of their own by the last grid axis, and their layouts."""
    block = op.graph
    tiles = block_types(block, tuple(types[n] for n in op.operands))
    shapes = [tiles[saver.operand].shape for saver in block.outputs]
    joined = [a for a in range(3) if block.grid[a] > 1 and block.outputs[result].omap[a] == dim]
    if len(joined) != 1:
        raise MatchFailure("parts are joined by several grid axes, or by none")
    (axis,) = joined
    free = [n for n in range(len(shapes[0])) if all(n < len(s) and s[n] == 1 for s in shapes)]
    free = [n for n in free if all(saver.omap[axis] != n for saver in block.outputs)]
    if not free:
        raise MatchFailure("no dim is free for the parts")
    order = [a for a in range(3) if a != axis] + [axis]
    for dims in (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs)):
        if dims[axis] is not None and dims.count(dims[axis]) > 1:
            raise MatchFailure("the grid axis of the parts shares a dim with another")

    def mapped(dims: DimMap, last: int | None) -> DimMap:
        x, y = (dims[a] for a in order[:2])
        return (x, y, last)

    grid: Dim3 = (block.grid[order[0]], block.grid[order[1]], block.grid[axis])
    parts: list[_PartLayout] = []
    for saver, shape in zip(block.outputs, shapes, strict=True):
        old = saver.omap[axis]
        assert old is not None
        parts.append(_PartLayout(old, shape[old], free[0]))
    changed = replace(
        block,
        grid=grid,
        inputs=tuple(InputIterator(mapped(i.imap, i.imap[axis]), i.fmap) for i in block.inputs),
        outputs=tuple(OutputSaver(s.operand, mapped(s.omap, free[0])) for s in block.outputs),
    )
    return replace(op, graph=changed), parts


class _ReaderRewriter:
    """A rewriter of a kernel that reads parts.

    Args:
        op: The kernel.
        types: The types of the graph's tensors, with the parts along a dim of their own.
        parts: The tensors that are parts, with their layouts.
        before: The number of blocks along the first two grid axes that split the same dim as the parts' axis.
    """

    def __init__(self, op: GraphDefined, types: Sequence[DTensor], parts: dict[int, _PartLayout], before: int) -> None:
        self._op = op
        self._types = types
        self._parts = parts
        self._before = before

    def rewritten_kernel(self) -> GraphDefined:
        """Return the kernel for the new layout.

        Raises:
            MatchFailure: An operator of the kernel has no counterpart in the other layout.
        """
        block, operands = self._op.graph, self._op.operands
        found = [self._parts.get(n) for n in operands]
        part = next(p.new for p in found if p is not None)
        grid, axis = self._grid(found, part)
        inputs = [self._iterator(i, p, axis, n) for i, p, n in zip(block.inputs, found, operands, strict=True)]
        new = BlockGraphBuilder(replace(block, grid=grid), inputs, [self._types[n] for n in operands])
        values: list[tuple[int, _PartLayout | None]] = list(enumerate(found))
        for item in block.ops:
            assert isinstance(item, Op)
            values.append(_apply(new, item, [values[n] for n in item.operands], block.reduction_dimx))
        if any(values[saver.operand][1] is not None for saver in block.outputs):
            raise MatchFailure("parts leave the kernel that reads them")
        savers = [
            OutputSaver(values[s.operand][0], s.omap if axis is None else replace_axis(s.omap, axis, part))
            for s in block.outputs
        ]
        return replace(self._op, graph=new.finish(savers))

    def _grid(self, parts: Sequence[_PartLayout | None], new: int) -> tuple[Dim3, int | None]:
        """Return the grid, and the axis that runs over the digits before the parts; None if there are none."""
        block = self._op.graph
        if self._before == 1:
            return block.grid, None
        maps = [i.imap for i, p in zip(block.inputs, parts, strict=True) if p is not None]
        split = [a for a in range(3) if block.grid[a] > 1 and all(m[a] == new for m in maps)]
        if len(split) > 1 or any(m[a] == new for m in maps for a in range(3) if block.grid[a] > 1 and a not in split):
            raise MatchFailure("several grid axes split the dim that the parts shall have")
        axis = split[0] if split else next((a for a in range(3) if block.grid[a] == 1), None)
        if axis is None:
            raise MatchFailure("no grid axis is free to tell rows apart")
        if split and (
            self._before % block.grid[axis]
            or any(m[axis] != new for m in (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs)))
        ):
            raise MatchFailure("a grid axis splits other dims as well")
        sizes = list(block.grid)
        sizes[axis] = self._before
        return (sizes[0], sizes[1], sizes[2]), axis

    def _iterator(
        self, iterator: InputIterator, parts: _PartLayout | None, axis: int | None, tensor: int
    ) -> InputIterator:
        grid = self._op.graph.grid
        if parts is None:
            if axis is None or grid[axis] > 1:
                return iterator
            new = next(iter(self._parts.values())).new
            wide = new < len(self._types[tensor].shape) and self._types[tensor].shape[new] > 1
            return replace(iterator, imap=replace_axis(iterator.imap, axis, new if wide else None))
        if any(dim == parts.old for dim, extent in zip(iterator.imap, grid, strict=True) if extent > 1):
            raise MatchFailure("a grid axis splits the parts of a sum")
        if iterator.fmap == parts.new:
            raise MatchFailure("the loop splits the dim that the parts shall have")
        imap = iterator.imap if axis is None else replace_axis(iterator.imap, axis, parts.new)
        return InputIterator(imap, parts.new if iterator.fmap == parts.old else iterator.fmap)


def _apply(
    new: BlockGraphBuilder, op: Op, operands: Sequence[tuple[int, _PartLayout | None]], dimx: int
) -> tuple[int, _PartLayout | None]:
    """Emit an operator on parts and other tensors; return its result, with its layout if it consists of parts.

    Raises:
        MatchFailure: It has no counterpart in the other layout.
    """
    parts = [p for _, p in operands if p is not None]
    numbers = [n for n, _ in operands]
    if op.results != 1:
        raise MatchFailure(f"{op.kind.value} of partial results")
    if not parts:
        return new.copy(op, numbers), None
    if any(p != parts[0] for p in parts):
        raise MatchFailure("partial results of different layouts meet")
    part = parts[0]
    if SPECS[op.kind].elementwise or op.kind is OpKind.ACCUM_SUM:
        if len(parts) != len(operands):
            raise MatchFailure("partial results meet what is none")
        return new.copy(op, numbers), part
    along = len(new.shape(numbers[0])) - 1 if op.attrs.dim is None else op.attrs.dim
    if along == part.new:
        raise MatchFailure("a sum along the dim that the parts shall have")
    if op.kind in (OpKind.SUM, OpKind.ACCUM_SUM_LAST) and along != part.old:
        return new.copy(op, numbers), part
    folded = new.emit(OpKind.SUM, numbers[0], attrs=Attrs(dim=part.new))
    match op.kind:
        case OpKind.SUM:
            whole = folded if part.tile == 1 else new.emit(OpKind.SUM, folded, attrs=Attrs(dim=part.old))
        case OpKind.ACCUM_SUM_LAST:
            whole = new.emit(op.kind if part.tile > 1 else OpKind.ACCUM_SUM, folded)
        case OpKind.SUM_TO_DIMX if dimx == part.tile:
            whole = folded
        case OpKind.ACCUM_SUM_TO_DIMX if dimx == part.tile:
            whole = new.emit(OpKind.ACCUM_SUM, folded)
        case _:
            raise MatchFailure(f"{op.kind.value} of partial results")
    return whole, None

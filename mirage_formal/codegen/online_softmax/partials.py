"""Rewrites that prepare a graph for its stable form, without a change of its results.

Partial sums of the keys of one row must be weighted before they are summed, one weight per part. Block graphs have no
reshape, so the parts must lie along a dim of their own. ``move_parts`` makes blocks write them there, and rewrites the
kernel that reads them. ``hoist_exponential`` moves an exponential into the kernels that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_formal.codegen.online_softmax.shapes import NoStableForm
from mirage_formal.graph.check import block_types, kernel_types
from mirage_formal.graph.edit import renumber
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    enumerate_results,
)
from mirage_formal.graph.ops import NO_ATTRS, SPECS, Attrs, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor, STensor

# --- exponentials that leave a kernel --------------------------------------------------------------------------------


def hoist_exponential(graph: KernelGraph, kernel: int, number: int) -> KernelGraph:
    """Return the graph with an exponential computed in the kernels that read it; unused operators keep their places.

    Args:
        graph: A graph without thread graphs.
        kernel: The kernel operator that computes it.
        number: The block operator, -1 if the kernel operator is the exponential.

    Raises:
        NoStableForm: The exponential is not a result of the kernel, or no reader can compute it.
    """
    items = list(enumerate_results(len(graph.inputs), graph.ops))
    first, op = items[kernel]
    made = op.graph.ops[number] if isinstance(op, GraphDefined) else op
    if not isinstance(made, Op) or made.kind is not OpKind.EXP:
        raise NoStableForm("what is selected of an exponential leaves its kernel and is summed in another")
    if isinstance(op, Op):
        results, source = {first}, op.operands[0]
    else:
        tensor = sum(item.results for item in op.graph.ops[:number]) + len(op.graph.inputs)
        results = {first + r for r, saver in enumerate(op.graph.outputs) if saver.operand == tensor}
        (source,) = op.graph.ops[number].operands
    if not results:
        raise NoStableForm("an exponential is worked on before it leaves its kernel and is summed in another")
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
        raise NoStableForm("an exponential cannot be formed nearer to its sum")
    for k in readers:
        reader = ops[k]
        if isinstance(reader, GraphDefined):
            ops[k] = _with_exp(reader, [i for i, n in enumerate(reader.operands) if n in results])
            if isinstance(op, Op):
                ops[k] = replace(ops[k], operands=tuple(source if n in results else n for n in reader.operands))
    return replace(graph, ops=tuple(ops))


def _with_kernel_exp(graph: KernelGraph, kernel: int, results: Sequence[int]) -> KernelGraph:
    """Return the graph in which all readers of some results of a kernel read their exponentials instead."""
    base = len(graph.inputs) + sum(op.results for op in graph.ops[: kernel + 1])
    last = len(graph.inputs) + sum(op.results for op in graph.ops)
    number = {n: n if n < base else n + len(results) for n in range(last)}
    number |= {n: base + k for k, n in enumerate(results)}
    made = [Op(OpKind.EXP, (n,)) for n in results]
    later = [renumber(op, number) for op in graph.ops[kernel + 1 :]]
    outputs = tuple(number[n] for n in graph.outputs)
    return replace(graph, ops=(*graph.ops[: kernel + 1], *made, *later), outputs=outputs)


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
    """The layout of partial results before and after ``move_parts``.

    Attributes:
        old: The dim along which parts were concatenated.
        tile: The extent of one part along it.
        new: The dim along which they lie after ``move_parts``, as its least significant digit.
    """

    old: int
    tile: int
    new: int


def move_parts(graph: KernelGraph, kernel: int, iterator: int, dim: int) -> KernelGraph:
    """Return the graph with the partial results that a kernel reads laid out along a dim of their own.

    Args:
        graph: A graph without thread graphs.
        kernel: The kernel that reads them.
        iterator: Its iterator.
        dim: The dim along which the parts are concatenated with their own elements.

    Raises:
        NoStableForm: There is no such dim, or an operator of the kernel has no counterpart in the other layout.
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
        raise NoStableForm("expected partial results of a graph-defined kernel")
    mine = set(range(first, first + op.results))
    if set(graph.outputs) & mine:
        raise NoStableForm("partial results are results of the program")
    made, parts = _relocate_parts(op, types, tensor - first, dim)
    known = {number: parts[number - first] for number in mine}
    ops = list(graph.ops)
    ops[maker] = made
    for k, other in enumerate(graph.ops):
        if not set(other.operands) & mine:
            continue
        if isinstance(other, Op):
            raise NoStableForm("partial results in which several elements form one part are read by a kernel operator")
        ops[k] = _ReaderRewriter(other, types, known, _preceding_blocks(made)).made()
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
        raise NoStableForm("parts are joined by several grid axes, or by none")
    (axis,) = joined
    free = [n for n in range(len(shapes[0])) if all(n < len(s) and s[n] == 1 for s in shapes)]
    free = [n for n in free if all(saver.omap[axis] != n for saver in block.outputs)]
    if not free:
        raise NoStableForm("no dim is free for the parts")
    order = [a for a in range(3) if a != axis] + [axis]
    for dims in (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs)):
        if dims[axis] is not None and dims.count(dims[axis]) > 1:
            raise NoStableForm("the grid axis of the parts shares a dim with another")

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
    """A rewriter of a kernel that reads parts."""

    def __init__(self, op: GraphDefined, types: Sequence[DTensor], parts: dict[int, _PartLayout], before: int) -> None:
        self._op = op
        self._types = types
        self._parts = parts
        self._before = before
        self._ops: list[Op] = []
        self._count = len(op.graph.inputs)

    def made(self) -> GraphDefined:
        """Return the kernel for the new layout."""
        block = self._op.graph
        found = [self._parts.get(n) for n in self._op.operands]
        new = next(p.new for p in found if p is not None)
        grid, axis = self._grid(found, new)
        inputs = tuple(
            self._iterator(i, p, axis, n) for i, p, n in zip(block.inputs, found, self._op.operands, strict=True)
        )
        tiles = block_types(block, tuple(self._types[n] for n in self._op.operands))
        values: list[tuple[int, _PartLayout | None]] = list(enumerate(found))
        for number, item in enumerate_results(len(block.inputs), block.ops):
            assert isinstance(item, Op)
            values.append(self._apply(item, [values[n] for n in item.operands], block, tiles[number]))
        if any(values[saver.operand][1] is not None for saver in block.outputs):
            raise NoStableForm("parts leave the kernel that reads them")
        savers = tuple(
            OutputSaver(values[s.operand][0], _replace_axis(s.omap, axis, new if axis is not None else None))
            for s in block.outputs
        )
        changed = replace(block, grid=grid, inputs=inputs, ops=tuple(self._ops), outputs=savers)
        return replace(self._op, graph=changed)

    def _grid(self, parts: Sequence[_PartLayout | None], new: int) -> tuple[Dim3, int | None]:
        """Return the grid, and the axis that runs over the digits before the parts; None if there are none."""
        block = self._op.graph
        if self._before == 1:
            return block.grid, None
        maps = [i.imap for i, p in zip(block.inputs, parts, strict=True) if p is not None]
        split = [a for a in range(3) if block.grid[a] > 1 and all(m[a] == new for m in maps)]
        if len(split) > 1 or any(m[a] == new for m in maps for a in range(3) if block.grid[a] > 1 and a not in split):
            raise NoStableForm("several grid axes split the dim that the parts shall have")
        axis = split[0] if split else next((a for a in range(3) if block.grid[a] == 1), None)
        if axis is None:
            raise NoStableForm("no grid axis is free to tell rows apart")
        if split and (
            self._before % block.grid[axis]
            or any(m[axis] != new for m in (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs)))
        ):
            raise NoStableForm("a grid axis splits other dims as well")
        sizes = list(block.grid)
        sizes[axis] = self._before
        return (sizes[0], sizes[1], sizes[2]), axis

    def _iterator(
        self, iterator: InputIterator, parts: _PartLayout | None, axis: int | None, tensor: int
    ) -> InputIterator:
        if parts is None:
            if axis is None or self._op.graph.grid[axis] > 1:
                return iterator
            new = next(iter(self._parts.values())).new
            wide = new < len(self._types[tensor].shape) and self._types[tensor].shape[new] > 1
            return InputIterator(_replace_axis(iterator.imap, axis, new if wide else None), iterator.fmap)
        grid = self._op.graph.grid
        if any(dim == parts.old for dim, extent in zip(iterator.imap, grid, strict=True) if extent > 1):
            raise NoStableForm("a grid axis splits the parts of a sum")
        if iterator.fmap == parts.new:
            raise NoStableForm("the loop splits the dim that the parts shall have")
        fmap = parts.new if iterator.fmap == parts.old else iterator.fmap
        return InputIterator(_replace_axis(iterator.imap, axis, parts.new), fmap)

    def _emit(self, kind: OpKind, *operands: int, attrs: Attrs = NO_ATTRS) -> int:
        op = Op(kind, operands, attrs)
        self._ops.append(op)
        self._count += op.results
        return self._count - op.results

    def _apply(
        self,
        op: Op,
        operands: list[tuple[int, _PartLayout | None]],
        block: BlockGraph,
        result: STensor,
    ) -> tuple[int, _PartLayout | None]:
        parts = [p for _, p in operands if p is not None]
        numbers = tuple(n for n, _ in operands)
        if op.results != 1:
            raise NoStableForm(f"{op.kind.value} of partial results")
        if not parts:
            return self._emit(op.kind, *numbers, attrs=op.attrs), None
        if any(p != parts[0] for p in parts):
            raise NoStableForm("partial results of different layouts meet")
        part, last = parts[0], len(result.shape) - 1
        if SPECS[op.kind].elementwise or op.kind is OpKind.ACCUM_SUM:
            if len(parts) != len(operands):
                raise NoStableForm("partial results meet what is none")
            return self._emit(op.kind, *numbers, attrs=op.attrs), part
        along = last if op.attrs.dim is None else op.attrs.dim
        if along == part.new:
            raise NoStableForm("a sum along the dim that the parts shall have")
        if op.kind in (OpKind.SUM, OpKind.ACCUM_SUM_LAST) and along != part.old:
            return self._emit(op.kind, *numbers, attrs=op.attrs), part
        return self._sum(op.kind, numbers[0], part, block.reduction_dimx), None

    def _sum(self, kind: OpKind, number: int, part: _PartLayout, dimx: int) -> int:
        """Emit a sum over all parts."""
        folded = self._emit(OpKind.SUM, number, attrs=Attrs(dim=part.new))
        match kind:
            case OpKind.SUM:
                return folded if part.tile == 1 else self._emit(OpKind.SUM, folded, attrs=Attrs(dim=part.old))
            case OpKind.ACCUM_SUM_LAST:
                return self._emit(kind if part.tile > 1 else OpKind.ACCUM_SUM, folded)
            case OpKind.SUM_TO_DIMX if dimx == part.tile:
                return folded
            case OpKind.ACCUM_SUM_TO_DIMX if dimx == part.tile:
                return self._emit(OpKind.ACCUM_SUM, folded)
            case _:
                raise NoStableForm(f"{kind.value} of partial results")


def _replace_axis(dims: DimMap, axis: int | None, dim: int | None) -> DimMap:
    """Return the dim map with another dim for one axis."""
    x, y, z = (dim if a == axis else d for a, d in enumerate(dims))
    return (x, y, z)

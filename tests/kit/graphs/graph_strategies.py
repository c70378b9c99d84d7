"""Random well-formed graphs, and random rearrangements of a graph that change nothing but order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from math import prod
from random import Random
from typing import TypeVar

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
    ThreadDefined,
    ThreadGraph,
    enumerate_results,
)
from mirage_formal.graph.ops import NO_ATTRS, SPECS, Attrs, BlockContext, Lax, Level, OpKind
from mirage_formal.graph.type_rules import device_results, iterator_type, register_result, saver_type, shared_results
from mirage_formal.graph.types import Dim3, DimMap, DTensor, DType, RTensor, STensor, row_major
from mirage_formal.graph.verifier import block_outputs, block_types, faults

MAX_ELEMENTS = 1024

KERNEL_KINDS = tuple(k for k in OpKind if Level.KERNEL in SPECS[k].levels)
BLOCK_KINDS = tuple(k for k in OpKind if Level.BLOCK in SPECS[k].levels)
THREAD_KINDS = tuple(k for k in OpKind if Level.THREAD in SPECS[k].levels and k is not OpKind.CAST)
#: Operators with a picture in a finite field.
FIELD_KINDS = frozenset(k for k in OpKind if SPECS[k].lax is not Lax.NONE)

_FACTORS = (Fraction(1, 2), Fraction(3), Fraction(-1, 4), Fraction(1, 3))


def attributes(draw: DrawFn, kind: OpKind, shape: tuple[int, ...], arity: int) -> Attrs:
    """Attributes that may fit an operator of so many operands, of which the first one has this shape."""
    spec = SPECS[kind]
    if "value" in spec.optional and arity < spec.max_arity:
        return Attrs(value=draw(st.sampled_from((Fraction(0), *_FACTORS))))
    rank = len(shape)
    dim = draw(st.integers(0, rank - 1)) if "dim" in spec.required else None
    eps = draw(st.sampled_from([None, Fraction(1, 1000)])) if "eps" in spec.optional else None
    match kind:
        case OpKind.SCALE:
            return Attrs(factor=draw(st.sampled_from(_FACTORS)))
        case OpKind.SHIFT:
            return Attrs(shift=draw(st.sampled_from(_FACTORS)))
        case OpKind.SLICE:
            assert dim is not None
            start = draw(st.integers(0, shape[dim] - 1))
            return Attrs(dim=dim, start=start, stop=draw(st.integers(start + 1, shape[dim])))
        case OpKind.PAD:
            before, after = draw(st.sampled_from([(0, 1), (1, 0), (2, 1)]))
            return Attrs(dim=dim, before=before, after=after)
        case OpKind.TRANSPOSE:
            return Attrs(perm=tuple(draw(st.permutations(range(rank)))))
        case OpKind.RESHAPE:
            total = prod(shape)
            first = draw(st.sampled_from([d for d in (1, 2, 4, total) if total % d == 0]))
            return Attrs(shape=draw(st.sampled_from([(first, total // first), (1, *shape)[-3:], (total,)])))
        case OpKind.REPEAT:
            return Attrs(dim=dim, times=draw(st.sampled_from([2, 4])))
        case OpKind.CAST:
            return Attrs(dtype=draw(st.sampled_from(list(DType))))
        case _:
            return NO_ATTRS if dim is None and eps is None else Attrs(dim=dim, eps=eps)


def _applied(
    draw: DrawFn,
    kind: OpKind,
    tensors: Sequence[DTensor] | Sequence[STensor] | Sequence[RTensor],
    rule: Callable[[Attrs, tuple[int, ...]], bool],
) -> Op | None:
    """An application of an operator to some of the tensors, or None if it fits none of those tried."""
    spec = SPECS[kind]
    arity = draw(st.integers(spec.min_arity, spec.max_arity))
    first = draw(st.integers(0, len(tensors) - 1))
    attrs = attributes(draw, kind, tensors[first].shape, arity)
    fitting = [(first, *rest) for rest in product(range(len(tensors)), repeat=arity - 1) if rule(attrs, (first, *rest))]
    return Op(kind, draw(st.sampled_from(fitting)), attrs) if fitting else None


def inputs(
    draw: DrawFn, low: int = 1, high: int = 3, dtypes: Sequence[DType] = (DType.FLOAT16,), *, masks: bool = False
) -> list[Input]:
    """Program inputs whose extents come from a small set, so that operators often fit; some are masks, if asked."""
    extents = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=2, max_size=3))
    rank = draw(st.sampled_from([2, 2, 3]))
    dtype = draw(st.sampled_from(list(dtypes)))
    found = []
    for index in range(draw(st.integers(low, high))):
        shape = tuple(draw(st.sampled_from(extents)) for _ in range(rank))
        strides = draw(st.sampled_from([row_major(shape), tuple(reversed(row_major(shape[::-1])))]))
        mask = masks and draw(st.integers(0, 2)) == 0
        found.append(Input(f"x{index}", DTensor(shape, DType.BOOL if mask else dtype), strides))
    return found


@st.composite
def kernel_graphs(
    draw: DrawFn,
    *,
    max_ops: int = 5,
    kinds: Collection[OpKind] = KERNEL_KINDS,
    block_kinds: Collection[OpKind] = BLOCK_KINDS,
    blocks: bool = True,
    threads: bool = True,
) -> KernelGraph:
    """Well-formed kernel graphs of predefined operators and, with ``blocks``, graph-defined ones.

    All tensors are small. ``kinds`` and ``block_kinds`` restrict the operators; pass FIELD_KINDS-intersections for
    graphs that the finite fields can evaluate.
    """
    given = inputs(draw, masks=OpKind.SELECT in kinds)
    types: list[DTensor] = [item.tensor for item in given]
    ops: list[KernelOp] = []
    allowed = sorted(set(kinds) & set(KERNEL_KINDS))
    for _ in range(draw(st.integers(1, max_ops))):
        if blocks and draw(st.integers(0, 3)) == 0:
            chosen = draw(st.lists(st.integers(0, len(types) - 1), min_size=1, max_size=3))
            operands = tuple(types[n] for n in chosen)
            if len({t.dtype for t in operands if t.dtype.floating}) > 1:
                continue
            block = draw(block_graphs(operands, kinds=block_kinds, threads=threads))
            results = block_outputs(block, operands)
            if all(t.elements <= MAX_ELEMENTS for t in results):
                ops.append(GraphDefined(tuple(chosen), block))
                types += results
            continue

        op = _kernel_op(draw, draw(st.sampled_from(allowed)), types)
        if op is not None:
            found = device_results(op.kind, op.attrs, tuple(types[n] for n in op.operands))
            assert not isinstance(found, str)
            ops.append(op)
            types += found
    assume(ops)
    read = {n for op in ops for n in op.operands}
    sinks = [n for n in range(len(given), len(types)) if n not in read]
    extra = draw(st.lists(st.integers(len(given), len(types) - 1), max_size=1))
    graph = KernelGraph(tuple(given), tuple(ops), tuple(dict.fromkeys([*draw(st.permutations(sinks)), *extra])))
    assert faults(graph) == []
    return graph


def _kernel_op(draw: DrawFn, kind: OpKind, types: list[DTensor]) -> Op | None:
    def fits(attrs: Attrs, numbers: tuple[int, ...]) -> bool:
        found = device_results(kind, attrs, tuple(types[n] for n in numbers))
        return not isinstance(found, str) and all(t.elements <= MAX_ELEMENTS for t in found)

    return _applied(draw, kind, types, fits)


@st.composite
def block_graphs(
    draw: DrawFn,
    operands: tuple[DTensor, ...],
    *,
    kinds: Collection[OpKind] = BLOCK_KINDS,
    threads: bool = True,
    max_ops: int = 5,
    separate_axes: bool = False,
) -> BlockGraph:
    """Well-formed block graphs on these operands, with grids, loops, maps and accumulators.

    With ``separate_axes`` no two grid axes split one dim of a tensor.
    """
    x, y, z = (draw(st.sampled_from([1, 1, 2, 4])) for _ in range(3))
    grid: Dim3 = (x, y, z)
    if separate_axes:
        # Every axis must find a dim of its own in the outputs.
        rank = min(len(t.shape) for t in operands)
        grid = (x, y if rank > 1 else 1, z if rank > 2 else 1)
    loop = draw(st.sampled_from([1, 2, 4]))
    iterators = []
    types: list[STensor] = []
    for tensor in operands:
        iterator, tile = _iterator(draw, grid, loop, tensor, separate_axes)
        iterators.append(iterator)
        types.append(tile)
    context = BlockContext(loop, draw(st.sampled_from([1, 2, 64])))
    ops: list[BlockOp] = []
    allowed = sorted(set(kinds) & set(BLOCK_KINDS))
    accumulators = [k for k in allowed if SPECS[k].accumulator]
    plan = draw(st.lists(st.sampled_from(allowed), max_size=max_ops))
    # An accumulator somewhere makes an output likely; the fallback below makes it certain.
    plan.insert(draw(st.integers(0, len(plan))), draw(st.sampled_from(accumulators)))
    for kind in plan:
        if threads and draw(st.integers(0, 5)) == 0:
            ops.append(_thread(draw, types))
            types += _types(grid, loop, context, iterators, ops, operands)[len(types) :]
            continue
        _append(draw, kind, ops, types, context)
    if not any(t.after_loop for t in types):
        number = draw(st.sampled_from(range(len(types))))
        dim = Attrs(dim=0)  # a mask is nothing to sum
        ops.append(
            Op(OpKind.ACCUM_SUM, (number,)) if types[number].dtype.floating else Op(OpKind.ACCUM_CONCAT, (number,), dim)
        )
        types = list(_types(grid, loop, context, iterators, ops, operands))
    savers = _savers(draw, grid, types, separate_axes)
    return BlockGraph(grid, (32, 1, 1), loop, context.reduction_dimx, tuple(iterators), tuple(ops), savers)


def _iterator(draw: DrawFn, grid: Dim3, loop: int, tensor: DTensor, separate: bool) -> tuple[InputIterator, STensor]:
    dims: list[int | None] = []
    shape = list(tensor.shape)
    for extent in grid:
        fitting = [d for d, n in enumerate(shape) if n % extent == 0 and not (separate and d in dims)]
        dim = draw(st.sampled_from([None, *fitting]))
        if dim is not None:
            shape[dim] //= extent
        dims.append(dim)
    fmap = draw(st.sampled_from([None, *(d for d, n in enumerate(shape) if n % loop == 0)]))
    iterator = InputIterator((dims[0], dims[1], dims[2]), fmap)
    tile = iterator_type(grid, loop, iterator, tensor)
    assert not isinstance(tile, str)
    return iterator, tile


def _append(draw: DrawFn, kind: OpKind, ops: list[BlockOp], types: list[STensor], context: BlockContext) -> None:
    def fits(attrs: Attrs, numbers: tuple[int, ...]) -> bool:
        found = shared_results(kind, attrs, tuple(types[n] for n in numbers), context)
        return not isinstance(found, str) and all(t.elements <= MAX_ELEMENTS for t in found)

    op = _applied(draw, kind, types, fits)
    if op is not None:
        found = shared_results(op.kind, op.attrs, tuple(types[n] for n in op.operands), context)
        assert not isinstance(found, str)
        ops.append(op)
        types += found


def _thread(draw: DrawFn, types: list[STensor]) -> ThreadDefined:
    """A chain of elementwise operators on one tensor, on it and on itself, or on it and on another one like it."""
    first = draw(st.integers(0, len(types) - 1))
    like = [n for n, t in enumerate(types) if (t.shape, t.after_loop) == (types[first].shape, types[first].after_loop)]
    operands = (first, draw(st.sampled_from(like)))[: draw(st.integers(1, 2))]
    registers = [RTensor(types[n].shape, types[n].dtype) for n in operands]
    ops: list[Op] = []

    def fits(kind: OpKind, attrs: Attrs, numbers: tuple[int, ...]) -> bool:
        return not isinstance(register_result(kind, attrs, tuple(registers[n] for n in numbers)), str)

    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(THREAD_KINDS))
        op = _applied(draw, kind, registers, partial(fits, kind))
        if op is None:
            op = Op(OpKind.SQUARE if registers[0].dtype.floating else OpKind.LOGICAL_NOT, (0,))
        found = register_result(op.kind, op.attrs, tuple(registers[n] for n in op.operands))
        assert not isinstance(found, str)
        ops.append(op)
        registers.append(found)
    made = st.integers(len(operands), len(registers) - 1)
    outputs = draw(st.lists(made, min_size=1, max_size=2, unique=True))
    return ThreadDefined(operands, ThreadGraph(len(operands), tuple(ops), tuple(outputs)))


def _types(
    grid: Dim3,
    loop: int,
    context: BlockContext,
    iterators: list[InputIterator],
    ops: list[BlockOp],
    operands: tuple[DTensor, ...],
) -> tuple[STensor, ...]:
    saver = OutputSaver(0, (None, None, None))
    block = BlockGraph(grid, (32, 1, 1), loop, context.reduction_dimx, tuple(iterators), tuple(ops), (saver,))
    # The placeholder saver may be at fault; only the tensors' types are wanted.
    sound = replace(block, ops=(*ops, Op(OpKind.ACCUM_MAX, (0,))))
    last = sum(op.results for op in ops) + len(iterators)
    full = replace(sound, outputs=(OutputSaver(last, (0, 0, 0)),))
    return block_types(full, operands)[:last]


def _savers(draw: DrawFn, grid: Dim3, types: list[STensor], separate: bool) -> tuple[OutputSaver, ...]:
    ready = [n for n, t in enumerate(types) if t.after_loop]
    found = []
    for number in draw(st.lists(st.sampled_from(ready), min_size=1, max_size=2)):
        rank = len(types[number].shape)
        if separate:
            order = draw(st.permutations(range(max(rank, 3))))
            dims = [d if extent > 1 else None for d, extent in zip(order, grid, strict=False)]
            assume(all(d is None or d < rank for d in dims))
        else:
            dims = [draw(st.integers(0, rank - 1)) if extent > 1 else None for extent in grid]
        saver = OutputSaver(number, (dims[0], dims[1], dims[2]))
        assert not isinstance(saver_type(grid, saver, types[number]), str)
        found.append(saver)
    return tuple(found)


def rearranged(graph: KernelGraph, random: Random) -> KernelGraph:
    """The same graph in another order: operators, operands of commutative operators, grid axes, iterators, savers."""
    names = {n: n for n in range(len(graph.inputs))}
    ops: list[KernelOp] = []
    for number, op in _any_order(graph.ops, len(graph.inputs), names, random):
        if isinstance(op, Op):
            ops.append(_renamed(op, names, random))
            order = list(range(op.results))
        else:
            made, order = _rearranged_block(op, names, random)
            ops.append(made)
        for result in order:
            names[number + result] = len(names)
    return KernelGraph(graph.inputs, tuple(ops), tuple(names[n] for n in graph.outputs))


_AnyOp = TypeVar("_AnyOp", Op, BlockOp, KernelOp)


def _any_order(
    ops: tuple[_AnyOp, ...], first: int, names: dict[int, int], random: Random
) -> Iterator[tuple[int, _AnyOp]]:
    """Operators in a random order that respects operands; ``names`` must be filled in by the caller."""
    waiting = list(enumerate_results(first, ops))
    while waiting:
        ready = [item for item in waiting if all(n in names for n in item[1].operands)]
        chosen = random.choice(ready)
        waiting.remove(chosen)
        yield chosen


def _renamed(op: Op, names: dict[int, int], random: Random) -> Op:
    operands = [names[n] for n in op.operands]
    if SPECS[op.kind].commutative:
        random.shuffle(operands)
    return Op(op.kind, tuple(operands), op.attrs)


def separate_axes(block: BlockGraph) -> bool:
    """Whether no two grid axes of extent above 1 split one dim of a tensor."""
    for dims in (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs)):
        used = [d for d, extent in zip(dims, block.grid, strict=True) if d is not None and extent > 1]
        if len(set(used)) < len(used):
            return False
    return True


def _rearranged_block(op: GraphDefined, outer: dict[int, int], random: Random) -> tuple[GraphDefined, list[int]]:
    block = op.graph
    axes = [0, 1, 2]
    if separate_axes(block):
        random.shuffle(axes)

    def mapped(dims: DimMap) -> DimMap:
        return (dims[axes[0]], dims[axes[1]], dims[axes[2]])

    order = list(range(len(block.inputs)))
    random.shuffle(order)
    names = {old: new for new, old in enumerate(order)}
    ops: list[BlockOp] = []
    for number, item in _any_order(block.ops, len(block.inputs), names, random):
        if isinstance(item, Op):
            ops.append(_renamed(item, names, random))
            results = list(range(item.results))
        else:
            made, results = _rearranged_thread(item, names, random)
            ops.append(made)
        for result in results:
            names[number + result] = len(names)
    savers = list(range(len(block.outputs)))
    random.shuffle(savers)
    made_block = replace(
        block,
        grid=(block.grid[axes[0]], block.grid[axes[1]], block.grid[axes[2]]),
        inputs=tuple(replace(block.inputs[i], imap=mapped(block.inputs[i].imap)) for i in order),
        ops=tuple(ops),
        outputs=tuple(OutputSaver(names[block.outputs[s].operand], mapped(block.outputs[s].omap)) for s in savers),
    )
    return GraphDefined(tuple(outer[op.operands[i]] for i in order), made_block), savers


def _rearranged_thread(op: ThreadDefined, outer: dict[int, int], random: Random) -> tuple[ThreadDefined, list[int]]:
    graph = op.graph
    order = list(range(graph.inputs))
    random.shuffle(order)
    names = {old: new for new, old in enumerate(order)}
    ops: list[Op] = []
    for number, item in _any_order(graph.ops, graph.inputs, names, random):
        ops.append(_renamed(item, names, random))
        names[number] = len(names)
    results = list(range(len(graph.outputs)))
    random.shuffle(results)
    made = ThreadGraph(graph.inputs, tuple(ops), tuple(names[graph.outputs[r]] for r in results))
    return ThreadDefined(tuple(outer[op.operands[i]] for i in order), made), results

"""The single interpreter of µGraphs: evaluates a kernel, block or thread graph over any domain of values.

A domain defines the primitive operators on its values (float64 arrays, field elements, abstract expressions, index
terms). The interpreter supplies everything else: partitioning by imap and fmap, accumulators, omap, thread graphs, and
the expansion of macro operators (mean, rms_norm, softmax ...) into primitive ones.

There is no loop over blocks or iterations. A tensor of a block graph has four leading axes, grid x, y, z and loop,
before its data dims. An axis on which the tensor does not depend has extent 1 (replication). So imap and fmap are a
reshape and a transpose, an accumulator reduces the loop axis, and omap is a transpose and a reshape. Where a grid axis
and the loop split one dim, the block's slab is cut first and the loop chunk inside it. Grid axes that split one dim do
so in the order x, y, z (the outermost first).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Generic

from msgspec import Struct

from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    ThreadDefined,
)
from mirage_formal.graph.ops import SPECS
from mirage_formal.graph.ops import Level as LevelName
from mirage_formal.semantics.operator_semantics import RULES, AxisValue, LevelOperators
from mirage_formal.semantics.value_domain import LEADING, LOOP_AXIS, Domain, T
from mirage_formal.support.errors import GraphError

__all__ = ["LEADING", "LOOP_AXIS", "Domain", "Trace", "evaluate", "trace"]


class Trace(Struct, Generic[T], frozen=True):
    """Every tensor that the interpreter computes.

    Attributes:
        tensors: All tensors of the kernel graph, inputs first.
        blocks: For each index of a GraphDefined among the kernel operators, all tensors of its block graph, each with
            the four leading axes.
        outputs: The program's outputs, in order.
    """

    tensors: tuple[T, ...]
    blocks: Mapping[int, tuple[T, ...]]
    outputs: tuple[T, ...]


def evaluate(graph: KernelGraph, inputs: Sequence[T], domain: Domain[T]) -> tuple[T, ...]:
    """Return the outputs of a program on the given inputs.

    Args:
        graph: The program.
        inputs: One domain value per input, of the input's shape.
        domain: The domain of the values.

    Returns:
        One domain value per output of the graph.

    Raises:
        GraphError: The graph is not well-formed (shapes, maps or a loop that is never closed).
    """
    return trace(graph, inputs, domain).outputs


def trace(graph: KernelGraph, inputs: Sequence[T], domain: Domain[T]) -> Trace[T]:
    """Return every tensor of a program on the given inputs; see ``evaluate``."""
    if len(inputs) != len(graph.inputs):
        raise GraphError(f"expected {len(graph.inputs)} inputs, got {len(inputs)}")
    level = LevelOperators(domain, None)
    tensors = [AxisValue(value, (), source.tensor.shape) for value, source in zip(inputs, graph.inputs, strict=True)]
    blocks: dict[int, tuple[T, ...]] = {}
    for index, op in enumerate(graph.ops):
        where = f"kernel operator {index}"
        operands = _fetch(tensors, op.operands, where)
        if isinstance(op, Op):
            tensors.extend(_apply(level, op, operands, where))
        else:
            inside, results = _block(domain, op, operands, where)
            blocks[index] = tuple(value.value for value in inside)
            tensors.extend(results)
    outputs = tuple(value.value for value in _fetch(tensors, graph.outputs, "outputs"))
    return Trace(tuple(value.value for value in tensors), MappingProxyType(blocks), outputs)


def _fetch(tensors: Sequence[AxisValue[T]], numbers: Sequence[int], where: str) -> tuple[AxisValue[T], ...]:
    for number in numbers:
        if not 0 <= number < len(tensors):
            raise GraphError(f"expected a tensor number below {len(tensors)}, got {number}", where=where)
    return tuple(tensors[number] for number in numbers)


def _apply(
    level: LevelOperators[T], op: Op, operands: tuple[AxisValue[T], ...], where: str
) -> tuple[AxisValue[T], ...]:
    spec = SPECS[op.kind]
    if not spec.min_arity <= len(operands) <= spec.max_arity:
        raise GraphError(
            f"{op.kind}: expected {spec.min_arity}..{spec.max_arity} operands, got {len(operands)}", where=where
        )
    missing = sorted(name for name in spec.required if getattr(op.attrs, name) is None)
    if missing:
        raise GraphError(f"{op.kind}: expected attributes {missing}", where=where)
    if level.context is None and spec.accumulator:
        raise GraphError(f"{op.kind} stands outside a block graph", where=where)
    shapes = spec.shape(op.attrs, tuple(x.shape for x in operands), level.context)
    if isinstance(shapes, str):
        raise GraphError(f"{op.kind}: {shapes}", where=where)
    return RULES[op.kind](level, op.attrs, operands)


def _block(
    domain: Domain[T], op: GraphDefined, operands: tuple[AxisValue[T], ...], where: str
) -> tuple[list[AxisValue[T]], list[AxisValue[T]]]:
    """Return all tensors of a block graph, and the device tensors that it writes."""
    graph = op.graph
    if len(operands) != len(graph.inputs):
        raise GraphError(f"expected {len(graph.inputs)} operands, got {len(operands)}", where=where)
    level = LevelOperators(domain, graph.context)
    tensors = [
        _load(domain, operand, iterator, graph, f"{where}, input {i}")
        for i, (operand, iterator) in enumerate(zip(operands, graph.inputs, strict=True))
    ]
    for index, inner in enumerate(graph.ops):
        at = f"{where}, block operator {index}"
        args = _fetch(tensors, inner.operands, at)
        if isinstance(inner, ThreadDefined):
            tensors.extend(_thread(level, inner, args, at))
        else:
            tensors.extend(_apply(level, inner, args, at))
    results = [
        _save(domain, _fetch(tensors, (saver.operand,), where)[0], saver, graph, f"{where}, output {i}")
        for i, saver in enumerate(graph.outputs)
    ]
    return tensors, results


def _thread(
    level: LevelOperators[T], op: ThreadDefined, operands: tuple[AxisValue[T], ...], where: str
) -> tuple[AxisValue[T], ...]:
    if len(operands) != op.graph.inputs:
        raise GraphError(f"expected {op.graph.inputs} operands, got {len(operands)}", where=where)
    registers = list(operands)
    for index, inner in enumerate(op.graph.ops):
        at = f"{where}, thread operator {index}"
        if LevelName.THREAD not in SPECS[inner.kind].levels:
            raise GraphError(f"{inner.kind} has no place in a thread graph", where=at)
        registers.extend(_apply(level, inner, _fetch(registers, inner.operands, at), at))
    return _fetch(registers, op.graph.outputs, where)


def _load(
    domain: Domain[T], tensor: AxisValue[T], iterator: InputIterator, graph: BlockGraph, where: str
) -> AxisValue[T]:
    """Return a device tensor cut into the tiles of every block and iteration."""
    extents = (*graph.grid, graph.forloop_range)
    dims = (*iterator.imap, iterator.fmap)
    split: list[int] = []
    position: dict[int, int] = {}
    tiles: list[int] = []
    value = tensor.value
    for dim, extent in enumerate(tensor.shape):
        tile = extent
        for axis in range(LEADING):
            if dims[axis] == dim:
                if tile % extents[axis]:
                    raise GraphError(f"dim {dim} of extent {extent} does not divide by {extents[axis]}", where=where)
                tile //= extents[axis]
                value = domain.tiled(value, dim) if extents[axis] > 1 else value
                position[axis] = len(split)
                split.append(extents[axis])
        tiles.append(len(split))
        split.append(tile)
    _check_dims(dims, len(tensor.shape), where)
    lead: list[int] = []
    for axis in range(LEADING):
        if axis not in position:
            position[axis] = len(split)
            split.append(1)
        lead.append(split[position[axis]])
    perm = (*(position[axis] for axis in range(LEADING)), *tiles)
    # Axes of extent 1 may stand anywhere, so when the split axes are already in order one reshape does it all.
    full = tuple(split[i] for i in perm)
    moving = [i for i in perm if split[i] != 1]
    if moving != sorted(moving):
        value = domain.transpose(domain.reshape(value, tuple(split)), perm)
    else:
        value = domain.reshape(value, full)
    return AxisValue(value, tuple(lead), full[LEADING:])


def _check_dims(dims: Sequence[int | None], rank: int, where: str) -> None:
    for dim in dims:
        if dim is not None and not 0 <= dim < rank:
            raise GraphError(f"expected a dim in 0..{rank - 1}, got {dim}", where=where)


def _save(domain: Domain[T], value: AxisValue[T], saver: OutputSaver, graph: BlockGraph, where: str) -> AxisValue[T]:
    """Return the device tensor that the blocks' results form."""
    _check_dims(saver.omap, len(value.shape), where)
    if value.lead[LOOP_AXIS] != 1:
        raise GraphError("expected a tensor behind an accumulator, got one that depends on the loop", where=where)
    whole = LevelOperators(domain, graph.context)
    for axis, (extent, dim) in enumerate(zip(graph.grid, saver.omap, strict=True)):
        if dim is None and value.lead[axis] != 1:
            raise GraphError(f"blocks that differ in grid axis {'xyz'[axis]} write the same elements", where=where)
        if dim is not None and value.lead[axis] == 1:
            value = whole.repeat(value, axis, extent)
    perm: list[int] = [axis for axis in range(LEADING) if axis == LOOP_AXIS or saver.omap[axis] is None]
    shape: list[int] = []
    for dim, tile in enumerate(value.shape):
        splitting = [axis for axis in range(LOOP_AXIS) if saver.omap[axis] == dim]
        perm += [*splitting, LEADING + dim]
        shape.append(tile * prod(value.lead[axis] for axis in splitting))
    moving = [i for i in perm if value.full[i] != 1]
    moved = value.value if moving == sorted(moving) else domain.transpose(value.value, tuple(perm))
    return AxisValue(domain.reshape(moved, tuple(shape)), (), tuple(shape))

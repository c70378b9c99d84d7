"""Storage location of kernel-level tensors: views in the memory of another tensor, for which no kernel is launched.

Results of transposes, reshapes, repeats and slices are views: a reader of one reads the other tensor's elements, with
an offset and under other strides. A result is a copy instead of a view in three cases: it is an output of the graph, no
strides express its elements, or a reader could not address them (``is_addressable``).

Graph-defined kernels also read some tensors in place that no strides express: they compute each element's index in the
stored tensor, back along a ``IndexMap`` of moves. Examples are rows merged of dims that are far apart, slices of pads,
and a rolled tensor, written as a concatenation of its two ends. Such a tensor is a copy if any other operator reads
it, or if neighbouring elements lie too far apart (``_has_locality``).

If an output is a reshape of a graph-defined kernel's result, the result lies in the memory of that output. So does a
result that an output transposes, reshapes and rolls, if the kernel can write it there in whole vectors. Inside the
graph, a tensor that would be a copy of such a result is treated like an output: the kernel writes to the copy's memory.

Two forms let the tiles of a graph-defined kernel overhang a tensor, so that grids and loops need not divide its
extents:

- A pad that only graph-defined kernels read is never stored. It lies in its operand's memory; the reader substitutes
  zeros for elements outside of ``Place.starts`` and ``Place.extents``.
- A result of a graph-defined kernel that is read only by a slice from the start is never stored whole. It lies in the
  memory of the slice, and elements outside ``Place.extents`` are not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mirage_formal.graph.graph import (
    GraphDefined,
    KernelGraph,
    KernelOp,
    Op,
    cache_by_identity,
    enumerate_results,
)
from mirage_formal.graph.memory.storage_location import INTEGERS, IndexMap, Move, StorageLocation
from mirage_formal.graph.ops import SPECS, Attrs, Family, OpKind
from mirage_formal.graph.types import DTensor, Shape, row_major
from mirage_formal.graph.verifier import kernel_types

_VIEWS = frozenset({OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.REPEAT, OpKind.SLICE})
_MOVED = _VIEWS | {OpKind.PAD}
#: Bytes of a sector, the least transaction of device memory, and of a vector access.
_SECTOR: Final = 32
_VECTOR: Final = 16
#: Number of neighbouring elements sampled, and the most sectors that they may touch per sector that they fill.
_NEIGHBOURS: Final = 64
_SPREAD: Final = 4


def storage_locations(graph: KernelGraph, *, kernels: bool = False) -> tuple[StorageLocation, ...]:
    """Return the storage location of each tensor: inputs as declared, results row-major, views in their bases.

    Args:
        graph: A well-formed graph.
        kernels: Whether all operators that do more than move elements count as parts of graph-defined kernels, and none
            of these has a product unless the graph has.
    """
    return _locations_with_kernels(graph) if kernels else _locations(graph)


@cache_by_identity
def _locations(graph: KernelGraph) -> tuple[StorageLocation, ...]:
    return _locate_all(graph, kernels=False)


@cache_by_identity
def _locations_with_kernels(graph: KernelGraph) -> tuple[StorageLocation, ...]:
    return _locate_all(graph, kernels=True)


def _locate_all(graph: KernelGraph, *, kernels: bool) -> tuple[StorageLocation, ...]:
    far: set[int] = set()
    while True:
        found = _locate_tensors(graph, _moves_read_in_place(graph, far, kernels=kernels))
        more = _scattered_tensors(graph, found, kernels=kernels) - far
        if not more:
            break
        far |= more
    copies = [first for first in moved_tensors(graph) if found[first].base == first and first not in graph.outputs]
    return _locate_tensors(graph, _moves_read_in_place(graph, far, kernels=kernels), copies) if copies else found


def _locate_tensors(
    graph: KernelGraph, gathered: Mapping[int, tuple[int, Move]], copies: Sequence[int] = ()
) -> tuple[StorageLocation, ...]:
    """Return the storage location of each tensor, given the moved tensors that may have a path."""
    count = len(graph.inputs)
    found = [StorageLocation(number, item.strides) for number, item in enumerate(graph.inputs)]
    types = kernel_types(graph)
    ends, padded, handed = (
        _results_behind_slices(graph),
        _unstored_pads(graph),
        _results_stored_in_outputs(graph, copies),
    )
    for first, op in enumerate_results(count, graph.ops):
        for number in range(first, first + op.results):
            end = ends.get(number, number)
            extents = None if end == number else types[end].shape
            found.append(handed.get(number) or StorageLocation(end, row_major(types[end].shape), extents=extents))
        if (
            not isinstance(op, Op)
            or first in handed
            or first in ends
            or first in ends.values()
            or first in graph.outputs
        ):
            continue
        place, shape = found[op.operands[0]], types[first].shape
        if place.path is None and first in padded:
            found[first] = _location_of_pad(op, place, types[op.operands[0]].shape)
        elif op.kind in _VIEWS and place.extents is None and place.path is None:
            strides = _strides(op, types[op.operands[0]].shape, place.strides, shape)
            if strides is not None and is_addressable(shape, strides):
                found[first] = StorageLocation(place.base, strides, place.offset + _slice_offset(op, place.strides))
        if first in gathered and found[first].base == first:
            given, move = gathered[first]
            found[first] = _location_after_move(found[given], move)
    return tuple(found)


def _location_after_move(place: StorageLocation, move: Move) -> StorageLocation:
    """Return the storage location of a move's result, given that of its operand."""
    path = IndexMap((move,), place) if place.path is None else IndexMap((*place.path.moves, move), place.path.source)
    return StorageLocation(place.base, move.steps(place.strides), place.offset, path=path)


def _moves_read_in_place(graph: KernelGraph, far: set[int], *, kernels: bool) -> dict[int, tuple[int, Move]]:
    """Return the moved tensors that kernels read in place: only kernels, or other such tensors, read them."""
    readers, makers, known = (
        _readers(graph),
        dict(enumerate_results(len(graph.inputs), graph.ops)),
        moved_tensors(graph),
    )
    found: dict[int, tuple[int, Move]] = {}
    for first in reversed(known):
        if first in graph.outputs or first in far or not readers.get(first):
            continue
        others = (makers[reader] for reader in readers[first] if reader not in found)
        if all(isinstance(other, GraphDefined) or (kernels and not _is_move(other)) for other in others):
            found[first] = known[first]
    return found


def moved_tensors(graph: KernelGraph) -> dict[int, tuple[int, Move]]:
    """Return for each result of an operator that moves the elements of one tensor: that tensor, and the move.

    A concatenation counts if it puts the end of a tensor before its beginning, so that the tensor is rolled.
    """
    types, makers = kernel_types(graph), dict(enumerate_results(len(graph.inputs), graph.ops))
    found: dict[int, tuple[int, Move]] = {}
    for first, op in makers.items():
        if isinstance(op, Op) and op.kind in _MOVED:
            source, attrs = op.operands[0], op.attrs
        elif (
            isinstance(op, Op) and op.kind is OpKind.CONCAT and (roll := _roll_of_concat(op, makers, types)) is not None
        ):
            source, attrs = roll
        else:
            continue
        found[first] = source, Move(op.kind, attrs, types[source].shape, types[first].shape)
    return found


def _roll_of_concat(op: Op, makers: Mapping[int, KernelOp], types: Sequence[DTensor]) -> tuple[int, Attrs] | None:
    """Return the tensor that a concatenation of two slices rolls, its dim and the element that comes first."""
    end, begin = (makers.get(operand) for operand in op.operands)
    if not (isinstance(end, Op) and isinstance(begin, Op) and end.kind is begin.kind is OpKind.SLICE):
        return None
    (tensor,), dim = end.operands, op.attrs.dim
    assert dim is not None
    cut = end.attrs.start == begin.attrs.stop and begin.attrs.start == 0
    alike = begin.operands == end.operands and end.attrs.dim == begin.attrs.dim == dim
    if not cut or not alike or end.attrs.stop != types[tensor].shape[dim]:
        return None
    return tensor, Attrs(dim=dim, start=end.attrs.start)


def _is_move(op: KernelOp) -> bool:
    return isinstance(op, Op) and SPECS[op.kind].family is Family.MOVE


def _scattered_tensors(graph: KernelGraph, found: Sequence[StorageLocation], *, kernels: bool) -> set[int]:
    """Return the tensors with paths that kernels read and whose neighbouring elements lie too far apart."""
    types, far = kernel_types(graph), set[int]()
    near: dict[int, bool] = {}
    for op in graph.ops:
        paths = [n for n in op.operands if found[n].path is not None]
        if not paths or not (isinstance(op, GraphDefined) or (kernels and not _is_move(op))):
            continue
        inside = op.graph.ops if isinstance(op, GraphDefined) else graph.ops
        products = any(isinstance(one, Op) and one.kind is OpKind.MATMUL for one in inside)
        for n in paths:
            if products:
                near[n] = near.get(n, True) and _copies_in_vectors(found[n], types[n])
            far |= set() if near.setdefault(n, _has_locality(found[n], types[n])) else {n}
    return far


def _copies_in_vectors(place: StorageLocation, tensor: DTensor) -> bool:
    """Return whether rows or columns of the last two dims can be copied in whole vectors."""
    return any(
        place.strides[dim] == 1 and place.aligned(tensor.shape, max(1, _VECTOR // tensor.dtype.bytes), dim)
        for dim in range(max(0, len(tensor.shape) - 2), len(tensor.shape))
    )


def _has_locality(place: StorageLocation, tensor: DTensor) -> bool:
    """Return whether neighbouring elements of a tensor with a path lie near each other, sampled in its middle."""
    assert place.path is not None
    ix, width, source = INTEGERS, tensor.dtype.bytes, place.path.source
    count = min(_NEIGHBOURS, tensor.elements)
    first = (tensor.elements // 2 // count) * count
    places_ = (place.path.back(ix.unravel(n, tensor.shape), ix) for n in range(first, first + count))
    read = {ix.ravel(at, source.strides) * width // _SECTOR for at, inside in places_ if all(inside)}
    return len(read) <= _SPREAD * -(-count * width // _SECTOR)


def _results_behind_slices(graph: KernelGraph) -> dict[int, int]:
    """Map each result that is stored only as far as a slice reads it, and each slice between, to the last slice."""
    readers = _readers(graph)
    makers = dict(enumerate_results(len(graph.inputs), graph.ops))

    def following(tensor: int) -> int | None:
        """Return the slice from the start that alone reads a tensor; None if there is none."""
        if tensor in graph.outputs or len(readers.get(tensor, ())) != 1:
            return None
        op = makers[readers[tensor][0]]
        return readers[tensor][0] if isinstance(op, Op) and op.kind is OpKind.SLICE and op.attrs.start == 0 else None

    ends: dict[int, int] = {}
    for first, op in makers.items():
        for number in range(first, first + op.results) if isinstance(op, GraphDefined) else ():
            chain, after = [number], following(number)
            while after is not None:
                chain.append(after)
                after = following(after)
            ends.update(dict.fromkeys(chain[:-1], chain[-1]))
    return ends


def _results_stored_in_outputs(graph: KernelGraph, copies: Sequence[int]) -> dict[int, StorageLocation]:
    """Return the storage locations of kernels' results, and of moves behind them, in the memory of a later tensor.

    The later tensor is an output that reshapes the result; or the result of transposes, reshapes and rolls of it, if
    rows of the result are written in whole vectors; or one that would be a copy otherwise.

    Sound: reshapes, transposes and rolls give every element one place, and nothing but the next of them reads what one
    of them moves; so whoever reads the last one finds its elements, each written once, and nobody looks for others.
    """
    types, makers = kernel_types(graph), dict(enumerate_results(len(graph.inputs), graph.ops))
    found: dict[int, StorageLocation] = {}
    for output in (*graph.outputs, *copies):
        place, behind = StorageLocation(output, row_major(types[output].shape)), dict[int, StorageLocation]()
        chain, whole = trailing_moves(graph, output, read=output in copies), moved_tensors(graph).get(output)
        if not chain and whole is not None and whole[1].kind is OpKind.RESHAPE and whole[0] not in graph.outputs:
            chain = [(output, *whole)]  # whoever else reads it finds it there
        for number, source, move in chain:
            behind[source] = place = _location_of_result(place, move.inverse())
            for end in makers[number].operands if move.kind is OpKind.CONCAT else ():
                cut = makers[end]
                assert isinstance(cut, Op)
                behind[end] = _location_after_move(
                    place, Move(cut.kind, cut.attrs, types[source].shape, types[end].shape)
                )
        tensor = chain[-1][1] if chain else output
        maker = next((op for first, op in makers.items() if first <= tensor < first + op.results), None)
        shown = all(move.kind is OpKind.RESHAPE for _, _, move in chain)
        if chain and isinstance(maker, GraphDefined) and (shown or _writes_in_vectors(place, types[tensor])):
            found = behind | found
    return found


def trailing_moves(graph: KernelGraph, output: int, *, read: bool = False) -> list[tuple[int, int, Move]]:
    """Return the trailing reshapes, transposes and rolls before an output that nothing reads, the last one first.

    Each is the number of its result, that of its operand, and the move. Only the next of them reads its operand, which
    is neither an input nor an output.

    Args:
        graph: The graph.
        output: The tensor that the last of them makes.
        read: Whether it may be read.
    """
    readers, makers, known = (
        _readers(graph),
        dict(enumerate_results(len(graph.inputs), graph.ops)),
        moved_tensors(graph),
    )
    found: list[tuple[int, int, Move]] = []
    while output in known and known[output][1].kind in (OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.CONCAT):
        if not found and output in readers and not read:
            break
        source, move = known[output]
        ends = makers[output].operands if move.kind is OpKind.CONCAT else ()
        alone = sorted(readers[source]) == sorted(ends or (output,)) and all(readers[end] == [output] for end in ends)
        if not alone or source < len(graph.inputs) or {source, *ends} & set(graph.outputs):
            break
        found.append((output, source, move))
        output = source
    return found


def _location_of_result(place: StorageLocation, move: Move) -> StorageLocation:
    """Return the storage location of the result of a reshape, transpose or roll."""
    if place.path is not None or move.kind is OpKind.CONCAT:
        return _location_after_move(place, move)
    attrs = move.attrs
    strides = _strides(Op(move.kind, (0,), attrs), move.given, place.strides, move.shape)
    return _location_after_move(place, move) if strides is None else StorageLocation(place.base, strides, place.offset)


def _writes_in_vectors(place: StorageLocation, tensor: DTensor) -> bool:
    """Return whether rows of a tensor are written in whole vectors."""
    last, width = len(tensor.shape) - 1, max(1, _VECTOR // tensor.dtype.bytes)
    whole = tensor.shape and tensor.shape[last] % width == 0 and place.strides[last] == 1
    return bool(whole) and place.aligned(tensor.shape, width, last)


def _unstored_pads(graph: KernelGraph) -> frozenset[int]:
    """Return the results of pads that only graph-defined kernels read, possibly through other such pads."""
    readers, makers = _readers(graph), dict(enumerate_results(len(graph.inputs), graph.ops))
    found: set[int] = set()
    for first, op in reversed(makers.items()):
        if not (isinstance(op, Op) and op.kind is OpKind.PAD) or first in graph.outputs:
            continue
        if all(isinstance(makers[reader], GraphDefined) or reader in found for reader in readers.get(first, ())):
            found.add(first)
    return frozenset(found)


def _readers(graph: KernelGraph) -> dict[int, list[int]]:
    """Return for each tensor the first results of the operators that read it."""
    found: dict[int, list[int]] = {}
    for first, op in enumerate_results(len(graph.inputs), graph.ops):
        for operand in op.operands:
            found.setdefault(operand, []).append(first)
    return found


def is_view(graph: KernelGraph, tensor: int) -> bool:
    """Return whether a tensor lies in another one's memory."""
    return storage_locations(graph)[tensor].base != tensor


def launched_operators(graph: KernelGraph) -> tuple[int, ...]:
    """Return the numbers of the operators for which a kernel is launched: all but views."""
    if not any(isinstance(op, Op) and op.kind in _MOVED for op in graph.ops):
        return tuple(range(len(graph.ops)))
    known, found = storage_locations(graph), []
    for position, (first, op) in enumerate(enumerate_results(len(graph.inputs), graph.ops)):
        stored = known[first].base == first and all(known[operand].base != first for operand in op.operands)
        if isinstance(op, GraphDefined) or stored:
            found.append(position)
    return tuple(found)


def kernel_count(graph: KernelGraph) -> int:
    """Return the number of kernels that are launched for a graph."""
    return len(launched_operators(graph))


def is_addressable(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Return whether matrices of the last two dims have contiguous, disjoint rows or columns."""
    (rows, columns), (by_row, by_column) = ((1, 1, *shape)[-2:], (1, 1, *strides)[-2:])
    return _is_dense_along(rows, columns, by_row, by_column) or _is_dense_along(columns, rows, by_column, by_row)


def _is_dense_along(count: int, length: int, step: int, within: int) -> bool:
    return (length == 1 or within == 1) and (count == 1 or step >= length)


def _strides(op: Op, given: Shape, strides: tuple[int, ...], shape: Shape) -> tuple[int, ...] | None:
    """Return the strides of the operator's result in the memory of its operand; None if there are none."""
    match op.kind:
        case OpKind.TRANSPOSE:
            assert op.attrs.perm is not None
            return tuple(strides[axis] for axis in op.attrs.perm)
        case OpKind.SLICE:
            return strides
        case OpKind.REPEAT:
            assert op.attrs.dim is not None
            return (*strides[: op.attrs.dim], 0, *strides[op.attrs.dim + 1 :])
        case OpKind.RESHAPE:
            return _reshaped_strides(given, strides, shape)
        case _:
            raise AssertionError(op.kind)


def _location_of_pad(op: Op, place: StorageLocation, shape: Shape) -> StorageLocation:
    """Return the storage location of a pad of a tensor of this shape."""
    dim, before = op.attrs.dim, op.attrs.before or 0
    assert dim is not None
    extents, starts = list(place.extents or shape), list(place.starts or (0,) * len(shape))
    extents[dim] += before
    starts[dim] += before
    offset = place.offset - before * place.strides[dim]
    return StorageLocation(place.base, place.strides, offset, tuple(extents), tuple(starts) if any(starts) else None)


def _slice_offset(op: Op, strides: tuple[int, ...]) -> int:
    """Return the offset of the first element of the operator's result from that of its operand."""
    if op.kind is not OpKind.SLICE:
        return 0
    assert op.attrs.dim is not None
    assert op.attrs.start is not None
    return op.attrs.start * strides[op.attrs.dim]


def _reshaped_strides(given: Shape, strides: tuple[int, ...], shape: Shape) -> tuple[int, ...] | None:
    """Return strides that give a tensor's elements in row-major order under another shape; None if none do.

    Dims of the tensor that follow each other in memory are one run; every dim of the shape has to lie within a run.
    """
    runs: list[tuple[int, int]] = []  # elements and step of each run
    for extent, step in zip(given, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * step:
            runs[-1] = (runs[-1][0] * extent, step)
        else:
            runs.append((extent, step))
    found: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for extent in reversed(shape):
        if left == 1 and extent > 1:
            left, step = runs.pop()
        if left % extent:
            return None
        found.append(step)
        left, step = left // extent, step * extent
    return tuple(reversed(found))


__all__ = [
    "StorageLocation",
    "is_addressable",
    "is_view",
    "kernel_count",
    "launched_operators",
    "moved_tensors",
    "storage_locations",
    "trailing_moves",
]

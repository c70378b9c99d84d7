"""Rewriting of layout operators: slices, transposes and pads move to the inputs, merged leading dims to the outputs.

Users slice a product's columns, (x W)[:, :n], and repeat keys for the heads of a group by a reshape that no strides
express. Both put a copy between operators that one kernel could compute. The equal program can slice the operand,
x (W[:, :n]), and keep groups and heads as two dims up to its result. Then slices and reshapes stand at inputs and
outputs, where they are views.

``search.preprocess`` uses this for every program of at most 32 operators. Where the result has no matrix product and
still moves elements, ``hoist_layout_ops`` is tried instead.

A concatenation is a sum of pads, [a; b] = [a; 0] + [0; b]. If a and b are elementwise operators over inputs that map
zeros to zeros, the pads stand at these inputs, and a kernel that reads them writes the zeros itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod

from msgspec import Struct

from mirage_formal.graph.graph import KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import SPECS, Attrs, Family, OpKind
from mirage_formal.graph.storage_views import is_view, storage_locations
from mirage_formal.graph.types import Shape
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure
from mirage_formal.rewrite.graph_builders import KernelGraphBuilder
from mirage_formal.search.concatenated_inputs import KEEP_ZERO, reading_operator

_ALONG = (Family.REDUCTION, Family.NORM)
#: Moves along one dim; in a transpose they work along the permuted dim.
_MOVES = frozenset({OpKind.SLICE, OpKind.REPEAT, OpKind.PAD, OpKind.CONCAT})
#: Norms that are not transposed: they would run along columns, and searches with such a norm before products are slow.
_OF_ROWS = frozenset({OpKind.RMS_NORM, OpKind.LAYER_NORM})
_VIEWS = frozenset({OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.REPEAT, OpKind.SLICE})

#: For each dim of a tensor, the extents of the neighbouring dims that it merges; one for a dim that merges none.
_Split = tuple[tuple[int, ...], ...]


class _SplitTensor(Struct, frozen=True):
    """A tensor of the program as a tensor of the new graph under another shape.

    Attributes:
        tensor: Number in the new graph; its shape is the split's extents one after another.
        split: For each of the program's dims, its extents in the new graph.
    """

    tensor: int
    split: _Split

    @property
    def shape(self) -> Shape:
        """Return the shape in the program."""
        return tuple(prod(extents) for extents in self.split)


def normalize_layout_ops(program: KernelGraph) -> KernelGraph | None:
    """Return the program with slices, pads and transposes moved to inputs, merged dims to outputs; None if unchanged.

    The result computes the same as the program; callers that rely on this prove it.
    """
    found, plain = (_rewrite(program, turning=turning) for turning in (True, False))
    # A product that is read both as it is and transposed would be computed twice.
    return plain if found is None or _count_products(found) > _count_products(plain or program) else found


@none_on_match_failure
def _rewrite(program: KernelGraph, *, turning: bool) -> KernelGraph:
    made = _LayoutRewriter(program, turning=turning)
    found = made.graph()
    if not made.moved:
        raise MatchFailure("all slices, transposes and reshapes stand where they should")
    return found


def _count_products(graph: KernelGraph) -> int:
    return sum(isinstance(op, Op) and op.kind is OpKind.MATMUL for op in graph.ops)


class _LayoutRewriter:
    """A rewriter of all operators of a program, in order, in a builder of the new graph.

    Attributes:
        moved: Whether a slice, transpose or reshape has moved, or a concatenation become a sum.
    """

    def __init__(self, program: KernelGraph, *, turning: bool) -> None:
        self.moved = False
        self._new = KernelGraphBuilder(program.inputs)
        self._program = program
        self._turning = turning  # whether the transpose of a product is written as one
        self._cuts: dict[tuple[int, tuple[int, int, int]], int] = {}
        self._turns: dict[tuple[int, tuple[int, ...]], int | None] = {}

    def graph(self) -> KernelGraph:
        """Rewrite all operators and return the new graph.

        Raises:
            MatchFailure: The program has graph-defined kernels, or an operator does not fit in its new place.
        """
        values = [_unsplit_value(i, item.tensor.shape) for i, item in enumerate(self._program.inputs)]
        for first, op in enumerate_results(len(self._program.inputs), self._program.ops):
            if not isinstance(op, Op):
                raise MatchFailure("expected predefined operators")
            values.append(self._operator(op, [values[i] for i in op.operands], view=is_view(self._program, first)))
        return self._new.finish([self._whole(values[i]) for i in self._program.outputs])

    def _shaped(self, tensor: int, shape: Shape) -> int:
        """Return a tensor reshaped to another shape."""
        if self._new.shape(tensor) == shape:
            return tensor
        return self._new.emit(OpKind.RESHAPE, tensor, attrs=Attrs(shape=shape))

    def _whole(self, value: _SplitTensor) -> int:
        """Return the tensor of a value, reshaped to the program's shape."""
        return self._shaped(value.tensor, value.shape)

    def _operator(self, op: Op, values: list[_SplitTensor], *, view: bool) -> _SplitTensor:
        family, rank = SPECS[op.kind].family, len(values[0].split)
        match op.kind:
            case OpKind.RESHAPE:
                return self._reshape(op, values[0], view=view)
            case OpKind.TRANSPOSE:
                assert op.attrs.perm is not None
                split = tuple(values[0].split[i] for i in op.attrs.perm)
                if _is_unmerged(split, rank - 2) and _is_unmerged(split, rank - 1):
                    return self._transpose(values[0], op.attrs.perm, split)
            case OpKind.SLICE:
                assert op.attrs.dim is not None
                if _is_unmerged(values[0].split, op.attrs.dim):
                    return self._slice(values[0], op.attrs)
            case OpKind.MATMUL:
                if (found := self._product(values)) is not None:
                    return found
            case OpKind.CONCAT:
                if (found := self._joined(op, values)) is not None:
                    return found
            case _ if SPECS[op.kind].elementwise or (family in _ALONG and op.attrs.dim is not None):
                if (found := self._along(op, values)) is not None:
                    return found
        return self._plainly(op, values)

    def _plainly(self, op: Op, values: Sequence[_SplitTensor]) -> _SplitTensor:
        tensor = self._new.copy(op, [self._whole(value) for value in values])
        return _unsplit_value(tensor, self._new.shape(tensor))

    def _reshape(self, op: Op, value: _SplitTensor, *, view: bool) -> _SplitTensor:
        """Return the result of a reshape; one that would be a copy and only merges leading dims is deferred."""
        assert op.attrs.shape is not None
        split = None if view else _merging_split(self._new.shape(value.tensor), op.attrs.shape)
        if split is None:
            return self._plainly(op, [value])
        self.moved = True
        return _SplitTensor(value.tensor, split)

    def _transpose(self, value: _SplitTensor, perm: tuple[int, ...], split: _Split) -> _SplitTensor:
        starts = [sum(len(one) for one in value.split[:i]) for i in range(len(value.split))]
        moved = tuple(starts[i] + n for i in perm for n in range(len(value.split[i])))
        found = self._turned(value.tensor, moved)
        if found is None:
            return _SplitTensor(self._new.emit(OpKind.TRANSPOSE, value.tensor, attrs=Attrs(perm=moved)), split)
        self.moved |= self._new.maker(value.tensor) is not None
        return _SplitTensor(found, split)

    def _turned(self, tensor: int, perm: tuple[int, ...]) -> int | None:
        """Return the transpose of a tensor, computed by its operators from views of inputs.

        None if that is not possible.
        """
        if (tensor, perm) not in self._turns:
            self._turns[tensor, perm] = self._turn(tensor, perm)
        return self._turns[tensor, perm]

    def _turn(self, tensor: int, perm: tuple[int, ...]) -> int | None:
        op, attrs = self._new.maker(tensor), Attrs(perm=perm)
        if op is None or op.kind is OpKind.RESHAPE:
            return self._view(self._new.emit(OpKind.TRANSPOSE, tensor, attrs=attrs))
        operands, family = op.operands, SPECS[op.kind].family
        if op.kind is OpKind.TRANSPOSE:
            assert op.attrs.perm is not None
            own = tuple(op.attrs.perm[i] for i in perm)
            return operands[0] if own == tuple(range(len(own))) else self._turned(operands[0], own)
        if op.kind is OpKind.MATMUL:
            *_, row, column = perm
            if {row, column} != {len(perm) - 2, len(perm) - 1} or not self._turning:
                return None
            operands = operands if row < column else operands[::-1]
        elif op.kind in _OF_ROWS or not (
            SPECS[op.kind].elementwise or op.kind in _MOVES or (family in _ALONG and op.attrs.dim is not None)
        ):
            return None
        made = [self._turned(operand, perm) for operand in operands]
        found = [operand for operand in made if operand is not None]
        own_attrs = op.attrs if op.attrs.dim is None else replace(op.attrs, dim=perm.index(op.attrs.dim))
        return self._new.emit(op.kind, *found, attrs=own_attrs) if len(found) == len(made) else None

    def _view(self, tensor: int) -> int | None:
        """Return the tensor if it is a view of an input; None if it is a copy."""
        reader = Op(reading_operator(self._new.types[tensor]), (tensor,))  # an output would be no view
        known = storage_locations(KernelGraph(self._program.inputs, (*self._new.ops, reader), (len(self._new.types),)))
        return tensor if known[tensor].base < len(self._program.inputs) else None

    def _slice(self, value: _SplitTensor, attrs: Attrs) -> _SplitTensor:
        assert attrs.dim is not None
        assert attrs.start is not None
        assert attrs.stop is not None
        tensor = self._sliced(value.tensor, _split_position(value.split, attrs.dim), attrs.start, attrs.stop)
        split = (*value.split[: attrs.dim], (attrs.stop - attrs.start,), *value.split[attrs.dim + 1 :])
        return _SplitTensor(tensor, split)

    def _product(self, values: list[_SplitTensor]) -> _SplitTensor | None:
        rank = len(values[0].split)
        split = _common_split([value.split[:-2] for value in values])
        if split is None or not all(_is_unmerged(v.split, i) for v in values for i in (rank - 2, rank - 1)):
            return None
        a, b = (self._at(value, (*split, *value.split[-2:])) for value in values)
        return _SplitTensor(self._new.emit(OpKind.MATMUL, a, b), (*split, values[0].split[-2], values[1].split[-1]))

    def _joined(self, op: Op, values: list[_SplitTensor]) -> _SplitTensor | None:
        """Return a concatenation as a sum of pads of inputs; None if an operand is not zero wherever its inputs are."""
        dim = op.attrs.dim
        assert dim is not None
        tensors = [self._whole(value) for value in values]
        # Masks have no sum.
        if not all(self._of_inputs(tensor) and self._new.types[tensor].dtype.floating for tensor in tensors):
            return None
        extents = [self._new.shape(tensor)[dim] for tensor in tensors]
        parts: list[int] = []
        for number, tensor in enumerate(tensors):
            parts.append(self._padded(tensor, dim, sum(extents[:number]), sum(extents[number + 1 :])))
        self.moved = True
        result = reduce(partial(self._new.emit, OpKind.ADD), parts)
        return _unsplit_value(result, self._new.shape(result))

    def _of_inputs(self, tensor: int) -> bool:
        """Return whether a tensor is an input under views and zero-preserving functions, or a pad of such a tensor."""
        op = self._new.maker(tensor)
        if op is None:
            return True
        known = op.kind in _VIEWS or op.kind in KEEP_ZERO or self._is_pad_sum(tensor)
        return known and all(self._of_inputs(operand) for operand in op.operands)

    def _is_pad_sum(self, tensor: int) -> bool:
        """Return whether a tensor is a pad, or made of pads by sums and zero-preserving functions."""
        op = self._new.maker(tensor)
        sums = op is not None and (op.kind is OpKind.ADD or op.kind in KEEP_ZERO)
        return op is not None and (op.kind is OpKind.PAD or (sums and all(map(self._is_pad_sum, op.operands))))

    def _padded(self, tensor: int, dim: int, before: int, after: int) -> int:
        """Return the pad of such a tensor, placed behind its views and in front of its other operators."""
        op = self._new.maker(tensor)
        if op is None or op.kind in _VIEWS or op.kind is OpKind.PAD:
            return self._new.emit(OpKind.PAD, tensor, attrs=Attrs(dim=dim, before=before, after=after))
        return self._new.copy(op, [self._padded(operand, dim, before, after) for operand in op.operands])

    def _along(self, op: Op, values: list[_SplitTensor]) -> _SplitTensor | None:
        """Return the result of an elementwise operator, or of one along a dim that merges none.

        None if the operands' splits differ, or the dim merges others.
        """
        split, attrs = _common_split([value.split for value in values]), op.attrs
        if split is None or (attrs.dim is not None and not _is_unmerged(split, attrs.dim)):
            return None
        found = [self._at(value, _broadcast_split(value.shape, split)) for value in values]
        if attrs.dim is not None:
            attrs = replace(attrs, dim=_split_position(split, attrs.dim))
        tensor = self._new.emit(op.kind, *found, attrs=attrs)
        if SPECS[op.kind].family is Family.REDUCTION:
            assert op.attrs.dim is not None
            split = (*split[: op.attrs.dim], (1,), *split[op.attrs.dim + 1 :])
        return _SplitTensor(tensor, split)

    def _at(self, value: _SplitTensor, split: _Split) -> int:
        """Return a value's tensor with its dims split as given."""
        return value.tensor if value.split == split else self._shaped(self._whole(value), _flat_shape(split))

    def _sliced(self, tensor: int, dim: int, start: int, stop: int) -> int:
        """Return the slice of a tensor, computed from slices of its operator's operands where possible."""
        cut = (tensor, (dim, start, stop))
        if cut not in self._cuts:
            self._cuts[cut] = self._cut(tensor, dim, start, stop)
        return self._cuts[cut]

    def _cut(self, tensor: int, dim: int, start: int, stop: int) -> int:
        shape, op = self._new.shape(tensor), self._new.maker(tensor)
        if stop - start == shape[dim]:
            return tensor
        if op is not None and (found := self._passed(op, shape, dim, start, stop)) is not None:
            self.moved = True
            return found
        return self._new.emit(OpKind.SLICE, tensor, attrs=Attrs(dim=dim, start=start, stop=stop))

    def _passed(self, op: Op, shape: Shape, dim: int, start: int, stop: int) -> int | None:
        """Return the operator applied to slices of its operands; None if that does not give the slice of its result."""

        def part(operand: int, at: int = dim) -> int:
            return self._sliced(operand, at, start, stop)

        family, rank = SPECS[op.kind].family, len(shape)
        if op.kind is OpKind.MATMUL:
            a, b = op.operands
            mine, theirs = (part(a) if dim != rank - 1 else a), (part(b) if dim != rank - 2 else b)
            return self._new.copy(op, (mine, theirs))
        if op.kind is OpKind.TRANSPOSE:
            assert op.attrs.perm is not None
            return self._new.copy(op, [part(op.operands[0], op.attrs.perm[dim])])
        if op.kind is OpKind.PAD:
            if dim != op.attrs.dim:
                return self._new.copy(op, [part(op.operands[0])])
            return self._cut_pad(op.operands[0], op.attrs, start, stop)
        if SPECS[op.kind].elementwise or (family in _ALONG and op.attrs.dim not in (None, dim)):
            whole = [i if self._new.shape(i)[dim] == 1 else part(i) for i in op.operands]
            return self._new.copy(op, whole)
        return None

    def _cut_pad(self, tensor: int, attrs: Attrs, start: int, stop: int) -> int | None:
        """Return a slice of a pad along its own dim as a pad of a slice; None if the slice has only zeros."""
        assert attrs.dim is not None
        extent, before = self._new.shape(tensor)[attrs.dim], attrs.before or 0
        first, last = max(start - before, 0), min(stop - before, extent)
        if first >= last:
            return None
        inner = self._sliced(tensor, attrs.dim, first, last)
        zeros = replace(attrs, before=max(before - start, 0), after=max(stop - before - extent, 0))
        return self._new.emit(OpKind.PAD, inner, attrs=zeros) if zeros.before or zeros.after else inner


def _unsplit_value(tensor: int, shape: Shape) -> _SplitTensor:
    return _SplitTensor(tensor, tuple((extent,) for extent in shape))


def _is_unmerged(split: _Split, dim: int) -> bool:
    return len(split[dim]) == 1


def _split_position(split: _Split, dim: int) -> int:
    """Return the position, among the split dims, of a dim that merges none."""
    return sum(len(extents) for extents in split[:dim])


def _flat_shape(split: _Split) -> Shape:
    return tuple(extent for extents in split for extent in extents)


def _merging_split(shape: Shape, wanted: Shape) -> _Split | None:
    """Return the split of a shape into the wanted dims, with merged dims before the last two; None if there is none."""
    split: list[tuple[int, ...]] = []
    left = list(shape)
    for extent in wanted:
        group: list[int] = []
        while left and (not group or prod(group) < extent):
            group.append(left.pop(0))
        if prod(group) != extent or not group:
            return None
        split.append(tuple(group))
    return None if left or any(len(group) > 1 for group in split[-2:]) else tuple(split)


def _common_split(splits: Sequence[_Split]) -> _Split | None:
    """Return one split of dims for operands that are broadcast to each other; None if they are split differently."""
    found: list[tuple[int, ...]] = []
    for choices in zip(*splits, strict=True):
        longest = max((prod(extents) for extents in choices), default=1)
        finer = {extents for extents in choices if len(extents) > 1 and prod(extents) == longest}
        if len(finer) > 1 or any(len(extents) > 1 and prod(extents) != longest for extents in choices):
            return None
        found.append(finer.pop() if finer else (longest,))
    return tuple(found)


def _broadcast_split(shape: Shape, split: _Split) -> _Split:
    """Return the split of an operand of this shape beside an operand of the given split."""
    pairs = zip(shape, split, strict=True)
    return tuple((1,) * len(extents) if extent == 1 and prod(extents) > 1 else extents for extent, extents in pairs)


__all__ = ["normalize_layout_ops"]

"""Propagation of views through operators: choice of an operator's dims, and its result as a view.

An elementwise operator does not depend on the order of elements. It is therefore applied to its largest operand in that
operand's own layout, and the view of the operand becomes a view of the result. So views move behind operators. Most of
them meet a product, which reads its operands through any strides, or the end of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod

from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.types import DType, Shape, broadcast, row_major
from mirage_formal.torch.imported_values import ImportedGraph, ImportedProgram, ImportedValue, unsupported_error
from mirage_formal.torch.index_maps import (
    Digit,
    Digits,
    View,
    expand_view,
    merge_digits,
    refine_dims,
    row_major_view,
    split_digit,
)

#: Function that writes an operator; ``axes`` are the operands' dims of the dims that it works along.
Maker = Callable[[ImportedGraph, Sequence[Tensor], Sequence[int]], Tensor]


@dataclass(frozen=True, slots=True)
class _Index:
    """One digit of an operator's index: its torch dim and place there, its extent, and its stride in each operand."""

    dim: int
    place: int
    extent: int
    strides: tuple[int, ...]

    def before(self, other: _Index) -> bool:
        """Return whether this digit and the next one merge to one digit in every operand, this one being the outer."""
        return all(a == b * other.extent for a, b in zip(self.strides, other.strides, strict=True))


def _indices(dims: Sequence[Sequence[Digits]]) -> list[_Index]:
    """Return the digits of all dims, in each of which the operands have digits of the same extents."""
    return [
        _Index(dim, place, same[0][0], tuple(stride for _, stride in same))
        for dim, rows in enumerate(dims)
        for place, same in enumerate(zip(*rows, strict=True))
    ]


def _common_digits(views: Sequence[View], shape: Shape) -> list[list[Digits]] | None:
    """Return the digits of several operands for each dim of a broadcast shape.

    The result is None if two operands have no common refinement of their digits.
    """
    wide = [expand_view(view, shape) for view in views]
    columns = [refine_dims([view.dims[dim] for view in wide]) for dim in range(len(shape))]
    return None if None in columns else [column for column in columns if column is not None]


def _align_operands(
    program: ImportedProgram, values: Sequence[ImportedValue], shape: Shape
) -> tuple[list[ImportedValue], list[list[Digits]]]:
    """Return the operands with their refined digits; operands that split dims differently are materialized first."""
    found, dims = list(values), _common_digits([value.view for value in values], shape)
    if dims is None:
        found = [value if value.view.plain else materialize_row_major(program, value) for value in values]
        dims = _common_digits([value.view for value in found], shape)
    if dims is None:
        raise unsupported_error(
            f"expected operands that cut their dims alike, got {[value.view.dims for value in values]}"
        )
    return found, dims


def emit_broadcast_operator(
    program: ImportedProgram,
    values: Sequence[ImportedValue],
    make: Maker,
    along: Collection[int] = (),
    *,
    one: bool = False,
) -> ImportedValue:
    """Write an operator whose result has the broadcast shape of its operands, except along the dims that it reduces.

    Args:
        program: The program.
        values: The operands; torch broadcasts them.
        make: Function that writes the operator for operands of equal rank; dims that an operand repeats have extent 1
            there.
        along: Torch dims that the operator works along, such as those of a sum.
        one: Whether these must be one dim of the operands; otherwise they may be several, or none.

    Returns:
        The result; dims that were reduced have extent 1 in torch.

    Raises:
        MirageError: The operator cannot be written for these operands.
    """
    shape = common_shape([value.shape for value in values])
    main = _main_operand(values)
    values, dims = _align_operands(
        program, [_split_at_base_dims(v) if i == main else v for i, v in enumerate(values)], shape
    )
    indices = _indices(dims)
    used = [item for item in indices if any(item.strides) or item.dim in along]
    groups = _groups(used, values[main], main, along, one=one)
    if one and not any(item.dim in along for group in groups for item in group):
        groups.append([])  # the dim has one element
    groups = _pad_dims(groups, values[main])
    axes = [number for number, group in enumerate(groups) if group and group[0].dim in along]
    axes = axes or ([len(groups) - 1] if one else [])
    laid = []
    for i, value in enumerate(values):
        parts: list[list[Digit]] = [[(item.extent, item.strides[i]) for item in group] for group in groups]
        # A dim along which the operator works is written out where all operands repeat it.
        hidden = i == main and any(stride == 0 for axis in axes for _, stride in parts[axis])
        laid.append(program.lay(value, parts, real=hidden))
    result = make(program.graph, laid, axes)
    return ImportedValue(
        result, _result_view(result, groups, [[i for i in indices if i.dim == d] for d in range(len(shape))], along)
    )


def _main_operand(values: Sequence[ImportedValue]) -> int:
    """Return the operand with most distinct elements; among equals a computed tensor, then the first."""
    sizes = [prod(n for digits in value.view.dims for n, stride in digits if stride) for value in values]
    return max(range(len(values)), key=lambda i: (sizes[i], isinstance(values[i].base, Tensor), -i))


def _split_at_base_dims(value: ImportedValue) -> ImportedValue:
    """Return a value whose digits are split at the dims of its base tensor."""
    if not isinstance(value.base, Tensor):
        return value
    dims = tuple(
        tuple(p for digit in digits for p in split_digit(digit, value.base.shape)) for digits in value.view.dims
    )
    return ImportedValue(value.base, View(dims, value.view.offset), value.keep)


def _pad_dims(groups: list[list[_Index]], value: ImportedValue) -> list[list[_Index]]:
    """Return an operator's dims with dims of extent 1 as in its main operand, and at least two dims."""
    extents = [prod(item.extent for item in group) for group in groups]
    shape = value.base.shape if isinstance(value.base, Tensor) else ()
    if extents and [n for n in shape if n > 1] == extents:
        left = iter(groups)
        return [next(left) if n > 1 else [] for n in shape]
    return [[]] * (2 - len(groups)) + groups


def _result_view(
    result: Tensor, groups: Sequence[Sequence[_Index]], dims: Sequence[Sequence[_Index]], along: Collection[int] = ()
) -> View:
    """Return the view of an operator's result in torch's shape.

    A digit that no dim of the result has is repeated, or removed if its dim was reduced.
    """
    stride: dict[_Index, int] = {}
    for group, extent, step in zip(groups, result.shape, row_major(result.shape), strict=True):
        inner = step
        for item in reversed(group if extent > 1 else ()):
            stride[item] = inner
            inner *= item.extent
    return View(
        tuple(
            merge_digits([(i.extent, stride.get(i, 0)) for i in dim if i in stride or i.dim not in along])
            for dim in dims
        )
    )


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape of shapes, dims aligned from the last.

    Raises:
        MirageError: The shapes do not broadcast.
    """
    rank = max(len(shape) for shape in shapes)
    found: Shape | None = (1,) * rank
    for shape in shapes:
        found = None if found is None else broadcast(found, ((1,) * (rank - len(shape))) + tuple(shape))
    if found is None:
        raise unsupported_error(f"expected shapes that broadcast, got {[list(shape) for shape in shapes]}")
    return found


def _groups(
    indices: list[_Index], value: ImportedValue, main: int, along: Collection[int], *, one: bool
) -> list[list[_Index]]:
    """Return the dims of the operator: digits in the order of the main operand, merged where every operand allows it.

    Dims of a program's tensor stay as they are; of an input, all torch dims before the last become one.
    """
    if all(item.strides[main] for item in indices):
        indices = sorted(indices, key=lambda item: -item.strides[main])
    inside = [item for item in indices if item.dim in along]
    ends = set(row_major(value.base.shape)) if isinstance(value.base, Tensor) else set()
    last = -1 if ends else max((item.dim for item in indices), default=0)
    groups: list[list[_Index]] = []
    for item in indices:
        if one and item.dim in along:
            if item is inside[0]:
                groups.append(inside)
            continue
        before = groups[-1][-1] if groups else None
        if (
            before is not None
            and before.before(item)
            and before.strides[main] not in ends
            and (before.dim == last) == (item.dim == last)
            and (before.dim in along) == (item.dim in along)
        ):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def product(program: ImportedProgram, a: ImportedValue, b: ImportedValue) -> ImportedValue:
    """Write the matrix product over the last two dims; dims before them broadcast.

    Batch indices that only one operand has become rows or columns of it, unless it has further rows and both have batch
    indices. For example, C[g r, i, j] = sum of A[g r, i, k] B[g, k, j] with a single i is one product for each g with r
    as the row index. Otherwise B is repeated for each r, by a stride of 0, because rows r and i together would need a
    copy of A.

    Sound: the sum over k is the same for each index of the result, whichever of its digits stand in which dim.
    """
    lead = common_shape([a.shape[:-2], b.shape[:-2]]) if a.shape[2:] or b.shape[2:] else ()
    if _common_digits([View(a.view.dims[-1:]), View(b.view.dims[-2:-1])], a.shape[-1:]) is None:
        a, b = (value if value.view.plain else materialize_row_major(program, value) for value in (a, b))
    batch = _common_digits([View(a.view.dims[:-2]), View(b.view.dims[:-2])], lead)
    if batch is None:
        a, b = (value if value.view.plain else materialize_row_major(program, value) for value in (a, b))
        batch = _common_digits([View(a.view.dims[:-2]), View(b.view.dims[:-2])], lead)
    inner = _common_digits([View(a.view.dims[-1:]), View(b.view.dims[-2:-1])], a.shape[-1:])
    if batch is None or inner is None:
        raise unsupported_error("expected operands that cut their dims alike")
    shared = _indices(batch)
    above = [_Index(-2, i, n, (s, 0)) for i, (n, s) in enumerate(a.view.dims[-2])]
    beside = [_Index(-1, i, n, (0, s)) for i, (n, s) in enumerate(b.view.dims[-1])]
    both = [item for item in shared if all(item.strides)]
    rows = [item for item in (*shared, *above) if item.strides[0] and not item.strides[1]]
    columns = [item for item in (*shared, *beside) if item.strides[1] and not item.strides[0]]
    for edge in (rows, columns):
        if both and len(edge) > 1:
            both += [item for item in edge if item.dim >= 0]
            edge[:] = [item for item in edge if item.dim < 0]
    both.sort(key=lambda item: (item.dim, item.place))
    rows.sort(key=lambda item: -item.strides[0])
    columns.sort(key=lambda item: -item.strides[1])
    groups = _batches(both)
    laid = []
    for side, (value, edge) in enumerate(((a, rows), (b, columns))):
        pairs: list[list[Digit]] = [[(i.extent, i.strides[side]) for i in group] for group in (*groups, edge)]
        pairs.insert(len(groups) + 1 - side, list(inner[0][side]))
        laid.append(program.lay(value, pairs, real=any(s == 0 for pair in pairs for _, s in pair)))
    result = program.graph.matmul(*laid)
    dims = [[item for item in shared if item.dim == d] for d in range(len(lead))]
    return ImportedValue(result, _result_view(result, [*groups, rows, columns], [*dims, above, beside]))


def _batches(indices: Sequence[_Index]) -> list[list[_Index]]:
    """Return the batch dims, merged where both operands allow it."""
    groups: list[list[_Index]] = []
    for item in indices:
        if groups and groups[-1][-1].before(item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def concatenate(program: ImportedProgram, values: Sequence[ImportedValue], axis: int) -> ImportedValue:
    """Write a concatenation along a torch dim; the other dims are equal."""
    shape = tuple(1 if d == axis else n for d, n in enumerate(values[0].shape))
    heads = [View((*v.view.dims[:axis], (), *v.view.dims[axis + 1 :])) for v in values]
    dims = _common_digits(heads, shape)
    if dims is None:
        values = [materialize_row_major(program, value) for value in values]
        dims = _common_digits([View((*v.view.dims[:axis], (), *v.view.dims[axis + 1 :])) for v in values], shape)
    assert dims is not None
    indices = _indices(dims)
    main = max(range(len(values)), key=lambda i: prod(values[i].shape))
    order = indices
    if all(item.strides[main] for item in indices):
        order = sorted(indices, key=lambda item: -item.strides[main])
    ends = row_major(base.shape) if isinstance(base := values[main].base, Tensor) else ()
    groups: list[list[_Index]] = []
    mark = _Index(axis, 0, 1, (0,) * len(values))
    along = values[main].view.dims[axis]
    place = sum(item.strides[main] > along[-1][1] for item in order) if along and order is not indices else None
    place = sum(item.dim < axis for item in order) if place is None else place
    for number, item in enumerate([*order[:place], mark, *order[place:]]):
        before = groups[-1][-1] if number else None
        if before in (None, mark) or item is mark or not before.before(item) or before.strides[main] in ends:
            groups.append([item])
        else:
            groups[-1].append(item)
    where = next(number for number, group in enumerate(groups) if group[0] is mark)
    laid = []
    for i, value in enumerate(values):
        parts = [[(item.extent, item.strides[i]) for item in group if item is not mark] for group in groups]
        parts[where] = list(value.view.dims[axis])
        laid.append(program.lay(value, parts, real=True))
    result = program.graph.concat(laid, where)
    extent = result.shape[where]
    last = _Index(axis, 0, extent, ())
    groups[where] = [last]
    rest = [[item for item in indices if item.dim == d] for d in range(len(shape))]
    rest[axis] = [last]
    return ImportedValue(result, _result_view(result, groups, rest))


def materialize_row_major(program: ImportedProgram, value: ImportedValue) -> ImportedValue:
    """Materialize a value as a row-major tensor of the program in torch's shape."""
    laid = program.lay(value, value.view.dims, real=True)
    return ImportedValue(laid, View(row_major_view(value.shape).dims))


def cast(program: ImportedProgram, value: ImportedValue, dtype: DType) -> ImportedValue:
    """Write a cast to another element type; return the value itself if it has that type."""
    if value.dtype is dtype:
        return value
    return emit_broadcast_operator(program, [value], lambda graph, tensors, axes: graph.cast(tensors[0], dtype))

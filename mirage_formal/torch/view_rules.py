"""Import rules of view and data-movement operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import accumulate
from math import prod

import mirage_formal.torch.index_maps as views
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.torch.call import OperatorCall, Written, round_number
from mirage_formal.torch.imported_values import ImportedProgram, ImportedValue, unsupported_error
from mirage_formal.torch.index_maps import View
from mirage_formal.torch.pointwise_rules import conjoin_masks, select_by_mask
from mirage_formal.torch.view_propagation import concatenate, materialize_row_major


def with_view(value: ImportedValue, view: View) -> ImportedValue:
    """Return a value through another view of the same base."""
    if value.keep is not None:
        raise unsupported_error("expected finite numbers, got minus infinity, which only a softmax may read")
    return ImportedValue(value.base, view)


def reshape_value(program: ImportedProgram, value: ImportedValue, shape: Sequence[int]) -> ImportedValue:
    """Return the elements in row-major order under another shape; one extent may be -1."""
    known = prod(n for n in shape if n != -1)
    shape = [prod(value.shape) // known if n == -1 else n for n in shape]
    found = views.reshape_view(value.view, shape)
    if found is None:
        value = materialize_row_major(program, value)
        found = views.reshape_view(value.view, shape)
    assert found is not None
    return with_view(value, found)


def slice_value(
    program: ImportedProgram, value: ImportedValue, axis: int, start: int, stop: int, step: int = 1
) -> ImportedValue:
    """Return a slice of a dim."""
    found = views.slice_view(value.view, axis, start, stop, step)
    if found is None:
        value = materialize_row_major(program, value)
        found = views.slice_view(value.view, axis, start, stop, step)
    assert found is not None
    return with_view(value, found)


def _axis(call: OperatorCall, value: ImportedValue, name: str = "dim") -> int:
    return call.whole(name) % max(len(value.shape), 1)


def identity_rule(call: OperatorCall) -> Written:
    """Return the operand itself."""
    return call.value(next(iter(call.given)))


def reshape(call: OperatorCall) -> Written:
    """Write ``reshape`` to the shape that torch has inferred."""
    return reshape_value(call.program, call.value(), call.shape)


def transpose(call: OperatorCall) -> Written:
    """Write ``transpose``: swap two dims."""
    value = call.value()
    axes = list(range(len(value.shape)))
    if "dim0" in call.given:
        a, b = _axis(call, value, "dim0"), _axis(call, value, "dim1")
    else:
        a, b = (axes[-2], axes[-1]) if len(axes) > 1 else (0, 0)
    if axes:
        axes[a], axes[b] = axes[b], axes[a]
    return with_view(value, views.permute_view(value.view, axes))


def permute(call: OperatorCall) -> Written:
    """Write ``permute``: reorder the dims."""
    value = call.value()
    return with_view(value, views.permute_view(value.view, call.dims("dims", len(value.shape))))


def movedim(call: OperatorCall) -> Written:
    """Write ``movedim``: move dims to other places, the others stay in order."""
    value = call.value()
    rank = len(value.shape)
    source, goal = call.dims("source", rank), call.dims("destination", rank)
    order = [d for d in range(rank) if d not in source]
    for place, dim in sorted(zip(goal, source, strict=True)):
        order.insert(place, dim)
    return with_view(value, views.permute_view(value.view, order))


def expand(call: OperatorCall) -> Written:
    """Write ``expand``: repeat dims of extent 1."""
    value = call.value()
    return with_view(value, views.expand_view(value.view, call.shape))


def repeat(call: OperatorCall) -> Written:
    """Write ``repeat``: repeat a whole tensor along each dim."""
    value, times = call.value(), call.wholes("repeats")
    shape = (1,) * (len(times) - len(value.shape)) + value.shape
    split = [n for pair in zip((1,) * len(shape), shape, strict=True) for n in pair]
    wide = [n for pair in zip(times, shape, strict=True) for n in pair]
    found = reshape_value(call.program, value, split)
    return reshape_value(call.program, with_view(found, views.expand_view(found.view, wide)), call.shape)


def repeat_interleave(call: OperatorCall) -> Written:
    """Write ``repeat_interleave``: repeat each index of a dim."""
    value, times = call.value(), call.whole("repeats")
    if call.given.get("dim") is None:
        value = reshape_value(call.program, value, (prod(value.shape),))
    axis = 0 if call.given.get("dim") is None else _axis(call, value)
    shape = value.shape
    found = reshape_value(call.program, value, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = (*shape[: axis + 1], times, *shape[axis + 1 :])
    return reshape_value(call.program, with_view(found, views.expand_view(found.view, wide)), call.shape)


def _range(call: OperatorCall, extent: int) -> tuple[int, int]:
    """Return the start and end of a slice's arguments, clamped to the dim."""
    start = 0 if call.given["start"] is None else call.whole("start")
    stop = extent if call.given["end"] is None else call.whole("end")
    first, last = (min(max(n + extent if n < 0 else n, 0), extent) for n in (start, stop))
    return first, last


def slice_(call: OperatorCall) -> Written:
    """Write ``slice``: a range of a dim."""
    value = call.value()
    axis = _axis(call, value)
    start, stop = _range(call, value.shape[axis])
    if stop <= start:
        raise unsupported_error(f"expected at least one index of dim {axis}, got {start}:{stop}")
    return slice_value(call.program, value, axis, start, stop, call.whole("step"))


def narrow(call: OperatorCall) -> Written:
    """Write ``narrow``: a range of a dim, by its length."""
    value = call.value()
    axis, start = _axis(call, value), call.whole("start")
    start += value.shape[axis] if start < 0 else 0
    return slice_value(call.program, value, axis, start, start + call.whole("length"))


def select(call: OperatorCall) -> Written:
    """Write ``select``: one index of a dim, which is dropped."""
    value = call.value()
    axis = _axis(call, value)
    place = call.whole("index") % value.shape[axis]
    return _drop_dims(slice_value(call.program, value, axis, place, place + 1), [axis])


def _drop_dims(value: ImportedValue, axes: Sequence[int]) -> ImportedValue:
    dims = tuple(digits for axis, digits in enumerate(value.view.dims) if axis not in axes)
    return with_view(value, View(dims, value.view.offset))


def _parts(call: OperatorCall, value: ImportedValue, axis: int, sizes: Sequence[int]) -> tuple[ImportedValue, ...]:
    ends = accumulate(sizes)
    return tuple(slice_value(call.program, value, axis, end - n, end) for n, end in zip(sizes, ends, strict=True))


def _even_parts(extent: int, size: int) -> list[int]:
    return [min(size, extent - first) for first in range(0, extent, size)]


def chunk(call: OperatorCall) -> Written:
    """Write ``chunk``: split a dim to at most this number of parts of equal extent."""
    value = call.value()
    axis = _axis(call, value)
    size = -(-value.shape[axis] // call.whole("chunks"))
    return _parts(call, value, axis, _even_parts(value.shape[axis], size))


def split(call: OperatorCall) -> Written:
    """Write ``split``: split a dim to parts of one extent, or of given ones."""
    value = call.value()
    axis = _axis(call, value)
    if "split_sizes" in call.given:
        return _parts(call, value, axis, call.wholes("split_sizes"))
    size = call.wholes("split_size")
    return _parts(call, value, axis, _even_parts(value.shape[axis], size[0]) if len(size) == 1 else size)


def unbind(call: OperatorCall) -> Written:
    """Write ``unbind``: all indices of a dim as separate results."""
    value = call.value()
    axis = _axis(call, value)
    return tuple(_drop_dims(part, [axis]) for part in _parts(call, value, axis, [1] * value.shape[axis]))


def _replace_range(call: OperatorCall, value: ImportedValue, source: ImportedValue, axis: int, start: int) -> Written:
    """Return a tensor with a range of a dim replaced by another tensor, in its own element type."""
    stop, extent = start + source.shape[axis], value.shape[axis]
    source = call.typed(source, f"torch.{value.dtype.value}")
    parts = [
        slice_value(call.program, value, axis, *ends) for ends in ((0, start), (stop, extent)) if ends[0] < ends[1]
    ]
    parts.insert(1 if start else 0, source)
    return concatenate(call.program, parts, axis) if len(parts) > 1 else source


def _written_value(call: OperatorCall, name: str, shape: Sequence[int]) -> ImportedValue:
    """Return the written value, expanded to the shape of the place that it is written to."""
    value = call.value(name)
    return (
        value if tuple(value.shape) == tuple(shape) else with_view(value, views.expand_view(value.view, tuple(shape)))
    )


def slice_scatter(call: OperatorCall) -> Written:
    """Write ``slice_scatter``: replace a range of a dim by another tensor."""
    value = call.value()
    axis = _axis(call, value)
    start, stop = _range(call, value.shape[axis])
    if call.whole("step") != 1:
        raise unsupported_error(f"expected a range without gaps, got steps of {call.whole('step')}")
    if stop <= start:
        return value
    shape = tuple(stop - start if d == axis else n for d, n in enumerate(value.shape))
    return _replace_range(call, value, _written_value(call, "src", shape), axis, start)


def select_scatter(call: OperatorCall) -> Written:
    """Write ``select_scatter``: replace one index of a dim by another tensor."""
    value = call.value()
    axis = _axis(call, value)
    shape = tuple(n for d, n in enumerate(value.shape) if d != axis)
    source = _written_value(call, "src", shape)
    digits = (*source.view.dims[:axis], (), *source.view.dims[axis:])
    return _replace_range(
        call, value, with_view(source, View(digits, source.view.offset)), axis, call.whole("index") % value.shape[axis]
    )


def index_copy(call: OperatorCall) -> Written:
    """Write ``index_copy`` for constant, consecutive indices: replace a range of a dim by another tensor."""
    value, indices = call.value(), call.wholes("index")
    axis = _axis(call, value)
    if list(indices) != list(range(indices[0], indices[0] + len(indices))) or indices[0] < 0:
        raise unsupported_error(f"expected indices one after another, got {list(indices)[:8]}")
    shape = tuple(len(indices) if d == axis else n for d, n in enumerate(value.shape))
    return _replace_range(call, value, _written_value(call, "source", shape), axis, indices[0])


def copy(call: OperatorCall) -> Written:
    """Write ``copy``: the source in the shape and element type of the tensor that it overwrites."""
    found = _written_value(call, "src", call.shape)
    return call.typed(found, None if call.dtype is None else f"torch.{call.dtype.value}")


def fill(call: OperatorCall) -> Written:
    """Write ``fill``: a tensor of one element, expanded to the shape of another tensor."""
    found = _written_value(call, "value", call.shape)
    return call.typed(found, None if call.dtype is None else f"torch.{call.dtype.value}")


def pad(call: OperatorCall) -> Written:
    """Write ``constant_pad_nd``: a number before and behind a tensor along its last dims; a negative count crops."""
    value, counts, number = call.value(), call.wholes("pad"), call.number("value")
    rank = len(value.shape)
    pairs = [(rank - 1 - n, *counts[2 * n : 2 * n + 2]) for n in range(len(counts) // 2)]
    for axis, before, after in pairs:
        start, stop = max(-before, 0), value.shape[axis] - max(-after, 0)
        if stop <= start:
            raise unsupported_error(f"expected elements of dim {axis} that are kept, got none")
        value = slice_value(call.program, value, axis, start, stop)
    if not any(before > 0 or after > 0 for _, before, after in pairs):
        return value
    found = materialize_row_major(call.program, value).base
    assert isinstance(found, Tensor)
    for axis, before, after in pairs:
        found = call.program.graph.pad(found, axis, max(before, 0), max(after, 0))
    padded = ImportedValue(found, views.row_major_view(call.shape))
    if not number:
        return padded
    inside = reduce(partial(conjoin_masks, call), _masks_inside(call, pairs))
    return select_by_mask(call, inside, padded, round_number(number, value.dtype))


def _masks_inside(call: OperatorCall, pairs: Sequence[tuple[int, ...]]) -> Iterator[ImportedValue]:
    """Yield constant masks along padded dims, whose conjunction is 1 at the elements of the tensor that is padded."""
    for axis, before, after in pairs:
        extent = call.shape[axis]
        for side, diagonal, count in (("upper", before, before), ("lower", extent - 1 - after, after)):
            if count > 0:
                row = call.triangle(1, extent, diagonal, side=side)
                dims = tuple(row.view.dims[1] if d == axis else ((n, 0),) for d, n in enumerate(call.shape))
                yield ImportedValue(row.base, View(dims, row.view.offset))


def concat(call: OperatorCall) -> Written:
    """Write ``cat``: a concatenation along a dim."""
    values = [value for value in call.values() if prod(value.shape)]
    if not values:
        raise unsupported_error("expected at least one element, got empty tensors")
    axis = _axis(call, values[0])
    values = call.alike(values)
    return concatenate(call.program, values, axis) if len(values) > 1 else values[0]


def stack(call: OperatorCall) -> Written:
    """Write ``stack``: a concatenation along a new dim."""
    axis = call.whole("dim") % len(call.shape)
    values = call.alike(call.values())
    shape = tuple(1 if d == axis else n for d, n in enumerate(call.shape))
    parts = [reshape_value(call.program, value, shape) for value in values]
    return concatenate(call.program, parts, axis) if len(parts) > 1 else parts[0]


def cast_rule(call: OperatorCall) -> Written:
    """Write a cast to another element type; a cast to a mask is 1 where the number is nonzero."""
    value = call.value()
    wanted = call.given.get("dtype")
    if value.keep is None:
        return call.typed(value, wanted)
    found = call.typed(ImportedValue(value.base, value.view), wanted)
    return ImportedValue(found.base, found.view, value.keep)


def dropout(call: OperatorCall) -> Written:
    """Write ``dropout`` in evaluation: the operand itself."""
    if call.given["train"] and call.given["p"]:
        raise unsupported_error("expected dropout in evaluation, got dropout in training", "call module.eval() first")
    return call.value("input")

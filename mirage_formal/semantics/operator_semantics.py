"""Definition of every operator by the primitive operators of a domain.

Macro operators are expanded here, once for all domains: mean, rms_norm, layer_norm, softmax, silu, abs, pad, the
accumulators. Mean and root mean square divide by the exact number of elements (the loop's iterations included).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, Generic

from msgspec import Struct, structs

from mirage_formal.graph.ops import ARITHMETIC, COMPARISONS, FUNCTIONS, Attrs, BlockContext, OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.value_domain import LEADING, LOOP_AXIS, Domain, T


class AxisValue(Struct, Generic[T], frozen=True):
    """A domain value with its leading axes (none at kernel level) and its data shape."""

    value: T
    lead: tuple[int, ...]
    shape: Shape

    @property
    def full(self) -> Shape:
        """Return the extents of all axes of the array: the level's own, then the tensor's."""
        return (*self.lead, *self.shape)


class LevelOperators(Generic[T]):
    """Operators of one level (kernel or block), on values that carry their shapes."""

    def __init__(self, domain: Domain[T], context: BlockContext | None) -> None:
        self.domain = domain
        self.context = context
        self.leading = 0 if context is None else LEADING

    @property
    def iterations(self) -> int:
        """Return the range of the block's loop."""
        assert self.context is not None
        return self.context.forloop_range

    def unary(self, kind: OpKind, a: AxisValue[T]) -> AxisValue[T]:
        """Apply ``Domain.unary`` to a value of this level."""
        return structs.replace(a, value=self.domain.unary(kind, a.value))

    def binary(self, kind: OpKind, a: AxisValue[T], b: AxisValue[T]) -> AxisValue[T]:
        """Apply ``Domain.binary`` to values of this level."""
        full = tuple(max(x, y) for x, y in zip(a.full, b.full, strict=True))
        return self.wrap(self.domain.binary(kind, a.value, b.value), full)

    def scale(self, a: AxisValue[T], factor: Fraction) -> AxisValue[T]:
        """Apply ``Domain.scale`` to a value of this level."""
        return structs.replace(a, value=self.domain.scale(a.value, factor))

    def offset(self, a: AxisValue[T], constant: Fraction) -> AxisValue[T]:
        """Apply ``Domain.offset`` to a value of this level."""
        return structs.replace(a, value=self.domain.offset(a.value, constant))

    def sum(self, a: AxisValue[T], dim: int, kept: int = 1) -> AxisValue[T]:
        """Return the sum along a dim of the tensor; ``kept`` as in ``Domain.sum``."""
        return self.fold(a, self.leading + dim, kept)

    def fold(self, a: AxisValue[T], axis: int, kept: int = 1) -> AxisValue[T]:
        """Return the sum along an axis of the array; ``kept`` as in ``Domain.sum``."""
        full = a.full
        return self.wrap(self.domain.sum(a.value, axis, full[axis], kept), _with_extent(full, axis, kept))

    def repeat(self, a: AxisValue[T], axis: int, times: int) -> AxisValue[T]:
        """Apply ``Domain.repeat`` to a value of this level."""
        if times == 1:
            return a
        return self.wrap(self.domain.repeat(a.value, axis, times), _with_extent(a.full, axis, times))

    def reshape(self, a: AxisValue[T], full: Shape) -> T:
        """Return the array of the value with other extents."""
        return a.value if full == a.full else self.domain.reshape(a.value, full)

    def slice(self, a: AxisValue[T], dim: int, start: int, stop: int) -> AxisValue[T]:
        """Apply ``Domain.slice`` along a dim of the tensor."""
        axis = self.leading + dim
        return self.wrap(self.domain.slice(a.value, axis, start, stop), _with_extent(a.full, axis, stop - start))

    def over_loop(self, a: AxisValue[T]) -> AxisValue[T]:
        """Return the value with its loop axis expanded to all iterations, if it does not depend on the loop."""
        return self.repeat(a, LOOP_AXIS, self.iterations) if a.lead[LOOP_AXIS] == 1 else a

    def loop_sum(self, a: AxisValue[T]) -> AxisValue[T]:
        """Return the sum over the iterations of the loop."""
        return self.fold(self.over_loop(a), LOOP_AXIS)

    def wrap(self, value: T, full: Shape) -> AxisValue[T]:
        """Return an array of this level as a value."""
        return AxisValue(value, full[: self.leading], full[self.leading :])


def _with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _dim(attrs: Attrs) -> int:
    assert attrs.dim is not None
    return attrs.dim


#: The definition of one operator: (level, attributes, operands) -> results.
_Rule = Callable[[LevelOperators[T], Attrs, tuple[AxisValue[T], ...]], tuple[AxisValue[T], ...]]


def _unary(kind: OpKind) -> _Rule[Any]:
    return lambda w, attrs, xs: (w.unary(kind, xs[0]),)


def _binary(kind: OpKind) -> _Rule[Any]:
    return lambda w, attrs, xs: (w.binary(kind, xs[0], _second(w, attrs, xs)),)


def _matmul(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    a, b = xs
    lead = tuple(max(x, y) for x, y in zip(a.lead, b.lead, strict=True))
    value = w.domain.matmul(a.value, b.value, a.shape[-1])
    return (AxisValue(value, lead, (*a.shape[:-1], b.shape[-1])),)


def _constant_like(w: LevelOperators[T], x: AxisValue[T], constant: Fraction) -> AxisValue[T]:
    return w.offset(w.scale(x, Fraction(0)), constant)


def _second(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> AxisValue[T]:
    """Return the second operand, which may be a number."""
    return xs[1] if attrs.value is None else _constant_like(w, xs[0], attrs.value)


def _negate_mask(w: LevelOperators[T], m: AxisValue[T]) -> AxisValue[T]:
    return w.offset(w.scale(m, Fraction(-1)), Fraction(1))


def _comparison(kind: OpKind) -> _Rule[Any]:
    """Return the rule of a comparison of two operands, or of one and a number; a > b is b < a."""
    turned = {OpKind.GT: OpKind.LT, OpKind.GE: OpKind.LE}

    def rule(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
        a, b = xs[0], _second(w, attrs, xs)
        return (w.binary(turned[kind], b, a) if kind in turned else w.binary(kind, a, b),)

    return rule


def _select(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    """Return a selection as the sum of both values, each masked to 0 where it is not chosen."""
    mask, a = xs[:2]
    b = xs[2] if attrs.value is None else _constant_like(w, mask, attrs.value)
    found = w.binary(OpKind.SELECT, mask, a)
    if attrs.value == 0:
        return (found,)
    return (w.binary(OpKind.ADD, found, w.binary(OpKind.SELECT, _negate_mask(w, mask), b)),)


def _logical_not(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (_negate_mask(w, xs[0]),)


def _silu(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    (x,) = xs
    if OpKind.SILU in w.domain.keeps:
        return (w.unary(OpKind.SILU, x),)
    below = w.offset(w.unary(OpKind.EXP, w.scale(x, Fraction(-1))), Fraction(1))
    return (w.binary(OpKind.DIV, x, below),)


def _scale(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    assert attrs.factor is not None
    return (w.scale(xs[0], attrs.factor),)


def _abs(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    (x,) = xs
    if OpKind.ABS in w.domain.keeps:
        return (w.unary(OpKind.ABS, x),)
    return (w.unary(OpKind.SQRT, w.unary(OpKind.SQUARE, x)),)


def _shift(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    assert attrs.shift is not None
    return (w.offset(xs[0], attrs.shift),)


def _sum(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (w.sum(xs[0], _dim(attrs)),)


def _mean(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (_mean_of(w, xs[0], _dim(attrs)),)


def _mean_of(w: LevelOperators[T], x: AxisValue[T], dim: int) -> AxisValue[T]:
    return w.scale(w.sum(x, dim), Fraction(1, x.shape[dim]))


def _max(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (_max_along(w, xs[0], w.leading + _dim(attrs)),)


def _max_along(w: LevelOperators[T], x: AxisValue[T], axis: int) -> AxisValue[T]:
    (value,) = w.domain.ordered(OpKind.MAX, (x.value,), axis, x.full[axis])
    return w.wrap(value, _with_extent(x.full, axis, 1))


def _sum_to_dimx(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    assert w.context is not None
    dim = len(xs[0].shape) - 1 if attrs.dim is None else attrs.dim
    return (w.sum(xs[0], dim, w.context.reduction_dimx),)


def _softmax(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    (x,) = xs
    dim = _dim(attrs)
    if OpKind.SOFTMAX in w.domain.keeps:
        return (structs.replace(x, value=w.domain.softmax(x.value, w.leading + dim, x.shape[dim])),)
    e = w.unary(OpKind.EXP, x)
    return (w.binary(OpKind.DIV, e, w.sum(e, dim)),)


def _divide_by_rms(w: LevelOperators[T], x: AxisValue[T], attrs: Attrs) -> AxisValue[T]:
    """Return x / sqrt(mean(x^2) + eps) along attrs.dim."""
    square = _mean_of(w, w.unary(OpKind.SQUARE, x), _dim(attrs))
    below = square if attrs.eps is None else w.offset(square, attrs.eps)
    return w.binary(OpKind.DIV, x, w.unary(OpKind.SQRT, below))


def _rms_norm(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    out = _divide_by_rms(w, xs[0], attrs)
    return (w.binary(OpKind.MUL, out, xs[1]) if len(xs) > 1 else out,)


def _layer_norm(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    centred = w.binary(OpKind.SUB, xs[0], _mean_of(w, xs[0], _dim(attrs)))
    out = _divide_by_rms(w, centred, attrs)
    if len(xs) > 1:
        out = w.binary(OpKind.MUL, out, xs[1])
    return (w.binary(OpKind.ADD, out, xs[2]) if len(xs) > 2 else out,)


def _transpose(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    assert attrs.perm is not None
    (x,) = xs
    perm = (*range(w.leading), *(w.leading + i for i in attrs.perm))
    return (AxisValue(w.domain.transpose(x.value, perm), x.lead, tuple(x.shape[i] for i in attrs.perm)),)


def _reshape(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    assert attrs.shape is not None
    (x,) = xs
    return (AxisValue(w.reshape(x, (*x.lead, *attrs.shape)), x.lead, attrs.shape),)


def _concat(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    a, b = xs
    dim = _dim(attrs)
    for axis in range(w.leading):
        times = max(a.lead[axis], b.lead[axis])
        a = w.repeat(a, axis, times) if a.lead[axis] == 1 else a
        b = w.repeat(b, axis, times) if b.lead[axis] == 1 else b
    shape = _with_extent(a.shape, dim, a.shape[dim] + b.shape[dim])
    return (AxisValue(w.domain.concat(a.value, b.value, w.leading + dim), a.lead, shape),)


def _slice(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    assert attrs.start is not None
    assert attrs.stop is not None
    return (w.slice(xs[0], _dim(attrs), attrs.start, attrs.stop),)


def _pad(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    (x,) = xs
    assert attrs.before is not None
    assert attrs.after is not None
    dim = _dim(attrs)
    shape = _with_extent(x.shape, dim, attrs.before + x.shape[dim] + attrs.after)
    return (AxisValue(w.domain.padded(x.value, w.leading + dim, attrs.before, attrs.after), x.lead, shape),)


def _repeat(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    assert attrs.times is not None
    return (w.repeat(xs[0], w.leading + _dim(attrs), attrs.times),)


def _cast(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    # Over the reals a change of element type is the identity; the claims about numerics deal with rounding.
    return (xs[0],)


def _running_max(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    x = w.over_loop(xs[0])
    axis = w.leading + _dim(attrs)
    largest, factor = w.domain.ordered(OpKind.RUNNING_MAX, (x.value,), axis, x.full[axis])
    full = _with_extent(x.full, axis, 1)
    return w.wrap(largest, full), w.wrap(factor, full)


def _accum_sum(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (w.loop_sum(xs[0]),)


def _sum_last(w: LevelOperators[T], x: AxisValue[T]) -> AxisValue[T]:
    return w.sum(x, len(x.shape) - 1)


def _accum_sum_last(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (w.loop_sum(_sum_last(w, xs[0])),)


def _accum_mean(w: LevelOperators[T], x: AxisValue[T]) -> AxisValue[T]:
    total = w.loop_sum(_sum_last(w, x))
    return w.scale(total, Fraction(1, x.shape[-1] * w.iterations))


def _accum_mean_last(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (_accum_mean(w, xs[0]),)


def _accum_rms_last(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    return (w.unary(OpKind.SQRT, _accum_mean(w, w.unary(OpKind.SQUARE, xs[0]))),)


def _accum_sum_to_dimx(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    (folded,) = _sum_to_dimx(w, attrs, xs)
    return (w.loop_sum(folded),)


def _accum_concat(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    x = w.over_loop(xs[0])
    axis = w.leading + _dim(attrs)
    if x.lead[LOOP_AXIS] == 1:
        return (x,)
    # Move the loop axis to just before the dim that grows, then merge the two.
    order = [i for i in range(len(x.full)) if i != LOOP_AXIS]
    order.insert(order.index(axis), LOOP_AXIS)
    moved = w.domain.transpose(x.value, tuple(order))
    lead = (*x.lead[:LOOP_AXIS], 1)
    shape = _with_extent(x.shape, _dim(attrs), x.shape[_dim(attrs)] * w.iterations)
    return (AxisValue(w.domain.reshape(moved, (*lead, *shape)), lead, shape),)


def _accum_max(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    if xs[0].lead[LOOP_AXIS] == 1:
        return xs  # the largest of equal values
    return (_max_along(w, xs[0], LOOP_AXIS),)


def _accum_rescaled_sum(w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]) -> tuple[AxisValue[T], ...]:
    x, factor = w.over_loop(xs[0]), w.over_loop(xs[1])
    (value,) = w.domain.ordered(OpKind.ACCUM_RESCALED_SUM, (x.value, factor.value), LOOP_AXIS, w.iterations)
    lead = (*(max(a, b) for a, b in zip(x.lead[:LOOP_AXIS], factor.lead[:LOOP_AXIS], strict=True)), 1)
    return (AxisValue(value, lead, x.shape),)


def _accum_rescaled_sum_last(
    w: LevelOperators[T], attrs: Attrs, xs: tuple[AxisValue[T], ...]
) -> tuple[AxisValue[T], ...]:
    return _accum_rescaled_sum(w, attrs, (_sum_last(w, xs[0]), xs[1]))


def _table() -> Mapping[OpKind, _Rule[Any]]:
    table: dict[OpKind, _Rule[Any]] = {kind: _unary(kind) for kind in FUNCTIONS}
    table |= {kind: _binary(kind) for kind in ARITHMETIC}
    table |= {kind: _comparison(kind) for kind in COMPARISONS}
    table |= {
        OpKind.SELECT: _select,
        OpKind.LOGICAL_NOT: _logical_not,
        OpKind.ABS: _abs,
        OpKind.SHIFT: _shift,
        OpKind.SLICE: _slice,
        OpKind.PAD: _pad,
        OpKind.MATMUL: _matmul,
        OpKind.SILU: _silu,
        OpKind.SCALE: _scale,
        OpKind.SUM: _sum,
        OpKind.MEAN: _mean,
        OpKind.MAX: _max,
        OpKind.SUM_TO_DIMX: _sum_to_dimx,
        OpKind.SOFTMAX: _softmax,
        OpKind.RMS_NORM: _rms_norm,
        OpKind.LAYER_NORM: _layer_norm,
        OpKind.TRANSPOSE: _transpose,
        OpKind.RESHAPE: _reshape,
        OpKind.CONCAT: _concat,
        OpKind.REPEAT: _repeat,
        OpKind.CAST: _cast,
        OpKind.RUNNING_MAX: _running_max,
        OpKind.ACCUM_SUM: _accum_sum,
        OpKind.ACCUM_SUM_LAST: _accum_sum_last,
        OpKind.ACCUM_MEAN_LAST: _accum_mean_last,
        OpKind.ACCUM_RMS_LAST: _accum_rms_last,
        OpKind.ACCUM_SUM_TO_DIMX: _accum_sum_to_dimx,
        OpKind.ACCUM_CONCAT: _accum_concat,
        OpKind.ACCUM_MAX: _accum_max,
        OpKind.ACCUM_RESCALED_SUM: _accum_rescaled_sum,
        OpKind.ACCUM_RESCALED_SUM_LAST: _accum_rescaled_sum_last,
    }
    return MappingProxyType(table)


#: The definition of every operator; a test compares its keys with OpKind.
RULES: Final = _table()

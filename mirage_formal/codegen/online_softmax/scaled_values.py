"""Values represented as tensor * exp(shift), and the rule of each operator for them.

A shift is a tensor of the same rank as its value, constant along dims where its extent is 1. A sum may run only along
dims where the shift is constant. So a value is first rescaled to such a shift: the maximum of the shift along those
dims, or a running maximum if the sum goes on over the loop. The places are found by trial: an operator that meets an
unsuitable shift requests a maximum, and the traversal starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from typing import Final

from mirage_formal.codegen.online_softmax.normalization import is_bounded_exponential, is_log_softmax
from mirage_formal.codegen.online_softmax.shapes import reshape_shift
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import SPECS, Attrs, BlockContext, OpKind
from mirage_formal.graph.types import DTensor, DType, STensor, broadcast
from mirage_formal.rewrite.failure import MatchFailure
from mirage_formal.rewrite.graph_builders import GraphBuilder

#: The loop, as a member of the dims that a maximum is taken over.
LOOP: Final = -1
#: The lowest finite number of float32.
LOWEST: Final = Fraction(2**104 - 2**128)

#: Where a shift comes from: ("exp", kernel, block operator), ("in", kernel, iterator) or ("out", kernel, result).
Origin = tuple[str, int, int]
#: The dims over which the maximum of each origin is taken.
Maxima = dict[Origin, frozenset[int]]

_RESCALED: Final = {
    OpKind.ACCUM_SUM: OpKind.ACCUM_RESCALED_SUM,
    OpKind.ACCUM_SUM_LAST: OpKind.ACCUM_RESCALED_SUM_LAST,
}
_LAST: Final = frozenset({OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST})
_NORMS: Final = frozenset({OpKind.RMS_NORM, OpKind.LAYER_NORM})
_LINEAR: Final = frozenset({OpKind.SCALE, OpKind.REPEAT, OpKind.CAST})
_QUOTIENTS: Final = frozenset({OpKind.DIV, OpKind.DIV_NO_NAN})
#: Operators of elements that are linear in their first operand, or in both.
_FACTORS: Final = frozenset({OpKind.MUL, OpKind.SCALE, OpKind.CAST}) | _QUOTIENTS
_REDUCTIONS: Final = frozenset({OpKind.SUM, OpKind.MEAN, OpKind.SUM_TO_DIMX})


@dataclass(frozen=True, slots=True)
class MaximumRequest:
    """A request for a maximum: exponentials are summed along a dim (or the loop) where their shift is not constant."""

    origin: Origin
    dim: int


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A request to change the graph.

    Attributes:
        kernel: A kernel operator whose results change, with its readers.
        change: Returns the new graph.
    """

    kernel: int
    change: Callable[[KernelGraph], KernelGraph]


class RestartTraversal(Exception):
    """The traversal must start again, with what the request says."""

    def __init__(self, request: MaximumRequest | ChangeRequest) -> None:
        super().__init__(request)
        self.request = request


@dataclass(frozen=True, slots=True)
class Shift:
    """The exponent that was factored out of a value.

    Attributes:
        tensor: The shift.
        origin: The operator, iterator or result that the shift comes from.
        key: A key that is equal for shifts that are the same maximum of the same scores.
        factor: Inside a loop, exp(previous iteration's shift - shift) of a running maximum; None if none runs.
        moving: Whether the shift differs from iteration to iteration without being a running maximum.
    """

    tensor: int
    origin: Origin
    key: tuple[Hashable, int]
    factor: int | None = None
    moving: bool = False


@dataclass(frozen=True, slots=True)
class ScaledValue:
    """A value: a tensor, times exp of a shift if there is one.

    Attributes:
        number: The tensor.
        shift: Its shift.
        raw: Origins of unshifted exponentials in which the value is linear; a sum of the value needs a shift for them.
        moving: Whether it differs from iteration to iteration.
        lost: Whether dims have been rearranged since those exponentials.
        wide: In a block graph, the same value in float32 before rounding; None if the tensor was not rounded.
    """

    number: int
    shift: Shift | None = None
    raw: frozenset[Origin] = frozenset()
    moving: bool = False
    lost: bool = False
    wide: int | None = None


@dataclass(frozen=True, slots=True)
class _PlainExponential:
    """An exponential without a shift, or a masked selection of it.

    Attributes:
        scores: The operand of the exponential.
        key: A key of the operand and of the selections.
        masks: The masks, the last one first.
    """

    scores: int
    key: Hashable
    masks: tuple[int, ...] = ()


@dataclass(slots=True)
class ValueRules:
    """The rules of all operators for values, which emit to a builder of the new kernel or block graph.

    Attributes:
        new: The builder.
        context: Loop and reduction_dimx of a block graph; None at kernel level.
        maxima: The dims along which each shift needs a maximum.
        makers: The predefined operators of the old graph, by their first results.
        incomplete: Origins of shifts that still lack a dim for their running maximum.
        plain: The exponentials without a shift.
        exponents: Keys of the exponents of values that are linear in one such exponential and nothing else.
        unshifted: For values whose shift begins here, the same value without a shift; masks select from that one.
        values: The value of each tensor.
        keys: For each origin, the key of the exponent.
        logarithms: The summands log(t) and m of each tensor that is log(t exp(m)).
        cancelled: Whether the logarithm of an exponential was simplified.
    """

    new: GraphBuilder[STensor] | GraphBuilder[DTensor]
    context: BlockContext | None
    maxima: Maxima
    makers: Mapping[int, Op]
    incomplete: set[Origin] = field(default_factory=set)
    plain: dict[int, _PlainExponential] = field(default_factory=dict)
    exponents: dict[int, Hashable] = field(default_factory=dict)
    unshifted: dict[int, ScaledValue] = field(default_factory=dict)
    values: dict[int, ScaledValue] = field(default_factory=dict)
    keys: dict[Origin, Hashable] = field(default_factory=dict)
    logarithms: dict[int, tuple[int, int]] = field(default_factory=dict)
    cancelled: bool = False

    def summed(self, value: ScaledValue, dim: int) -> None:
        """Check that a value may be summed along a dim: its shift must be constant there.

        Raises:
            Restart: The shift is not constant there, or there is no shift yet.
            MatchFailure: Dims were rearranged between the exponential and its sum.
        """
        if self.new.shape(value.number)[dim] == 1 and value.shift is None:
            return
        for origin in sorted(value.raw):
            if value.lost:
                raise MatchFailure(
                    "dims are rearranged, or elements selected in another way, between an exponential and its sum"
                )
            raise RestartTraversal(MaximumRequest(origin, dim))
        if value.shift is not None and self.new.shape(value.shift.tensor)[dim] != 1:
            raise RestartTraversal(MaximumRequest(value.shift.origin, dim))

    def rebased(self, number: int | None, shift: Shift, moving: bool, scores: int | None = None) -> ScaledValue:
        """Return the value tensor * exp(shift), rescaled to the maxima of its shift that are known to be needed.

        Args:
            number: The tensor; None stands for ones.
            shift: Its shift.
            moving: Whether the value differs from iteration to iteration.
            scores: The full exponent, where the shift holds only some of its elements; None for the shift itself.
        """
        dims = self.maxima[shift.origin]
        top, factor = shift.tensor, None
        count = 1
        along = sorted(dims - {LOOP})
        for dim in along:
            count *= self.new.shape(top)[dim]
            if dim != along[-1] or LOOP not in dims:
                top = self.new.emit(OpKind.MAX, top, attrs=Attrs(dim=dim))
        if LOOP in dims:
            # A running maximum needs a dim; along one of extent 1 it is elementwise.
            ones = [dim for dim, extent in enumerate(self.new.shape(top)) if extent == 1]
            if not along and not ones:
                # A dim may yet turn out to be needed; if not, there is no form.
                self.incomplete.add(shift.origin)
                factor = self.new.emit(OpKind.EXP, top)
            else:
                dim = along[-1] if along else ones[0]
                top = self.new.emit(OpKind.RUNNING_MAX, top, attrs=Attrs(dim=dim))
                factor = top + 1
        exponent = shift.tensor if scores is None else scores
        weight = self.new.emit(OpKind.EXP, self.new.emit(OpKind.SUB, exponent, top))
        if number is not None:
            if broadcast(self.new.shape(number), self.new.shape(weight)) != self.new.shape(number):
                raise MatchFailure("a partial result and its shift are laid out differently")
            weight = self.new.emit(OpKind.MUL, number, self.new.cast(weight, self.new.types[number].dtype))
        found = replace(
            shift,
            tensor=top,
            key=(shift.key[0], shift.key[1] * count),
            factor=factor,
            moving=shift.moving and factor is None,
        )
        return ScaledValue(weight, found, moving=moving)

    def apply(
        self, op: Op, operands: tuple[ScaledValue, ...], origin: Origin, key: Hashable
    ) -> tuple[ScaledValue, ...]:
        """Return the results of an operator on values with shifts, and record them; see ``_applied``.

        Exponentials that are at most 1 may be summed without a maximum.
        """
        found = self._applied(op, operands, origin, key)
        self.values.update((value.number, value) for value in found)
        if is_bounded_exponential(op, self.makers) or (op.kind is OpKind.EXP and is_log_softmax(key)):
            found = tuple(replace(value, raw=frozenset()) for value in found)
        return found

    def _applied(
        self, op: Op, operands: tuple[ScaledValue, ...], origin: Origin, key: Hashable
    ) -> tuple[ScaledValue, ...]:
        """Return the results of an operator on values with shifts.

        Args:
            op: The operator of the old graph.
            operands: Its operands.
            origin: The name of the shift that it may begin.
            key: A key of its first operand, for shifts that begin here.

        Raises:
            Restart: A shift must be constant where it is not.
            MatchFailure: The operator is not linear in a shifted operand.
        """
        moving = any(v.moving for v in operands) and not SPECS[op.kind].accumulator
        if op.kind is OpKind.EXP and operands[0].shift is None and origin in self.maxima:
            weight = self.rebased(None, Shift(operands[0].number, origin, (key, 1), moving=moving), moving)
            self.unshifted[weight.number] = self._exponential(op, operands, origin, key)
            return (weight,)
        before = tuple(v.number for v in operands)
        if SPECS[op.kind].accumulator:
            return (self._accumulated(op, operands),)
        if op.kind is OpKind.EXP and operands[0].shift is None:
            return (self._exponential(op, operands, origin, key),)
        if op.kind in _QUOTIENTS:
            self._single(*operands)
            if (bounded := self._divided(op.kind, *operands)) is not None:
                return (ScaledValue(bounded, moving=moving),)
        if op.kind is OpKind.SELECT and op.attrs.value == 0:
            of = self.unshifted.get(operands[1].number, operands[1])
            if of.raw and of.shift is None:
                return (self._selected(op, (operands[0], of), origin, key),)
        if op.kind is OpKind.LOG and operands[0].shift is None and self._is_exponential(before[0]):
            scores = self.plain[before[0]].scores
            if self.new.maker(scores) is not None:  # log(exp(s)) is s, but a result is no input
                self.cancelled = True
                return (ScaledValue(scores, moving=moving),)
        if op.kind is OpKind.LOG and (whole := operands[0].shift) is not None:
            moves = moving or whole.moving or whole.factor is not None
            found, wide = self._logarithm(before[0], whole.tensor)
            return (ScaledValue(found, moving=moves, wide=wide),)
        if op.kind is OpKind.SUB and before[1] in self.logarithms and not operands[0].raw and operands[0].shift is None:
            found, wide = self._without_logarithm(op, *operands)
            return (ScaledValue(found, moving=moving, wide=wide),)
        shift = self._shift(op, operands)
        raw, lost = self._raw(op, operands)
        number, wide = self._emitted(op, operands)
        if op.kind in _FACTORS:
            self._keep(op, operands, number, origin, key)
        return tuple(ScaledValue(number + r, shift, raw, moving, lost, wide) for r in range(op.results))

    def _keep(self, op: Op, operands: tuple[ScaledValue, ...], number: int, origin: Origin, key: Hashable) -> None:
        """Record facts about a multiple of an exponential, for masks that select from it."""
        linear = [v.number for v in operands if v.raw]
        if len(linear) == 1 and linear[0] in self.exponents and (op.kind is OpKind.MUL or operands[0].raw):
            self.exponents[number] = self.exponents[linear[0]]
        plain = tuple(self.unshifted.get(v.number, v) for v in operands)
        if plain != operands and all(v.shift is None for v in plain) and (op.kind is OpKind.MUL or plain[0].raw):
            (self.unshifted[number],) = self._applied(op, plain, origin, key)

    def _exponential(self, op: Op, operands: tuple[ScaledValue, ...], origin: Origin, key: Hashable) -> ScaledValue:
        """Return an exponential without a shift."""
        found, wide = self._emitted(op, operands)
        self.plain[found] = _PlainExponential(operands[0].number, key)
        self.keys[origin] = self.exponents[found] = key
        return ScaledValue(found, raw=frozenset({origin}), moving=operands[0].moving, wide=wide)

    def _emitted(self, op: Op, operands: tuple[ScaledValue, ...]) -> tuple[int, int | None]:
        """Emit an operator and return its first result, and the same in float32 where an operand has a float32 version.

        A logarithm that is subtracted from all scores of a row must not be rounded: all its errors would be the same
        error.
        """
        before = tuple(v.number for v in operands)
        wides = [v.wide for v in operands]
        if not SPECS[op.kind].elementwise or op.kind is OpKind.CAST or all(wide is None for wide in wides):
            return self.new.emit(op.kind, *before, attrs=op.attrs), None
        given = [
            wide if wide is not None else self.new.cast(n, DType.FLOAT32) if self.new.types[n].dtype.floating else n
            for n, wide in zip(before, wides, strict=True)
        ]
        found = self.new.emit(op.kind, *given, attrs=op.attrs)
        if not self.new.types[found].dtype.floating:
            return found, None
        return self.new.cast(found, self.new.types[before[-1]].dtype), found

    def _is_exponential(self, number: int) -> bool:
        """Return whether a tensor is an exponential without a shift and without masks."""
        return number in self.plain and not self.plain[number].masks

    def _selected(self, op: Op, operands: tuple[ScaledValue, ...], origin: Origin, mask: Hashable) -> ScaledValue:
        """Return a masked selection of exponentials, or of a value that is linear in one.

        Scores that are not selected must not influence the maximum: they may be infinite or NaN.



        Args:
            op: The selection.
            operands: The mask and the value.
            origin: The name of the shift that begins here.
            mask: A key of the mask.
        """
        chooses, value = operands
        moving = chooses.moving or value.moving
        exponent = self.exponents.get(value.number)
        if exponent is not None and origin in self.maxima:
            shift = Shift(-1, origin, (("selected", mask, exponent), 1))
            found = self._shifted(value.number, (chooses.number,), shift)
            chosen = self.new.emit(op.kind, chooses.number, found.number, attrs=op.attrs)
            self.unshifted[chosen] = self._select_unshifted(op, operands, origin, mask)
            return replace(found, number=chosen, moving=moving)
        return self._select_unshifted(op, operands, origin, mask)

    def _select_unshifted(
        self, op: Op, operands: tuple[ScaledValue, ...], origin: Origin, mask: Hashable
    ) -> ScaledValue:
        """Return a masked selection of a value without a shift; see ``_selected``."""
        chooses, value = operands
        moving = chooses.moving or value.moving
        exponent = self.exponents.get(value.number)
        number, wide = self._emitted(op, operands)
        if exponent is None:
            # An exponential of another kernel may be computed here; for others the selected maximum is not known.
            lost = value.lost or self.context is None or self.new.maker(value.number) is not None
            return ScaledValue(number, raw=value.raw, moving=moving, lost=lost, wide=wide)
        key = self.exponents[number] = self.keys[origin] = ("selected", mask, exponent)
        if value.number in self.plain:
            inner: _PlainExponential = self.plain[value.number]
            self.plain[number] = _PlainExponential(inner.scores, key, (chooses.number, *inner.masks))
        return ScaledValue(number, raw=frozenset({origin}), moving=moving, wide=wide)

    def _shifted(self, number: int, masks: tuple[int, ...], shift: Shift) -> ScaledValue:
        """Return a value linear in one exponential, with the maximum of its selected scores factored out.

        Args:
            number: The value.
            masks: The masks by which it is selected.
            shift: The name of the shift; its tensor is computed here.
        """
        if self._is_exponential(number):
            moving = any(self.values[n].moving for n in (number, *masks) if n in self.values)
            scores = self.new.cast(self.plain[number].scores, DType.FLOAT32)
            mask = reduce(lambda a, b: self.new.emit(OpKind.MUL, a, b), masks)
            chosen = self.new.emit(OpKind.SELECT, mask, scores, attrs=Attrs(value=LOWEST))
            weight = self.rebased(None, replace(shift, tensor=chosen, moving=moving), moving, scores)
            return replace(weight, number=self.new.cast(weight.number, self.new.types[number].dtype))
        op = self.new.maker(number)
        assert op is not None
        if op.kind is OpKind.SELECT:
            masks = (*masks, op.operands[0])
        values = tuple(
            self._shifted(n, masks, shift) if n in self.exponents else self.values.get(n, ScaledValue(n))
            for n in op.operands
        )
        result = self.new.emit(op.kind, *(v.number for v in values), attrs=op.attrs)
        return ScaledValue(result, self._shift(op, values), moving=any(v.moving for v in values))

    def _single(self, above: ScaledValue, below: ScaledValue) -> None:
        """Check a quotient exp(s) / exp(s), whose divisor is a sum of one term: both may overflow without a maximum.

        Raises:
            Restart: They have a dim of extent 1, along which the maximum is taken.
        """
        if len(below.raw) != 1 or below.shift is not None or above.lost or below.lost:
            return
        (origin,) = below.raw
        alike = above.raw == below.raw or (
            above.number in self.plain and self.plain[above.number].key == self.keys.get(origin)
        )
        ones = [dim for dim, extent in enumerate(self.new.shape(below.number)) if extent == 1]
        if alike and ones:
            raise RestartTraversal(MaximumRequest(origin, ones[0]))

    def _divided(self, kind: OpKind, above: ScaledValue, below: ScaledValue) -> int | None:
        """Return exp(s) / (t exp(m)) as exp(s - m) / t, where t exp(m) is the sum of exponentials of the same scores.

        The exponential itself is not summed here, so it has no maximum of its own; the maximum of the sum bounds it.
        Return None for any other quotient.
        """
        if above.shift is not None or below.shift is None or above.number not in self.plain:
            return None
        plain = self.plain[above.number]
        if plain.key != below.shift.key[0]:
            return None
        top = below.shift.tensor
        scores = self.new.cast(plain.scores, self.new.types[top].dtype)
        exponential = self.new.emit(OpKind.EXP, self.new.emit(OpKind.SUB, scores, top))
        exponential = self.new.cast(exponential, self.new.types[above.number].dtype)
        for mask in reversed(plain.masks):
            exponential = self.new.emit(OpKind.SELECT, mask, exponential, attrs=Attrs(value=Fraction(0)))
        return self.new.emit(kind, exponential, below.number)

    def _logarithm(self, number: int, shift: int) -> tuple[int, int | None]:
        """Return log(t exp(m)) as log(t) + m in the element type of t, and the unrounded sum in the type of m.

        The unrounded sum is None at kernel level: operators are launched one by one there, so it would cost more
        launches.
        """
        dtype = self.new.types[number].dtype
        logarithm = self.new.cast(self.new.emit(OpKind.LOG, number), self.new.types[shift].dtype)
        found = self.new.emit(OpKind.ADD, logarithm, shift)
        result, wide = self._rounded_pair(found, dtype)
        self.logarithms[result] = (logarithm, shift)
        return result, wide

    def _rounded_pair(self, number: int, dtype: DType) -> tuple[int, int | None]:
        """Return a tensor as another element type, and in a block graph the same in float32 if that rounds it."""
        unrounded = self.context is not None and self.new.types[number].dtype is DType.FLOAT32 is not dtype
        return self.new.cast(number, dtype), number if unrounded else None

    def _without_logarithm(self, op: Op, scores: ScaledValue, total: ScaledValue) -> tuple[int, int | None]:
        """Return s - (log(t) + m) as (s - m) - log(t): for a large m the sum would lose log(t).

        Args:
            op: The subtraction.
            scores: s.
            total: The logarithm.
        """
        logarithm, shift = self.logarithms[total.number]
        exact = self.new.cast(scores.number if scores.wide is None else scores.wide, self.new.types[shift].dtype)
        found = self.new.emit(op.kind, self.new.emit(op.kind, exact, shift), logarithm)
        return self._rounded_pair(found, self.new.types[scores.number].dtype)

    def _raw(self, op: Op, operands: tuple[ScaledValue, ...]) -> tuple[frozenset[Origin], bool]:
        """Return ``ScaledValue.raw`` and ``ScaledValue.lost`` of the results of an operator.

        Squares of values that are linear in an exponential count as well.
        """
        first = operands[0]
        match op.kind:
            case OpKind.ADD | OpKind.SUB | OpKind.MUL | OpKind.MATMUL | OpKind.CONCAT:
                return first.raw | operands[1].raw, first.lost or operands[1].lost
            case OpKind.TRANSPOSE | OpKind.RESHAPE:
                return first.raw, bool(first.raw)
            case OpKind.DIV | OpKind.DIV_NO_NAN | OpKind.SQUARE:
                return first.raw, first.lost
            case OpKind.SELECT if op.attrs.value is None:
                # The maximum of the selected elements of either is not known.
                raw = operands[1].raw | operands[2].raw
                return raw, bool(raw)
            case _ if op.kind in _LINEAR or op.kind in _REDUCTIONS:
                return first.raw, first.lost
            case _:
                return frozenset(), False

    def _shift(self, op: Op, operands: tuple[ScaledValue, ...]) -> Shift | None:
        """Return the shift of the results of an operator."""
        kind, first = op.kind, operands[0]
        shifts: list[Shift | None] = [v.shift for v in operands]
        match kind:
            case OpKind.MATMUL:
                self.summed(first, len(self.new.shape(first.number)) - 1)
                self.summed(operands[1], len(self.new.shape(first.number)) - 2)
                return self._only(op, shifts)
            case OpKind.MUL:
                return self._only(op, shifts)
            case OpKind.DIV | OpKind.DIV_NO_NAN:
                return self._quotient(shifts[0], shifts[1])
            case OpKind.ADD | OpKind.SUB | OpKind.CONCAT:
                return self._common(op, shifts)
            case OpKind.SELECT if op.attrs.value == 0:
                return shifts[1]
            case OpKind.SELECT if op.attrs.value is None:
                return self._common(op, shifts[1:])
            case OpKind.TRANSPOSE if first.shift is not None:
                return replace(first.shift, tensor=self.new.emit(kind, first.shift.tensor, attrs=op.attrs))
            case OpKind.RESHAPE if first.shift is not None:
                assert op.attrs.shape is not None
                shape = reshape_shift(self.new.shape(first.number), self.new.shape(first.shift.tensor), op.attrs.shape)
                return replace(first.shift, tensor=self.new.emit(kind, first.shift.tensor, attrs=Attrs(shape=shape)))
            case OpKind.SQUARE if first.shift is not None:
                return self._squared(first.shift)
            case _ if kind in _LINEAR:
                return shifts[0]
            case _ if kind in _REDUCTIONS:
                assert op.attrs.dim is not None
                self.summed(first, op.attrs.dim)
                return shifts[0]
            case _ if kind in _NORMS and op.attrs.eps is None:
                # A norm without eps is the same for any multiple of its operand.
                assert op.attrs.dim is not None
                self.summed(first, op.attrs.dim)
                return self._common(op, [None, *shifts[1:]])
            case _:
                return self._common(op, [None, *shifts])

    def _squared(self, shift: Shift) -> Shift:
        factor = None if shift.factor is None else self.new.emit(OpKind.SQUARE, shift.factor)
        twice = self.new.emit(OpKind.SCALE, shift.tensor, attrs=Attrs(factor=Fraction(2)))
        return replace(shift, tensor=twice, key=(("squared", shift.key[0]), shift.key[1]), factor=factor)

    def _only(self, op: Op, shifts: list[Shift | None]) -> Shift | None:
        found = [shift for shift in shifts if shift is not None]
        if len(found) > 1:
            raise MatchFailure(f"{op.kind.value} of two sums of exponentials")
        return found[0] if found else None

    def _quotient(self, above: Shift | None, below: Shift | None) -> Shift | None:
        if below is None:
            return above
        if above is None or above.key != below.key:
            raise MatchFailure("a quotient whose parts are not sums of the same exponentials")
        return None

    def _common(self, op: Op, shifts: list[Shift | None]) -> Shift | None:
        if all(shift is None for shift in shifts):
            return None
        if op.kind in (OpKind.ADD, OpKind.SUB, OpKind.SELECT) and shifts[0] == shifts[1]:
            return shifts[0]
        raise MatchFailure(f"{op.kind.value} of a sum of exponentials")

    def _accumulated(self, op: Op, operands: tuple[ScaledValue, ...]) -> ScaledValue:
        """Return the result of an accumulator."""
        value, kind = operands[0], op.kind
        before = tuple(v.number for v in operands)
        summing = kind in _LAST or kind in (OpKind.ACCUM_SUM, OpKind.ACCUM_SUM_TO_DIMX)
        if not summing:
            if any(v.shift is not None for v in operands):
                raise MatchFailure(f"{kind.value} of a sum of exponentials")
            raw = value.raw if kind is OpKind.ACCUM_CONCAT else frozenset()
            return ScaledValue(self.new.emit(kind, *before, attrs=op.attrs), raw=raw)
        if kind is not OpKind.ACCUM_SUM:
            self.summed(value, len(self.new.shape(value.number)) - 1)
        assert self.context is not None
        if value.moving:
            for origin in sorted(value.raw):
                raise RestartTraversal(MaximumRequest(origin, LOOP))
        shift = value.shift
        if shift is None:
            return ScaledValue(self.new.emit(kind, *before, attrs=op.attrs), raw=value.raw)
        if shift.moving:
            raise RestartTraversal(MaximumRequest(shift.origin, LOOP))
        # A running maximum does not fall, so its largest value is its last.
        top = self.new.emit(OpKind.ACCUM_MAX, shift.tensor)
        if shift.factor is None:
            return ScaledValue(self.new.emit(kind, *before, attrs=op.attrs), replace(shift, tensor=top))
        count = shift.key[1] * self.context.forloop_range
        after = replace(shift, tensor=top, factor=None, key=(shift.key[0], count))
        return ScaledValue(self._rescaled(kind, value.number, shift.factor), after)

    def _rescaled(self, kind: OpKind, number: int, factor: int) -> int:
        assert self.context is not None
        factor = self.new.cast(factor, self.new.types[number].dtype)
        last = len(self.new.shape(number)) - 1
        match kind:
            case OpKind.ACCUM_SUM_TO_DIMX:
                folded = self.new.emit(OpKind.SUM_TO_DIMX, number, attrs=Attrs(dim=last))
                return self.new.emit(OpKind.ACCUM_RESCALED_SUM, folded, factor)
            case OpKind.ACCUM_MEAN_LAST:
                share = Fraction(1, self.new.shape(number)[last] * self.context.forloop_range)
                total = self.new.emit(OpKind.ACCUM_RESCALED_SUM_LAST, number, factor)
                return self.new.emit(OpKind.SCALE, total, attrs=Attrs(factor=share))
            case _:
                return self.new.emit(_RESCALED[kind], number, factor)

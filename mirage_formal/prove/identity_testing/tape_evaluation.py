"""Programs in Z_p x Z_q: exact evaluation of a tape at one point of the field.

exp takes x in Z_q to omega^x in Z_p, where omega has order q; then exp(a)exp(b) = exp(a + b) holds exactly. sqrt is the
principal root, defined on residues only. Division by zero and roots of non-residues are reported, never replaced by
something else. Opaque functions (``graph.ops.OPAQUE``) are keyed hashes of the part they are applied to: random
functions, the same in every program evaluated at the point. Those of two elements hash the sum of both elements'
hashes, which is symmetric. Comparisons are random bits, keyed by the difference of the values in Z_p: a comparison is
the same number, 0 or 1, in both fields, as an element of a mask is. A selection is the product of mask and value.
``div_no_nan`` is 0 where its divisor is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mirage_formal.graph.ops import COMPARISONS, OPAQUE, ZERO_AT_ZERO, OpKind
from mirage_formal.prove.identity_testing.modular_arithmetic import (
    Modulus,
    Powers,
    Residues,
    Words,
    splitmix_round,
    to_uint64,
)
from mirage_formal.prove.identity_testing.primes import FieldPair
from mirage_formal.prove.identity_testing.value_cache import ValueCache
from mirage_formal.semantics.straight_line_trace import (
    BinaryStep,
    ConcatStep,
    ConstantStep,
    LoadStep,
    Matmul,
    Needs,
    OrderStep,
    RepeatStep,
    Reshape,
    ResiduePart,
    SliceStep,
    Step,
    SumStep,
    Tape,
    Transpose,
    UnaryStep,
    join_sums_of_products,
    needed_steps,
    read_part,
    step_operands,
)

#: Reads one part of one input.
Inputs = Callable[[int, ResiduePart], Residues]
#: The two 64-bit words that key a random function.
HashKey = tuple[int, int]


class FieldPoint:
    """The part of a point besides the inputs: the fields, the root of unity omega and the keys of opaque functions."""

    def __init__(self, pair: FieldPair, omega: int, keys: dict[OpKind, HashKey]) -> None:
        """Create a point from the fields, omega and the keys.

        Args:
            pair: The primes of the fields.
            omega: An element of order q in Z_p.
            keys: The keys of every opaque function.
        """
        assert omega != 1
        assert pow(omega, pair.q, pair.p) == 1
        self.pair = pair
        self.omega = omega
        self.fields: Final = {ResiduePart.P: Modulus(pair.p), ResiduePart.Q: Modulus(pair.q)}
        self.keys = keys
        self._powers: Powers | None = None

    def exp(self, x: Residues) -> Words:
        """Return omega^x in Z_p for x in Z_q."""
        if self._powers is None:
            self._powers = Powers(self.fields[ResiduePart.P], self.omega, self.pair.q)
        return self._powers(x)

    def opaque(self, kind: OpKind, x: Residues, part: ResiduePart) -> Words:
        """Return a keyed hash of x: two rounds of the splitmix64 finaliser, reduced modulo the field's prime.

        It is 0 at 0 for functions that are 0 there, so that padding zeros stay 0.
        """
        found = self.fields[part].reduced(self._hash(kind, x))
        return np.where(x == 0, np.uint64(0), found) if kind in ZERO_AT_ZERO else found

    def compared(self, kind: OpKind, a: Residues, b: Residues) -> Words:
        """Return a bit for each pair of elements of Z_p, keyed by their difference.

        Sound: only what holds of all numbers holds of the bits: equal differences give equal ones, a = b is b = a and
        holds where the difference is 0, a < b does not hold there, and a <= b is the negation of b < a.
        """
        field = self.fields[ResiduePart.P]
        if kind is OpKind.LE:
            return np.uint64(1) - self.compared(OpKind.LT, b, a)
        difference = field.subtract(a, b)
        if kind is OpKind.EQ:
            difference = np.minimum(difference, field.subtract(b, a))
        bit = self._hash(kind, difference) & np.uint64(1)
        return np.where(difference == 0, np.uint64(kind is OpKind.EQ), bit)

    def _hash(self, kind: OpKind, x: Residues) -> Words:
        first, second = self.keys[kind]
        with np.errstate(over="ignore"):
            z = splitmix_round((to_uint64(x) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(first))
            return splitmix_round(z ^ np.uint64(second))


def opaque_key(kind: OpKind) -> OpKind:
    """Return the opaque function whose key an operator uses."""
    return OpKind.LT if kind is OpKind.LE else kind


@dataclass(frozen=True, slots=True, eq=False)
class UndefinedStep:
    """A step without a value at this point.

    Attributes:
        reader: Number of the quotient or root that has no value.
        step: Number of the step at fault: a denominator that is 0 or a radicand that is no residue.
        part: The field.
        bad: The elements of that step that are at fault.
        reason: A description, for the log.
    """

    reader: int
    step: int
    part: ResiduePart
    bad: NDArray[np.bool_]
    reason: str


class Unrepresentable(Struct, frozen=True):
    """A constant of the program is 0 or has no residue in the field."""

    reason: str


Outcome = tuple[Words, ...] | UndefinedStep | Unrepresentable


def run_tape(tape: Tape, wanted: Needs, point: FieldPoint, inputs: Inputs, kept: ValueCache | None = None) -> Outcome:
    """Return the outputs of a tape in Z_p, or the first step that has no value.

    Args:
        tape: The program.
        wanted: The parts to compute (``tape.needs``).
        point: Fields, omega and keys.
        inputs: The inputs' residues.
        kept: The cache of values that tapes computed with these fields, omega, keys and inputs; steps that only lead to
            such values are skipped. They have values, so the first step without one is the same.
    """
    tape = Tape(join_sums_of_products(tape), tape.outputs)
    last = _last_uses(tape, wanted)
    kept = ValueCache(0) if kept is None else kept
    values, todo = kept.begin(tape, wanted)
    for number, step, parts in needed_steps(tape, wanted):
        for part in parts:
            if (number, part) not in todo:
                continue
            value: Residues | UndefinedStep | Unrepresentable
            if isinstance(step, Matmul):
                value = kept.matmul(point.fields[part], values[step.a, part], values[step.b, part], step.summed)
            else:
                value = _value(number, step, part, point, values, inputs)
            if isinstance(value, UndefinedStep | Unrepresentable):
                return value
            values[number, part] = value
            kept.add(step, todo[number, part], part, value)
        for dead in last.get(number, ()):
            for part in ResiduePart:
                values.pop((dead, part), None)
    return tuple(to_uint64(values[number, ResiduePart.P]) for number in tape.outputs)


def _last_uses(tape: Tape, wanted: Needs) -> dict[int, list[int]]:
    """Return, for each step, the steps that are read by it last, so that their memory can be freed."""
    final: dict[int, int] = {}
    for number, step, _ in needed_steps(tape, wanted):
        for operand in step_operands(step):
            final[operand] = number
    for output in tape.outputs:
        final.pop(output, None)
    uses: dict[int, list[int]] = {}
    for operand, number in final.items():
        uses.setdefault(number, []).append(operand)
    return uses


def _value(
    number: int,
    step: Step,
    part: ResiduePart,
    point: FieldPoint,
    values: dict[tuple[int, ResiduePart], Residues],
    inputs: Inputs,
) -> Residues | UndefinedStep | Unrepresentable:
    field = point.fields[part]
    match step:
        case LoadStep():
            return inputs(step.index, step.drawn(part))
        case UnaryStep():
            return _unary(number, step, part, point, values)
        case BinaryStep():
            return _binary(number, step, part, point, values)
        case ConstantStep():
            constant = field.constant(step.value)
            if constant is None:
                return Unrepresentable(f"the constant {step.value} has no faithful picture modulo {field.m}")
            act = field.scale if step.kind is OpKind.SCALE else field.offset
            return act(values[step.a, part], constant)
        case SumStep():
            return field.sum(values[step.a, part], step.axis, step.kept)
        case ConcatStep():
            return np.concatenate([to_uint64(values[step.a, part]), to_uint64(values[step.b, part])], axis=step.axis)
        case Reshape():
            return values[step.a, part].reshape(step.shape)
        case Transpose():
            return values[step.a, part].transpose(step.perm)
        case SliceStep():
            length = step.shape[step.axis]
            return values[step.a, part][(*(slice(None),) * step.axis, slice(step.start, step.start + length))]
        case RepeatStep():
            return np.broadcast_to(values[step.a, part], step.shape)
        case Matmul() | OrderStep():
            raise AssertionError("run_tape has multiplied, and needs() has refused this tape")
        case _:
            assert_never(step)


def _unary(
    number: int, step: UnaryStep, part: ResiduePart, point: FieldPoint, values: dict[tuple[int, ResiduePart], Residues]
) -> Residues | UndefinedStep:
    field = point.fields[part]
    match step.kind:
        case OpKind.EXP:
            return point.exp(values[step.a, ResiduePart.Q])
        case OpKind.SQUARE:
            return field.multiply(values[step.a, part], values[step.a, part])
        case OpKind.SQRT:
            root, bad = field.root(values[step.a, part])
            return UndefinedStep(number, step.a, part, bad, "a radicand is no residue") if bad.any() else root
        case OpKind.RECIPROCAL:
            bad = values[step.a, part] == 0
            if bad.any():
                return UndefinedStep(number, step.a, part, bad, "a denominator is 0")
            return field.inverse(values[step.a, part])
        case kind if kind in OPAQUE:
            return point.opaque(kind, values[step.a, part], part)
        case _:
            raise AssertionError(step.kind)


def _binary(
    number: int, step: BinaryStep, part: ResiduePart, point: FieldPoint, values: dict[tuple[int, ResiduePart], Residues]
) -> Residues | UndefinedStep:
    read = read_part(step, part)
    a, b, field = values[step.a, read], values[step.b, read], point.fields[part]
    match step.kind:
        case OpKind.ADD:
            return field.add(a, b)
        case OpKind.SUB:
            return field.subtract(a, b)
        case OpKind.MUL | OpKind.SELECT:
            return field.multiply(a, b)
        case OpKind.DIV_NO_NAN:
            zero = b == 0
            inverses = field.inverse(np.where(zero, np.uint64(1), to_uint64(b)))
            return field.multiply(a, np.where(zero, np.uint64(0), inverses))
        case _ if step.kind in COMPARISONS:
            return point.compared(step.kind, a, b)
        case OpKind.DIV:
            bad = b == 0
            if bad.any():
                return UndefinedStep(number, step.b, part, bad, "a denominator is 0")
            return field.multiply(a, field.inverse(b))
        case OpKind.MAXIMUM | OpKind.MINIMUM:
            both = field.add(point.opaque(step.kind, a, part), point.opaque(step.kind, b, part))
            return point.opaque(step.kind, both, part)
        case _:
            raise AssertionError(step.kind)

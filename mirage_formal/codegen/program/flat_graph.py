"""Primitive operators of a flattened block graph, in which macro operators and thread graphs are expanded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mirage_formal.codegen.program.program import BinaryFn, UnaryFn


class MapFn(Enum):
    """Elementwise operations other than functions of one or two numbers."""

    #: The second operand where the first, a mask, is not 0, and the last elsewhere.
    SELECT = "select"
    #: The constant everywhere; there are no operands.
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """An elementwise operator with broadcasting: result = fn of the operands; a constant stands for the last one.

    In a ``finite`` difference, a second operand below the lowest finite float32 counts as that number. The operand is a
    maximum m, and exp(x - m) is 0 for x = -inf, even if all x are -inf.
    """

    result: int
    fn: UnaryFn | BinaryFn | MapFn
    operands: tuple[int, ...]
    constant: float | None = None
    finite: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """A sum or maximum over one dim, of whose extent ``kept`` remain: element i combines i, i + kept, ..."""

    result: int
    fn: BinaryFn
    operand: int
    dim: int
    kept: int = 1


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product over the last two dims; all dims before them have extent 1."""

    result: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Concat:
    """A concatenation: a followed by b along one dim."""

    result: int
    a: int
    b: int
    dim: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """A broadcast: a dim of extent 1 repeated."""

    result: int
    operand: int
    dim: int


@dataclass(frozen=True, slots=True)
class Accumulate:
    """A sum or maximum over the iterations, and over one dim as well if ``dim`` is set (as in Reduce).

    With a ``factor``, the sum so far is multiplied by it before the new term is added.
    """

    result: int
    fn: BinaryFn
    operand: int
    dim: int | None = None
    kept: int = 1
    factor: int | None = None


@dataclass(frozen=True, slots=True)
class LoopConcat:
    """A concatenation of the iterations' tensors along one dim."""

    result: int
    operand: int
    dim: int


@dataclass(frozen=True, slots=True)
class RunningMax:
    """A running maximum and its rescaling factor.

    largest = max over the iterations so far; rescale = exp(previous largest - largest), 0 in the first iteration. It
    begins at the lowest finite float32, so that exp(x - largest) is 0 for x = -inf, and never NaN.
    """

    largest: int
    rescale: int
    operand: int


FlatOp = Elementwise | Reduce | Product | Concat | Repeat | Accumulate | LoopConcat | RunningMax


def defined_tensors(op: FlatOp) -> tuple[int, ...]:
    """Return the numbers of the tensors that an operator defines."""
    return (op.largest, op.rescale) if isinstance(op, RunningMax) else (op.result,)


def operands_of(op: FlatOp) -> tuple[int, ...]:
    """Return the numbers of the tensors that an operator reads."""
    match op:
        case Elementwise():
            return op.operands
        case Product() | Concat():
            return (op.a, op.b)
        case Accumulate():
            return (op.operand,) if op.factor is None else (op.operand, op.factor)
        case _:
            return (op.operand,)

"""Loop splitting: a check that each iteration may run as several iterations on smaller tiles, with the same results.

More of the smaller tiles fit in shared memory. A µGraph fixes the number of iterations of a loop. They may be split
further if all results of the loop are sums, maxima, and concatenations along the dim that the loop splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirage_formal.codegen.planning.expand import FlatGraph
from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Concat,
    Elementwise,
    FlatOp,
    LoopConcat,
    MapFn,
    Product,
    Reduce,
    Repeat,
    RunningMax,
    operands_of,
)
from mirage_formal.codegen.program.plan import Phase
from mirage_formal.codegen.program.program import (
    BinaryFn,
    KernelFn,
)
from mirage_formal.graph.ops import OpKind

_ROUNDS: Final = (KernelFn.ROUND_HALF, KernelFn.ROUND_BFLOAT)


@dataclass(frozen=True, slots=True)
class _Invariant:
    """A loop-invariant value: the same in every iteration."""


@dataclass(frozen=True, slots=True)
class _Concatenation:
    """A concatenation of the values of an iteration's pieces along a dim.

    Attributes:
        dim: The dim.
        weight: The rescaling factor of a running maximum m, if the value is f * exp(-m), where no piece of f depends on
            m; None if no running maximum is involved.
        shifted: Whether the value is f - m, before the exponential.
    """

    dim: int
    weight: int | None = None
    shifted: bool = False


@dataclass(frozen=True, slots=True)
class _PieceReduction:
    """The sum or maximum over the pieces of an iteration; ``weight`` as in ``_Concatenation``."""

    fn: BinaryFn
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class _RunningMaximum:
    """A running maximum, with its rescaling factor."""

    rescale: int


@dataclass(frozen=True, slots=True)
class _RescalingFactor:
    """The rescaling factor of a running maximum."""


_State = _Invariant | _Concatenation | _PieceReduction | _RunningMaximum | _RescalingFactor
_FIXED: Final = _Invariant()
_SUM: Final = _PieceReduction(BinaryFn.ADD)


def can_split_iterations(flat: FlatGraph, finer: FlatGraph, loops: Sequence[int | None]) -> bool:
    """Return whether every iteration of a kernel may be cut into several, along the dims that its loop splits.

    Sound: both are the same operators, with the same constants, on tiles of other extents. Each tensor of the loop is
    tracked as the same in all pieces, as their values one behind another along a dim, or as their sum or maximum, by
    rules that hold for real numbers whatever the values. What is accumulated is accepted only if it is such a sum,
    maximum or concatenation, so that the accumulator of all pieces is that of the iterations. A sum that is relative to
    a running maximum m is accepted only as a sum of f * exp(-m), where m is the same for all that is summed, with the
    factor of the same maximum: it is the sum of all f so far times exp(-m) for the largest m so far, however that was
    cut. Anything else is not cut.

    Args:
        flat: The flattened block graph.
        finer: The same with several iterations for each of its.
        loops: For each input the dim that the loop splits, if it does.
    """
    count = finer.iterations // flat.iterations
    same = (flat.ops, flat.outputs) == (finer.ops, finer.outputs)  # no mean of iterations has another divisor
    if not same or flat.iterations == 1 or count * flat.iterations != finer.iterations:
        return False
    states: dict[int, _State] = {}
    for number, tensor in enumerate(flat.tensors[: len(loops)]):
        dim = loops[number]
        if dim is not None and tensor.shape[dim] % count:
            return False
        states[number] = _FIXED if dim is None else _Concatenation(dim)
    rules = _Rules(flat, finer, states)
    return all(rules.follow(op) for op in flat.ops) and not any(
        flat.tensors[n].phase is Phase.LOOP for n in flat.outputs
    )


class _Rules:
    def __init__(self, flat: FlatGraph, finer: FlatGraph, states: dict[int, _State]) -> None:
        self.flat, self.finer, self.states = flat, finer, states
        self.count = finer.iterations // flat.iterations

    def follow(self, op: FlatOp) -> bool:
        """Record the state of an operator's results.

        Returns:
            False if the state is unknown, or if an accumulator would not have the same result.
        """
        if isinstance(op, Accumulate | LoopConcat):
            return self._accumulated(op)
        if isinstance(op, RunningMax):
            self.states[op.largest], self.states[op.rescale] = _RunningMaximum(op.rescale), _RescalingFactor()
            return self.states.get(op.operand) == _PieceReduction(BinaryFn.MAX)
        if self.flat.tensors[op.result].phase is Phase.AFTER:
            return all(self.flat.tensors[n].phase is not Phase.LOOP for n in operands_of(op))
        state = self._result(op)
        if state is not None:
            self.states[op.result] = state
        return state is not None

    def _result(self, op: FlatOp) -> _State | None:
        match op:
            case Elementwise():
                return self._mapped(op)
            case Reduce():
                return self._reduced(op.operand, op.fn, op.dim, op.kept)
            case Product():
                return self._product(op)
            case Repeat():
                return self._moved((op.operand,), op.dim)
            case Concat():
                return self._moved((op.a, op.b), op.dim)
            case _:
                return None

    def _moved(self, operands: tuple[int, ...], dim: int) -> _State | None:
        """Return the state of the result of an operator that moves elements along one dim only."""
        found = {self.states[n] for n in operands}
        state = found.pop()
        other = isinstance(state, _Concatenation) and state.dim != dim and state.weight is None
        return state if not found and (state == _FIXED or other) else None

    def _mapped(self, op: Elementwise) -> _State | None:
        if op.fn is MapFn.CONSTANT:
            return self._constant(op)
        states = [self.states[n] for n in op.operands]
        if all(state == _FIXED for state in states):
            return _FIXED
        along = [state for state in states if isinstance(state, _Concatenation)]
        if not along:
            return self._linear(op, states)
        dims = {state.dim for state in along}
        if len(dims) > 1:
            return None
        dim = dims.pop()
        if any(
            not isinstance(state, _Concatenation) and self.flat.tensors[n].shape[dim] != 1
            for n, state in zip(op.operands, states, strict=True)
        ):
            return None
        return _pointwise(op, states, dim)

    def _constant(self, op: Elementwise) -> _State | None:
        """Return the state of a constant tensor: loop-invariant, or a concatenation of the pieces' constant tensors."""
        pairs = zip(self.flat.tensors[op.result].shape, self.finer.tensors[op.result].shape, strict=True)
        cut = [dim for dim, (extent, piece) in enumerate(pairs) if extent != piece]
        if len(cut) > 1:
            return None
        return _Concatenation(cut[0]) if cut else _FIXED

    def _linear(self, op: Elementwise, states: Sequence[_State]) -> _State | None:
        """Return the state of a linear function of sums over pieces: a multiple, sum or difference."""
        first, rest = states[0], states[1:]
        if op.fn is MapFn.SELECT:  # of a sum or 0
            first, rest = states[1], [states[0]] if op.constant == 0.0 else states
        if not isinstance(first, _PieceReduction) or first.fn is not BinaryFn.ADD:
            return None
        if op.fn in (BinaryFn.MUL, BinaryFn.DIV, BinaryFn.DIV_NO_NAN, MapFn.SELECT):
            return first if all(state == _FIXED for state in rest) else None
        both = op.fn in (BinaryFn.ADD, BinaryFn.SUB) and states == [_SUM, _SUM]
        return _SUM if both else None

    def _reduced(self, operand: int, fn: BinaryFn, dim: int | None, kept: int) -> _State | None:
        state = self.states[operand]
        if state == _FIXED or dim is None:
            return state
        if isinstance(state, _PieceReduction):
            return state if state.fn is fn and state.weight is None else None
        if not isinstance(state, _Concatenation) or state.shifted:
            return None
        if dim != state.dim:  # other positions may be relative to another maximum
            return state if state.weight is None else None
        if state.weight is not None and fn is not BinaryFn.ADD:
            return None
        # Positions equal modulo ``kept`` are joined: the same ones, if pieces are multiples of it.
        pieces = self.flat.tensors[operand].shape[dim] // self.count
        whole = pieces % kept == 0 and (kept == 1 or pieces > kept)
        return _PieceReduction(fn, state.weight) if whole else None

    def _product(self, op: Product) -> _State | None:
        a, b = self.states[op.a], self.states[op.b]
        rank = len(self.flat.tensors[op.a].shape)
        row, col = rank - 2, rank - 1
        if a == _FIXED == b:
            return _FIXED
        if isinstance(a, _Concatenation) and isinstance(b, _Concatenation) and (a.dim, b.dim) == (col, row):
            if a.shifted or b.shifted or (a.weight is not None and b.weight is not None):
                return None
            return _PieceReduction(BinaryFn.ADD, b.weight if a.weight is None else a.weight)
        if (a, b) in ((_SUM, _FIXED), (_FIXED, _SUM)):
            return _SUM
        if (a, b) in ((_Concatenation(row), _FIXED), (_FIXED, _Concatenation(col))):
            return _Concatenation(row if b == _FIXED else col)
        return None

    def _accumulated(self, op: Accumulate | LoopConcat) -> bool:
        state = self.states[op.operand]
        if isinstance(op, LoopConcat):
            return state == _Concatenation(op.dim)
        if isinstance(state, _RunningMaximum):
            return (op.fn, op.dim, op.factor) == (BinaryFn.MAX, None, None)
        joined = self._reduced(op.operand, op.fn, op.dim, op.kept)
        return joined == _PieceReduction(op.fn, op.factor)


def _pointwise(op: Elementwise, states: Sequence[_State], dim: int) -> _State | None:
    """Return the state of an elementwise function of concatenations along a dim and of loop-invariant values."""
    along = [state for state in states if isinstance(state, _Concatenation)]
    weights = [state for state in along if state.weight is not None]
    others = [state for state in states if not isinstance(state, _Concatenation)]
    if not weights:
        if all(state == _FIXED for state in others):
            return _Concatenation(dim)
        first, second = states[0], states[-1]
        if op.fn is BinaryFn.SUB and isinstance(second, _RunningMaximum) and isinstance(first, _Concatenation):
            return _Concatenation(dim, second.rescale, shifted=True)
        return None
    if len(weights) > 1 or any(other != _FIXED for other in others):
        return None
    (weighted,) = weights
    if weighted.shifted:
        return _Concatenation(dim, weighted.weight) if op.fn is OpKind.EXP else None
    # A multiple of f * exp(-m) is one, and so is 0 in its place; rounding it is part of the arithmetic.
    quotient = op.fn in (BinaryFn.DIV, BinaryFn.DIV_NO_NAN) and states[0] == weighted
    selected = op.fn is MapFn.SELECT and op.constant == 0.0 and states[1] == weighted
    multiple = op.fn is BinaryFn.MUL or quotient or selected
    return weighted if multiple or op.fn in _ROUNDS else None


__all__ = ["can_split_iterations"]

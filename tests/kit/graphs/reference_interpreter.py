"""An independent, literal interpreter of µGraphs for tests: block by block, iteration by iteration.

It shares nothing with the walk: tiles are cut by index arithmetic, accumulators are running state, and every operator
(macro operators too) has its own formula. ``Arithmetic`` says how numbers behave: float64, galois fields in the field
tests, or Z_p x Z_q in Python integers, one object per element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, ThreadDefined
from mirage_formal.graph.ops import FUNCTIONS, SPECS, OpKind
from mirage_formal.graph.types import DimMap, Shape
from tests.kit.graphs.function_values import values


class Arithmetic(Protocol):
    """How the numbers in arrays behave."""

    def constant(self, value: Fraction) -> Any:
        """What an array is multiplied with, or has added."""

    def sqrt(self, x: NDArray[Any]) -> NDArray[Any]: ...

    def exp(self, x: NDArray[Any]) -> NDArray[Any]: ...

    def silu(self, x: NDArray[Any]) -> NDArray[Any]: ...

    def opaque(self, kind: OpKind, x: NDArray[Any]) -> NDArray[Any]: ...

    def pair(self, kind: OpKind, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]: ...

    def compare(self, kind: OpKind, x: NDArray[Any], y: Any) -> NDArray[Any]: ...

    def select(self, mask: NDArray[Any], x: NDArray[Any], y: Any) -> NDArray[Any]: ...

    def quotient(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        """x / y, and 0 where y is 0."""

    def matmul(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]: ...

    def sum(self, x: NDArray[Any], axis: int) -> NDArray[Any]: ...


class FloatArithmetic:
    """numpy float64."""

    def constant(self, value: Fraction) -> Any:
        return np.float64(float(value))

    def sqrt(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.sqrt(x)

    def exp(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.exp(x)

    def silu(self, x: NDArray[Any]) -> NDArray[Any]:
        return x / (1.0 + np.exp(-x))

    def opaque(self, kind: OpKind, x: NDArray[Any]) -> NDArray[Any]:
        return values(kind, x)

    def pair(self, kind: OpKind, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        return np.where((x > y) == (kind is OpKind.MAXIMUM), x, y)

    def compare(self, kind: OpKind, x: NDArray[Any], y: Any) -> NDArray[Any]:
        holds = {OpKind.EQ: x == y, OpKind.LT: x < y, OpKind.LE: x <= y, OpKind.GT: x > y, OpKind.GE: x >= y}
        return np.where(holds[kind], 1.0, 0.0)

    def select(self, mask: NDArray[Any], x: NDArray[Any], y: Any) -> NDArray[Any]:
        return np.where(mask == 1, x, y)

    def quotient(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        return np.where(y == 0, 0.0, x / y)

    def matmul(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.matmul(a, b)

    def sum(self, x: NDArray[Any], axis: int) -> NDArray[Any]:
        return x.sum(axis=axis, keepdims=True)


def evaluate(graph: KernelGraph, inputs: Sequence[NDArray[Any]], arithmetic: Arithmetic) -> list[NDArray[Any]]:
    """Outputs of a kernel graph."""
    tensors = list(inputs)
    for op in graph.ops:
        args = [tensors[i] for i in op.operands]
        if isinstance(op, GraphDefined):
            tensors += _kernel(op.graph, args, arithmetic)
        else:
            tensors.append(_apply(op, args, arithmetic, None))
    return [tensors[i] for i in graph.outputs]


def _ranges(
    shape: Shape,
    maps: DimMap,
    coordinates: Sequence[int],
    extents: Sequence[int],
    loop: int | None,
    iteration: int,
    iterations: int,
) -> tuple[slice, ...]:
    """The slice of every dim that one block reads in one iteration."""
    low, size = [0] * len(shape), list(shape)
    for axis, dim in enumerate(maps):
        if dim is not None:
            size[dim] //= extents[axis]
            low[dim] += coordinates[axis] * size[dim]
    if loop is not None:
        size[loop] //= iterations
        low[loop] += iteration * size[loop]
    return tuple(slice(a, a + n) for a, n in zip(low, size, strict=True))


def _kernel(block: BlockGraph, args: Sequence[NDArray[Any]], arithmetic: Arithmetic) -> list[NDArray[Any]]:
    results: list[NDArray[Any] | None] = [None] * len(block.outputs)
    for where in product(*(range(extent) for extent in block.grid)):
        final = _one_block(block, args, where, arithmetic)
        for number, saver in enumerate(block.outputs):
            tile = final[saver.operand]
            shape = list(tile.shape)
            for axis, dim in enumerate(saver.omap):
                if dim is not None:
                    shape[dim] *= block.grid[axis]
            result = results[number]
            if result is None:
                result = results[number] = np.zeros(shape, dtype=tile.dtype).view(type(tile))
            result[_ranges(tuple(shape), saver.omap, where, block.grid, None, 0, 1)] = tile
    return [result for result in results if result is not None]


def _one_block(
    block: BlockGraph, args: Sequence[NDArray[Any]], where: Sequence[int], arithmetic: Arithmetic
) -> list[Any]:
    """All tensors of one block after its loop: in-loop ones of the last iteration, accumulators when complete."""
    state: dict[int, NDArray[Any]] = {}
    values: list[Any] = []
    for iteration in range(block.forloop_range):
        values = [
            arg[_ranges(arg.shape, it.imap, where, block.grid, it.fmap, iteration, block.forloop_range)]
            for arg, it in zip(args, block.inputs, strict=True)
        ]
        last = iteration == block.forloop_range - 1
        waiting: set[int] = set()
        for op in block.ops:
            number = len(values)
            if waiting & set(op.operands):
                values.append(None)
                waiting.add(number)
                continue
            operands = [values[i] for i in op.operands]
            if isinstance(op, ThreadDefined):
                registers = list(operands)
                for inner in op.graph.ops:
                    registers.append(_apply(inner, [registers[i] for i in inner.operands], arithmetic, block))
                values += [registers[i] for i in op.graph.outputs]
            elif op.kind is OpKind.RUNNING_MAX:
                largest = operands[0].max(axis=op.attrs.dim, keepdims=True)
                before = state.get(number)
                now = largest if before is None else np.maximum(before, largest)
                state[number] = now
                values += [now, np.zeros_like(now) if before is None else np.exp(before - now)]
            elif SPECS[op.kind].accumulator:
                state[number] = _accumulate(op, operands, state.get(number), arithmetic, block)
                if last:
                    values.append(_finish(op, operands, state[number], arithmetic, block))
                else:
                    values.append(None)
                    waiting.add(number)
            else:
                values.append(_apply(op, operands, arithmetic, block))
    return values


def _accumulate(
    op: Op, operands: Sequence[NDArray[Any]], state: NDArray[Any] | None, arithmetic: Arithmetic, block: BlockGraph
) -> NDArray[Any]:
    x = operands[0]
    axis = x.ndim - 1
    match op.kind:
        case OpKind.ACCUM_SUM:
            new = x
        case OpKind.ACCUM_SUM_LAST | OpKind.ACCUM_MEAN_LAST | OpKind.ACCUM_RESCALED_SUM_LAST:
            new = arithmetic.sum(x, axis)
        case OpKind.ACCUM_RMS_LAST:
            new = arithmetic.sum(x * x, axis)
        case OpKind.ACCUM_SUM_TO_DIMX:
            new = _fold(x, axis if op.attrs.dim is None else op.attrs.dim, block.reduction_dimx)
        case OpKind.ACCUM_CONCAT:
            return x if state is None else np.concatenate([state, x], axis=op.attrs.dim)
        case OpKind.ACCUM_MAX:
            return x if state is None else np.maximum(state, x)
        case OpKind.ACCUM_RESCALED_SUM:
            return x if state is None else state * operands[1] + x
    if op.kind is OpKind.ACCUM_RESCALED_SUM_LAST:
        return new if state is None else state * operands[1] + new
    return new if state is None else state + new


def _finish(
    op: Op, operands: Sequence[NDArray[Any]], state: NDArray[Any], arithmetic: Arithmetic, block: BlockGraph
) -> NDArray[Any]:
    count = Fraction(1, operands[0].shape[-1] * block.forloop_range)
    if op.kind is OpKind.ACCUM_MEAN_LAST:
        return state * arithmetic.constant(count)
    if op.kind is OpKind.ACCUM_RMS_LAST:
        return arithmetic.sqrt(state * arithmetic.constant(count))
    return state


def _fold(x: NDArray[Any], dim: int, kept: int) -> NDArray[Any]:
    pieces = np.split(x, x.shape[dim] // kept, axis=dim)
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total


def _apply(op: Op, args: Sequence[NDArray[Any]], arithmetic: Arithmetic, block: BlockGraph | None) -> NDArray[Any]:  # noqa: C901
    x = args[0]
    attrs = op.attrs
    dim: Any = attrs.dim  # None where an operator has none, and is not asked for it
    match op.kind:
        case OpKind.MATMUL:
            return arithmetic.matmul(x, args[1])
        case OpKind.ADD:
            return x + args[1]
        case OpKind.SUB:
            return x - args[1]
        case OpKind.MUL:
            return x * args[1]
        case OpKind.DIV:
            return x / args[1]
        case OpKind.EXP:
            return arithmetic.exp(x)
        case OpKind.SQRT:
            return arithmetic.sqrt(x)
        case OpKind.SQUARE:
            return x * x
        case OpKind.SILU:
            return arithmetic.silu(x)
        case OpKind.EQ | OpKind.LT | OpKind.LE | OpKind.GT | OpKind.GE:
            return arithmetic.compare(op.kind, x, _second(op, args, 1, arithmetic))
        case OpKind.SELECT:
            return arithmetic.select(x, args[1], _second(op, args, 2, arithmetic))
        case OpKind.LOGICAL_NOT:
            return arithmetic.select(x, x - x, arithmetic.constant(Fraction(1)))
        case OpKind.DIV_NO_NAN:
            return arithmetic.quotient(x, args[1])
        case OpKind.MAXIMUM | OpKind.MINIMUM:
            number = op.attrs.value
            zero = x * arithmetic.constant(Fraction(0))
            return arithmetic.pair(op.kind, x, args[1] if number is None else zero + arithmetic.constant(number))
        case OpKind.ABS:
            return arithmetic.sqrt(x * x)
        case OpKind.RECIPROCAL:
            return (x - x + arithmetic.constant(Fraction(1))) / x
        case kind if kind in FUNCTIONS:
            return arithmetic.opaque(kind, x)
        case OpKind.SHIFT:
            assert attrs.shift is not None
            return x + arithmetic.constant(attrs.shift)
        case OpKind.SLICE:
            assert attrs.start is not None
            assert attrs.stop is not None
            return np.take(x, range(attrs.start, attrs.stop), axis=dim)
        case OpKind.PAD:
            zero = np.take(x, [0], axis=dim) * arithmetic.constant(Fraction(0))
            ends = [np.repeat(zero, n or 0, axis=dim) for n in (attrs.before, attrs.after)]
            return np.concatenate([ends[0], x, ends[1]], axis=dim)
        case OpKind.SCALE:
            assert attrs.factor is not None
            return x * arithmetic.constant(attrs.factor)
        case OpKind.SUM:
            return arithmetic.sum(x, dim)
        case OpKind.MEAN:
            return arithmetic.sum(x, dim) * arithmetic.constant(Fraction(1, x.shape[dim]))
        case OpKind.MAX:
            return x.max(axis=attrs.dim, keepdims=True)
        case OpKind.SUM_TO_DIMX:
            assert block is not None
            return _fold(x, dim, block.reduction_dimx)
        case OpKind.SOFTMAX:
            e = arithmetic.exp(x)
            return e / arithmetic.sum(e, dim)
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return _norm(op, args, arithmetic)
        case OpKind.TRANSPOSE:
            return np.transpose(x, attrs.perm)
        case OpKind.RESHAPE:
            return x.reshape(attrs.shape)
        case OpKind.CONCAT:
            return np.concatenate(args, axis=attrs.dim)
        case OpKind.REPEAT:
            assert attrs.times is not None
            return np.repeat(x, attrs.times, axis=dim)
        case OpKind.CAST:
            return x
    raise AssertionError(op.kind)


def _second(op: Op, args: Sequence[NDArray[Any]], number: int, arithmetic: Arithmetic) -> Any:
    """The last operand, or the number in its place."""
    return args[number] if op.attrs.value is None else arithmetic.constant(op.attrs.value)


def _norm(op: Op, args: Sequence[NDArray[Any]], arithmetic: Arithmetic) -> NDArray[Any]:
    x, dim = args[0], op.attrs.dim
    assert dim is not None
    count = arithmetic.constant(Fraction(1, x.shape[dim]))
    if op.kind is OpKind.LAYER_NORM:
        x = x - arithmetic.sum(x, dim) * count
    below = arithmetic.sum(x * x, dim) * count
    if op.attrs.eps is not None:
        below = below + arithmetic.constant(op.attrs.eps)
    out = x / arithmetic.sqrt(below)
    if len(args) > 1:
        out = out * args[1]
    return out + args[2] if len(args) > 2 else out


_Operation = Callable[[int, int, int], int | None]  # on two residues and their modulus
WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Number:
    """A value in Z_p x Z_q; a part is None where it has none."""

    p: int | None
    q: int | None
    primes: tuple[int, int]

    def _with(self, other: Number, function: _Operation) -> Number:
        parts = zip((self.p, self.q), (other.p, other.q), self.primes, strict=True)
        p, q = (_part(function, a, b, m) for a, b, m in parts)
        return Number(p, q, self.primes)

    def __add__(self, other: Number) -> Number:
        return self._with(other, lambda a, b, m: a + b)

    def __sub__(self, other: Number) -> Number:
        return self._with(other, lambda a, b, m: a - b)

    def __mul__(self, other: Number) -> Number:
        return self._with(other, lambda a, b, m: a * b)

    def __truediv__(self, other: Number) -> Number:
        return self._with(other, lambda a, b, m: a * pow(b, -1, m) if b else None)


def _part(function: _Operation, a: int | None, b: int | None, m: int) -> int | None:
    if a is None or b is None:
        return None
    out = function(a, b, m)
    return None if out is None else out % m


def _principal(x: int | None, m: int) -> int | None:
    if x is None or pow(x, (m - 1) // 2, m) not in (0, 1):
        return None
    return pow(x, (m + 1) // 4, m)


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


class Exact:
    """Arithmetic for ``evaluate`` at one point."""

    def __init__(self, p: int, q: int, omega: int, keys: Mapping[OpKind, tuple[int, int]]) -> None:
        self.primes, self.omega, self.keys = (p, q), omega, keys

    def array(self, p: NDArray[Any], q: NDArray[Any]) -> NDArray[Any]:
        """Numbers from two arrays of residues."""
        numbers = [Number(int(a), int(b), self.primes) for a, b in zip(p.ravel(), q.ravel(), strict=True)]
        return self._shaped(numbers, p.shape)

    def constant(self, value: Fraction) -> Number:
        p, q = (value.numerator * pow(value.denominator, -1, m) % m for m in self.primes)
        return Number(p, q, self.primes)

    def sqrt(self, x: NDArray[Any]) -> NDArray[Any]:
        p, q = self.primes
        return self._map(lambda v: Number(_principal(v.p, p), _principal(v.q, q), self.primes), x)

    def exp(self, x: NDArray[Any]) -> NDArray[Any]:
        p = self.primes[0]
        return self._map(lambda v: Number(None if v.q is None else pow(self.omega, v.q, p), None, self.primes), x)

    def silu(self, x: NDArray[Any]) -> NDArray[Any]:
        return x / (self.exp(x * self.constant(Fraction(-1))) + self.constant(Fraction(1)))

    def opaque(self, kind: OpKind, x: NDArray[Any]) -> NDArray[Any]:
        p, q = self.primes
        return self._map(lambda v: Number(self._hash(kind, v.p, p), self._hash(kind, v.q, q), self.primes), x)

    def pair(self, kind: OpKind, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        return self.opaque(kind, self.opaque(kind, x) + self.opaque(kind, y))

    def compare(self, kind: OpKind, x: NDArray[Any], y: Any) -> NDArray[Any]:
        """A bit for the difference in Z_p, the same in both parts; every inequality is a < b, or its negation."""
        turned = {OpKind.GT: OpKind.LT, OpKind.GE: OpKind.LE}
        if kind in turned:
            return self._both(lambda a, b: self._compared(turned[kind], b, a), x, y)
        return self._both(lambda a, b: self._compared(kind, a, b), x, y)

    def _compared(self, kind: OpKind, a: Number, b: Number) -> Number:
        if a.p is None or b.p is None:
            return Number(None, None, self.primes)
        p = self.primes[0]
        there = (b.p - a.p if kind is OpKind.LE else a.p - b.p) % p
        if kind is OpKind.EQ:
            bit = int(there == 0) or self._word(OpKind.EQ, min(there, p - there)) % 2
        else:
            bit = self._word(OpKind.LT, there) % 2 if there else 0
        bit = 1 - bit if kind is OpKind.LE else bit
        return Number(bit, bit, self.primes)

    def select(self, mask: NDArray[Any], x: NDArray[Any], y: Any) -> NDArray[Any]:
        return mask * x + (mask * self.constant(Fraction(-1)) + self.constant(Fraction(1))) * y

    def quotient(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        def inverse(v: Number) -> Number:
            parts = zip((v.p, v.q), self.primes, strict=True)
            p, q = (None if a is None else pow(a, -1, m) if a else 0 for a, m in parts)
            return Number(p, q, self.primes)

        return x * self._map(inverse, y)

    def matmul(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.matmul(a, b)

    def sum(self, x: NDArray[Any], axis: int) -> NDArray[Any]:
        total = np.take(x, [0], axis=axis)
        for i in range(1, x.shape[axis]):
            total = total + np.take(x, [i], axis=axis)
        return total

    def _hash(self, kind: OpKind, x: int | None, m: int) -> int | None:
        if x is None:
            return None
        if x == 0 and kind not in (OpKind.SIGMOID, OpKind.LOG):  # the others are 0 at 0
            return 0
        return self._word(kind, x) % m

    def _word(self, kind: OpKind, x: int) -> int:
        first, second = self.keys[kind]
        return _mix(_mix(((x + 1) * 0x9E3779B97F4A7C15 + first) & WORD) ^ second)

    def _both(self, function: Callable[[Number, Number], Number], x: NDArray[Any], y: Any) -> NDArray[Any]:
        if isinstance(y, Number):
            return self._map(lambda v: function(v, y), x)
        one, other = np.broadcast_arrays(x, y)
        return self._shaped([function(a, b) for a, b in zip(one.ravel(), other.ravel(), strict=True)], one.shape)

    def _map(self, function: Callable[[Number], Number], x: NDArray[Any]) -> NDArray[Any]:
        return self._shaped([function(v) for v in x.ravel()], x.shape)

    def _shaped(self, numbers: Sequence[Number], shape: tuple[int, ...]) -> NDArray[Any]:
        # One element more, so that numpy never looks for a structure in the objects.
        return np.array([*numbers, None], dtype=object)[:-1].reshape(shape)

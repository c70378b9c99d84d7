"""Z_p x Z_q in Python integers, one object per element: arithmetic for the literal evaluator, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.ops import OpKind

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
    """Arithmetic for ``naive.evaluate`` at one point."""

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

"""Real functions at random points of prime fields: the arithmetic in which Programs and µGraphs are compared.

A value is an array with a leading axis of components: its residues in Z_p at each of ``POINTS`` independent points; its
residues in Z_q, q | p - 1, at each of them if there are exponentials; if there are maxima, a 64-bit word of its maximum
and those of the two values that it is the maximum of; and, if divisors may be 0, a word of poison. Sums, products and
quotients are those of the fields. exp maps a residue in Z_q to a power of an element of order q in Z_p, so exp(a + b) =
exp(a) exp(b) (paper, section 5.2). Other functions are keyed hashes of the residues in Z_p. A maximum is a hash of the
sum of the hashes of what it is the maximum of; so it does not depend on order or grouping, and a maximum that is
subtracted and cancels is like any other value. A quotient by 0 is poison, as in LLVM: so is each result of an operation
that has a poison operand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from math import inf, isinf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.ops import COMPARISONS, FUNCTIONS, ZERO_AT_ZERO, OpKind
from mirage_formal.prove.identity_testing.modular_arithmetic import Modulus, Powers, splitmix_round

#: Components, then the axes of the tensor or of blocks and threads.
FieldArray = NDArray[np.uint64]
Words = NDArray[np.uint64]

#: Independent points at which everything is compared.
POINTS: Final = 2
#: Bits of the primes.
BITS: Final = 31
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
#: Largest product of numerator and denominator of a constant that is read as the fraction that it rounds.
_SIMPLE: Final = 1 << 24
#: Most terms of a short product, and the bits of the smaller part of its left operand.
_SHORT: Final = 64
_LOW_BITS: Final = np.uint64(16)
_LOW: Final = np.uint64((1 << 16) - 1)
#: Words of a maximum: its own, those of both operands, and how often it has one value at most.
_MAXIMUM_WORDS: Final = 4
_PARENTS: Final = 2
#: Most times that a maximum may have one value: below, no sum of words modulo 2^64 loses it.
_MOST_TIMES: Final = 1 << 32
_LARGEST: Final = float(np.finfo(np.float32).max)
#: Functions whose value is an exponential's.
EXPONENTIAL: Final = frozenset({OpKind.EXP, OpKind.SILU, OpKind.SIGMOID})


#: Functions that are not defined for all real numbers, besides reciprocals.
_PARTIAL: Final = frozenset({OpKind.SQRT, OpKind.LOG})


class UndefinedPointError(Exception):
    """Error: a divisor is 0 at a drawn point, so another point has to be drawn."""


class ValueRangeError(ValueError):
    """Error: a constant is beyond float32, or a maximum has one value so often that its word may cancel."""


def draw_primes(random: np.random.Generator) -> tuple[int, int]:
    """Return random primes p = 2 q + 1 below 2^31 and q above 2^29, both 3 modulo 4.

    There are hundreds of thousands of such pairs. So an integer that is not 0 is hardly ever 0 modulo p or q, and
    nobody can choose a kernel that fits them.
    """
    while True:
        q = int(random.integers(1 << 27, 1 << 28)) * 4 + 3
        if _is_prime(q) and _is_prime(2 * q + 1):
            return 2 * q + 1, q


def _is_prime(n: int) -> bool:
    """Return whether an odd number below 3.2 * 10^9 is prime (Miller, Rabin; bases of Jaeschke, 1993)."""
    if any(n % small == 0 for small in (3, 5, 7, 11, 13)):
        return False
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7):
        x = pow(base, odd, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
            return False
    return True


@lru_cache(maxsize=1 << 12)
def rational_constant(value: float | Fraction) -> Fraction:
    """Return the number that a constant stands for: the simplest fraction that rounds to it in float32, if it is short.

    A µGraph's 1/3 is a float32 in a kernel. Both are read as 1/3, so no rounding of a constant is seen as a difference.
    """
    exact = Fraction(float(value))
    below, above = (Fraction(float(np.nextafter(np.float32(float(exact)), np.float32(side)))) for side in (-inf, inf))
    near = Fraction(float(np.float32(float(exact))))
    found = _simplest((below + near) / 2, (near + above) / 2)
    return found if abs(found.numerator) * found.denominator <= _SIMPLE else exact


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction with the least denominator between two bounds, by continued fractions."""
    if low <= 0 <= high:
        return Fraction(0)
    if high < 0:
        return -_simplest(-high, -low)
    whole = -(-low.numerator // low.denominator)
    if whole <= high:
        return Fraction(whole)
    whole -= 1
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))


@dataclass(frozen=True, slots=True)
class Components:
    """Components that values consist of, beside their residues in Z_p.

    Attributes:
        exponents: Whether there are residues in Z_q.
        maxima: Whether there is a word of a maximum.
        poison: Whether there is a word of poison. Without it, a divisor that is 0 is an error.
        rounds: The roundings that are functions like others; all others are the identity.
    """

    exponents: bool
    maxima: bool
    poison: bool = False
    rounds: frozenset[OpKind] = frozenset()


class FieldPoints:
    """Arithmetic at independent random points.

    Args:
        random: The source of all draws.
        components: What values consist of.

    Attributes:
        allowed: Words of the arguments for which partial operations are defined; None if all are. Others give poison.
    """

    def __init__(self, random: np.random.Generator, components: Components) -> None:
        p, q = draw_primes(random)
        self.p, self.q = Modulus(p), Modulus(q)
        self.exponents, self.maxima = components.exponents, components.maxima
        self.poison, self.rounds = components.poison, components.rounds
        self.residues = POINTS * (1 + self.exponents)
        self._moduli = np.repeat(np.array([p, q], np.uint64), POINTS)[: self.residues]
        self._steps = _GOLDEN * np.arange(1, self.residues + 1, dtype=np.uint64)
        self.count = self.residues + _MAXIMUM_WORDS * self.maxima + self.poison
        self._secret = np.uint64(random.integers(1, 1 << 63))
        self._partial: list[Words] = []
        self.allowed: Words | None = None
        self._keys: dict[str, np.uint64] = {}
        self._random = random
        self._constants: dict[float | Fraction, FieldArray] = {}
        omega = pow(int(random.integers(2, p - 1)), 2, p)  # a square that is not 1: of order q
        self._powers = Powers(self.p, omega, q) if self.exponents else None

    # --- draws and hashes

    def key(self, name: str) -> np.uint64:
        """Return the secret key of a name, drawn at its first use."""
        if name not in self._keys:
            self._keys[name] = np.uint64(self._random.integers(1, 1 << 63))
        return self._keys[name]

    def expand(self, words: Words, key: np.uint64) -> FieldArray:
        """Return values that are a random function of words of 64 bits."""
        with np.errstate(over="ignore"):
            seeds = splitmix_round(splitmix_round(words * _GOLDEN + key) ^ self._secret)
            return self._reduced(splitmix_round(seeds + self._for_residues(self._steps, words.ndim + 1)))

    def words(self, a: FieldArray, key: np.uint64) -> Words:
        """Return a word for each element that is a random function of its residues in Z_p."""
        with np.errstate(over="ignore"):
            found = a[0] * _GOLDEN + key
            for number in range(1, POINTS):
                found = splitmix_round(found) ^ (a[number] * _GOLDEN + self._secret)
            return splitmix_round(found)

    def variables(self, name: str, numbers: NDArray[Any]) -> FieldArray:
        """Return an independent random value for each number, the same for the same name and number."""
        return self.expand(numbers.astype(np.uint64), self.key(name))

    def constant(self, value: float | Fraction) -> FieldArray:
        """Return a constant, as an array of components alone.

        The bounds of float32 and infinities are values of their own: no number lies beyond them, so the lower ones are
        the maximum of nothing.

        Raises:
            ValueRangeError: It is finite, and beyond float32.
        """
        if _LARGEST < abs(float(value)) < inf:
            raise ValueRangeError(f"the constant {value} is beyond float32")
        if value not in self._constants:
            if abs(float(value)) >= _LARGEST:
                name = "infinity" if isinf(value) else "largest"
                found = self.variables(f"{name} {'+' if value > 0 else '-'}", np.zeros(1, np.uint64))[:, 0]
            else:
                found = np.zeros(self.count, np.uint64)
                exact = rational_constant(value)
                for number in range(self.residues):
                    residue = (self.p if number < POINTS else self.q).constant(exact)
                    if residue is None:
                        raise UndefinedPointError(f"the constant {value} has no residue")
                    found[number] = residue
            self._constants[value] = found
        return self._constants[value]

    def fill(self, value: float | Fraction, shape: tuple[int, ...]) -> FieldArray:
        """Return an array of this shape whose elements are a constant."""
        found = self.constant(value)
        return np.broadcast_to(found.reshape(-1, *(1 for _ in shape)), (self.count, *shape))

    # --- arithmetic

    def _poisoned(self, *operands: FieldArray) -> Words:
        """Return the word of poison of an elementwise result, which is 1 if that of an operand is."""
        return reduce(np.bitwise_or, (a[-1] for a in operands))

    def _mark(self, found: FieldArray, *operands: FieldArray) -> FieldArray:
        """Return a new array of elementwise results with their words of poison."""
        if self.poison:
            found[-1] = self._poisoned(*operands)
        return found

    def _for_residues(self, numbers: Words, axes: int) -> Words:
        """Return numbers, one for each residue, with axes of extent 1 behind: ``axes`` axes in all."""
        return numbers.reshape(-1, *(1,) * (axes - 1))

    def _reduced(self, words: Words, *operands: FieldArray) -> FieldArray:
        """Return the values with these residues, reduced; an elementwise function of operands as to their poison.

        A remainder is x - m * (x // m), because numpy divides by one number faster than it takes remainders.
        """
        found = np.zeros((self.count, *words.shape[1:]), np.uint64)
        moduli = self._for_residues(self._moduli, words.ndim)
        np.subtract(words, words // moduli * moduli, out=found[: self.residues])
        return self._mark(found, *operands) if operands else found

    def _by_modulus(self, operation: Callable[..., Words], *operands: FieldArray) -> FieldArray:
        """Return the values whose residues are an operation's on a modulus and residues."""
        parts = [operation(self.p, *(a[:POINTS] for a in operands))]
        if self.exponents:
            parts.append(operation(self.q, *(a[POINTS : 2 * POINTS] for a in operands)))
        more = np.zeros((self.count - self.residues, *parts[0].shape[1:]), np.uint64)
        return np.concatenate([*parts, more])

    def add(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a + b at all points, modulo each prime."""
        return self._reduced(a[: self.residues] + b[: self.residues], a, b)

    def subtract(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a - b at all points, modulo each prime."""
        moduli = self._for_residues(self._moduli, b.ndim)
        return self._reduced(a[: self.residues] + (moduli - b[: self.residues]), a, b)

    def multiply(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the elementwise product of a and b at all points, modulo each prime."""
        return self._reduced(a[: self.residues] * b[: self.residues], a, b)

    def negate(self, a: FieldArray) -> FieldArray:
        """Return -a at all points, modulo each prime."""
        return self._reduced(self._for_residues(self._moduli, a.ndim) - a[: self.residues], a)

    def matmul(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the product over the last two axes; the axes before them broadcast."""
        found = self._short_product(a, b) if a.shape[-1] <= _SHORT else self._by_modulus(Modulus.matmul, a, b)
        if self.poison:
            found[-1] = a[-1].max(axis=-1, keepdims=True) | b[-1].max(axis=-2, keepdims=True)
        return found

    def _short_product(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a product over at most ``_SHORT`` elements, in float64: each sum of 47-bit products is below 2^53."""
        left, right = a[: self.residues], b[: self.residues].astype(np.float64)
        low, high = ((part.astype(np.float64) @ right).astype(np.uint64) for part in (left & _LOW, left >> _LOW_BITS))
        return self._reduced((self._reduced(high)[: self.residues] << _LOW_BITS) + low)

    def sum(self, a: FieldArray, axis: int, kept: int = 1) -> FieldArray:
        """Return an axis folded to ``kept``: result[j] = sum over i of a[i * kept + j]; components are no axis."""
        shape = (*a.shape[: axis + 1], a.shape[axis + 1] // kept, kept, *a.shape[axis + 2 :])
        found = self._reduced(a[: self.residues].reshape(self.residues, *shape[1:]).sum(axis=axis + 1))
        if self.poison:
            found[-1] = a[-1].reshape(shape[1:]).max(axis=axis)
        return found

    def invert(self, a: FieldArray) -> FieldArray:
        """Return 1 / a; where an element is 0 at one of the points, it is poison.

        Raises:
            UndefinedPointError: An element is 0 at one of the points, and there is no word of poison.
        """
        return self._apply_partial("divisor", a, self.invert_nonzero(a))

    def invert_nonzero(self, a: FieldArray) -> FieldArray:
        """Return 1 / a of values that are not 0 at any inputs; see ``invert``."""
        zero = (a[: self.residues] == 0).any(axis=0)
        if not zero.any():
            return self._mark(self._by_modulus(Modulus.inverse, a), a)
        if not self.poison:
            raise UndefinedPointError("a divisor is 0")
        found = self._by_modulus(Modulus.inverse, np.where(zero, np.uint64(1), a))
        found[-1] = zero | (a[-1] != 0)
        return found

    def _apply_partial(self, name: str, a: FieldArray, found: FieldArray) -> FieldArray:
        """Return the results of a partial operation, poison where it is not ``allowed``, and keep its arguments."""
        words = self.words(a, self.key(f"partial {name}"))
        self._partial.append(np.unique(words))
        return found if self.allowed is None else self.poison_where(found, ~np.isin(words, self.allowed))

    def take_partial(self) -> Words:
        """Return the words of the arguments of all partial operations since the last call."""
        found = np.unique(np.concatenate([np.zeros(0, np.uint64), *self._partial]))
        self._partial = []
        return found

    def select(self, mask: FieldArray, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return mask * a + (1 - mask) * b: for masks of 0 and 1, the selection."""
        return self.add(b, self.multiply(mask, self.subtract(a, b)))

    def equal(self, a: FieldArray, b: FieldArray) -> NDArray[np.bool_]:
        """Return where the residues in Z_p of two values are equal."""
        return np.asarray((a[:POINTS] == b[:POINTS]).all(axis=0))

    def poison_where(self, a: FieldArray, bad: NDArray[np.bool_]) -> FieldArray:
        """Make elements poison where a mask holds, in place, and return the array.

        Raises:
            UndefinedPointError: One is, and there is no word of poison.
        """
        if bad.any():
            if not self.poison:
                raise UndefinedPointError("arithmetic on an infinity")
            a[-1] |= np.broadcast_to(bad, a.shape[1:])
        return a

    def is_poison(self, a: FieldArray) -> NDArray[np.bool_]:
        """Return where a value depends on a divisor that is 0."""
        return np.asarray(a[-1] != 0) if self.poison else np.zeros(a.shape[1:], bool)

    # --- functions

    def unary(self, kind: OpKind, a: FieldArray) -> FieldArray:
        """Return an elementwise function of one operand, one of ``FUNCTIONS`` or LOGICAL_NOT."""
        assert kind in FUNCTIONS or kind is OpKind.LOGICAL_NOT, kind
        match kind:
            case OpKind.ROUND_FLOAT16 | OpKind.ROUND_BFLOAT16 if kind not in self.rounds:
                return a
            case OpKind.EXP:
                return self.exp(a)
            case OpKind.SQUARE:
                return self.multiply(a, a)
            case OpKind.RECIPROCAL:
                return self.invert(a)
            case OpKind.LOGICAL_NOT:
                return self.subtract(self.fill(1.0, a.shape[1:]), a)
            case OpKind.SIGMOID | OpKind.SILU:
                one = self.fill(1.0, a.shape[1:])
                share = self.invert_nonzero(self.add(one, self.exp(self.negate(a))))
                return share if kind is OpKind.SIGMOID else self.multiply(a, share)
            case OpKind.ABS:
                return self._random_function(kind, np.where(a[0] > self.p.m // 2, self.negate(a), a))
        return self._random_function(kind, a)

    def _random_function(self, kind: OpKind, a: FieldArray) -> FieldArray:
        found = self.expand(self.words(a, self.key(kind.value)), self.key(f"{kind.value} value"))
        if kind in ZERO_AT_ZERO or kind in (OpKind.SQRT, OpKind.ABS):
            found = np.where((a[:POINTS] == 0).all(axis=0), np.uint64(0), found)
        found = self._mark(found, a)
        return self._apply_partial(kind.value, a, found) if kind in _PARTIAL else found

    def exp(self, a: FieldArray) -> FieldArray:
        """Return the exponential: powers in Z_p of the residues in Z_q, and for those in Z_q a hash of these powers."""
        assert self._powers is not None
        powers = self._powers(a[POINTS : 2 * POINTS])
        out = self.expand(self.words(powers, self.key("exp")), self.key("exp value"))
        out[POINTS : 2 * POINTS] = np.where((powers == 1).all(axis=0), np.uint64(1), out[POINTS : 2 * POINTS])
        out[:POINTS] = powers
        return self._mark(out, a)

    def divide_or_zero(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a times a random function of b that is 0 at 0: the quotient, and 0 where the divisor is 0."""
        found = self.expand(self.words(b, self.key("inverse")), self.key("inverse value"))
        return self.multiply(a, self._mark(np.where((b[:POINTS] == 0).all(axis=0), np.uint64(0), found), b))

    def compare(self, kind: OpKind, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a comparison: a random function of the difference, not only 0 or 1; a <= b is 1 - (b < a)."""
        assert kind in COMPARISONS, kind
        if kind in (OpKind.GT, OpKind.GE):
            return self.compare(OpKind.LT if kind is OpKind.GT else OpKind.LE, b, a)
        if kind is OpKind.LE:
            return self.unary(OpKind.LOGICAL_NOT, self.compare(OpKind.LT, b, a))
        difference = self.subtract(b, a)
        if kind is OpKind.EQ:
            difference = np.where(difference[0] > self.p.m // 2, self.negate(difference), difference)
        found = self.expand(self.words(difference, self.key(kind.value)), self.key(f"{kind.value} value"))
        same = (difference[:POINTS] == 0).all(axis=0)
        return self._mark(np.where(same, self.fill(float(kind is OpKind.EQ), same.shape), found), difference)

    def indicator(self, a: FieldArray) -> FieldArray:
        """Return a random function of a value that is not known to be 0 or 1, in place of (a != 0)."""
        found = self.expand(self.words(a, self.key("nonzero")), self.key("nonzero value"))
        for value in (0.0, 1.0):
            constant = self.fill(value, a.shape[1:])
            found = np.where(self.equal(a, constant), constant, found)
        return self._mark(found, a)

    # --- maxima

    def _weights(self, a: FieldArray) -> Words:
        """Return the word of each value's maximum: the sum of the words of what it is the maximum of; 0 for -inf."""
        own = self.words(a, self.key("maximum")) | np.uint64(1)
        one = (1,) * (a.ndim - 1)
        least = self.equal(a, self.fill(-inf, one)) | self.equal(a, self.fill(-_LARGEST, one))
        word = a[self.residues]
        return np.where(least, np.uint64(0), np.where(word != 0, word, own))

    def _of_weights(self, weights: Words, times: Words, parents: tuple[Words, Words] | None = None) -> FieldArray:
        """Return the maximum with a word.

        Sound: a word is the sum of the words of the values, each as often as the value was given. Below 2^32 times, no
        product of a number of times with an odd word is 0 modulo 2^64.

        Raises:
            ValueRangeError: A value is given 2^32 times.
        """
        if times.size and int(times.max()) > _MOST_TIMES:
            raise ValueRangeError("a maximum has one value more than 2^32 times")
        found = self.expand(weights, self.key("maximum value"))
        found[self.residues] = weights
        found[self.residues + 1 + _PARENTS] = times
        if parents is not None:
            found[self.residues + 1], found[self.residues + 2] = parents
        return found

    def _times(self, a: FieldArray) -> Words:
        """Return how often each value counts in a maximum at most: once, if it is none itself."""
        return np.asarray(np.maximum(a[self.residues + 1 + _PARENTS], np.uint64(1)))

    def maximum(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the larger one; a maximum of x and something, compared with x, is itself."""
        a, b = np.broadcast_arrays(a, b)
        first, second = self._weights(np.stack([a, b], axis=1))
        with np.errstate(over="ignore"):
            found = self._of_weights(first + second, self._times(a) + self._times(b), (first, second))
        found = np.where((first == 0) | self._is_maximum_of(b, first), b, found)
        found = np.where((second == 0) | (first == second) | self._is_maximum_of(a, second), a, found)
        return self._mark(found, a, b)

    def _is_maximum_of(self, a: FieldArray, weight: Words) -> NDArray[np.bool_]:
        """Return where one of the two values that each element is the maximum of has this word."""
        parents = a[self.residues + 1 : self.residues + 1 + _PARENTS]
        return np.asarray((parents == weight).any(axis=0))

    def disjunction(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the maximum of two values that are 0 or 1 over the reals: the other one where one is 0."""
        a, b = np.broadcast_arrays(a, b)
        zero = np.zeros((self.count, *a.shape[1:]), np.uint64)
        found = np.where(self.equal(a, zero), b, self.maximum(a, b))
        return self._mark(np.where(self.equal(b, zero), a, found), a, b)

    def minimum(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the smaller one: a symmetric random function of both."""
        first, second = (self.words(x, self.key("minimum")) for x in (a, b))
        with np.errstate(over="ignore"):
            found = self.expand(first + second, self.key("minimum value"))
        return self._mark(np.where(first == second, a, found), a, b)

    def largest(self, a: FieldArray, axis: int) -> FieldArray:
        """Return the largest along an axis, kept as extent 1; equal elements count once."""
        words = self._weights(a)
        ordered = np.sort(words, axis=axis)
        again = np.zeros(ordered.shape, bool)
        before = (slice(None),) * axis
        again[(*before, slice(1, None))] = ordered[(*before, slice(1, None))] == ordered[(*before, slice(-1))]
        ordered = np.where(again, np.uint64(0), ordered)
        with np.errstate(over="ignore"):
            times = self._times(a).sum(axis=axis, keepdims=True, dtype=np.uint64)
            found = self._of_weights(ordered.sum(axis=axis, keepdims=True, dtype=np.uint64), times)
        # A maximum of equal elements, or of one beside -inf, is that element.
        single = (ordered != 0).sum(axis=axis, keepdims=True) <= 1
        position = np.expand_dims(np.argmax(words != 0, axis=axis), axis)
        only = np.take_along_axis(a, np.broadcast_to(position, (1, *position.shape)), axis=axis + 1)
        found = np.where(single, only, found)
        if self.poison:
            found[-1] = a[-1].max(axis=axis, keepdims=True)
        return found


__all__ = [
    "BITS",
    "EXPONENTIAL",
    "POINTS",
    "Components",
    "FieldArray",
    "FieldPoints",
    "UndefinedPointError",
    "ValueRangeError",
    "draw_primes",
    "rational_constant",
]

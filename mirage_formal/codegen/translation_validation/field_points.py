"""Real functions at random points of prime fields: the arithmetic in which Programs and µGraphs are compared.

A value is an array with a leading axis of components: its residues in Z_p at each of ``POINTS`` independent points; its
residues in Z_q, q | p - 1, at each of them if there are exponentials; if there are maxima, a 64-bit word of its maximum
and those of the two values that it is the maximum of; a bound of its degree; and its kind. Sums, products and quotients
are those of the fields. exp maps a residue in Z_q to a power of an element of order q in Z_p, so exp(a + b) = exp(a)
exp(b) (paper, section 5.2). Other functions are keyed hashes of the residues in Z_p. A maximum is a hash of the sum of
the hashes of what it is the maximum of; so it does not depend on order or grouping, and a maximum that is subtracted
and cancels is like any other value.

The kinds of values are ``MASK``, ``NUMBER``, ``INFINITE`` and ``POISON``. A quotient by 0 is poison, as in LLVM: so is
each result of an operation that has a poison operand, and of arithmetic that has an infinite one.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from fractions import Fraction
from functools import lru_cache
from math import ceil, inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.ops import COMPARISONS, FUNCTIONS, ZERO_AT_ZERO, OpKind
from mirage_formal.prove.identity_testing.modular_arithmetic import Modulus, Powers, splitmix_round

#: Components, then the axes of the tensor or of blocks and threads.
FieldArray = NDArray[np.uint64]
Words = NDArray[np.uint64]
#: One of ``MASK``, ``NUMBER``, ``INFINITE`` and ``POISON``, or one for each element.
Kind = np.uint64 | Words

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
#: Kinds of values: 0 or 1 for all inputs; a number; -inf for some inputs; without meaning. The kind of a sum is the
#: bitwise or of the largest kind of an operand and ``NUMBER``.
MASK, NUMBER, INFINITE, POISON = np.arange(4, dtype=np.uint64)


#: Largest degree of a value, where quotients count as their divisors, and values of functions as variables.
_MOST_DEGREE: Final = 1 << 12


class UndefinedPointError(Exception):
    """Error: a stored value has no meaning at a drawn point, so another point has to be drawn."""


class ValueRangeError(ValueError):
    """Error: a constant is beyond float32, a degree too large, or a value so often in a maximum that it may cancel."""


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
    """Return whether a number below 3.2 * 10^9 that is 3 modulo 4 is prime (Miller, Rabin; bases of Jaeschke, 1993)."""
    return all(pow(base, n // 2, n) in (1, n - 1) for base in (2, 3, 5, 7))


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
    whole = ceil(low)
    if whole <= high:
        return Fraction(whole)
    return whole - 1 + 1 / _simplest(1 / (high - whole + 1), 1 / (low - whole + 1))


class FieldPoints:
    """Arithmetic at independent random points.

    Args:
        random: The source of all draws.
        exponents: Whether values have residues in Z_q.
        maxima: Whether values have words of a maximum.
        rounds: The roundings that are functions like others; all others are the identity.

    Attributes:
        allowed: Words of the arguments for which partial operations are defined; None if all are. Others give poison.
    """

    def __init__(
        self,
        random: np.random.Generator,
        exponents: bool = False,
        maxima: bool = False,
        rounds: Set[OpKind] = frozenset(),
    ) -> None:
        p, q = draw_primes(random)
        self.p, self.q, self.rounds = Modulus(p), Modulus(q), rounds
        self.residues = POINTS * (1 + exponents)
        self._moduli = np.repeat(np.array([p, q], np.uint64), POINTS)[: self.residues]
        self._steps = _GOLDEN * np.arange(1, self.residues + 1, dtype=np.uint64)
        self.count = self.residues + _MAXIMUM_WORDS * maxima + 2
        self._secret = np.uint64(random.integers(1, 1 << 63))
        self._partial: list[Words] = []
        self.allowed: Words | None = None
        self._keys: dict[str, np.uint64] = {}
        self._random = random
        self._constants: dict[float | Fraction, FieldArray] = {}
        omega = pow(int(random.integers(2, p - 1)), 2, p)  # a square that is not 1: of order q
        self._powers = Powers(self.p, omega, q) if exponents else None

    # --- draws and hashes

    def key(self, name: str) -> np.uint64:
        """Return the secret key of a name, drawn at its first use."""
        if name not in self._keys:
            self._keys[name] = np.uint64(self._random.integers(1, 1 << 63))
        return self._keys[name]

    def expand(self, words: Words, key: np.uint64, kind: Kind = NUMBER) -> FieldArray:
        """Return values of a kind that are a random function of words of 64 bits."""
        with np.errstate(over="ignore"):
            seeds = splitmix_round(splitmix_round(words * _GOLDEN + key) ^ self._secret)
            return self._reduced(
                splitmix_round(seeds + self._for_residues(self._steps, words.ndim + 1)), np.uint64(1), kind
            )

    def words(self, a: FieldArray, key: np.uint64) -> Words:
        """Return a word for each element that is a random function of its residues in Z_p."""
        with np.errstate(over="ignore"):
            found = a[0] * _GOLDEN + key
            for number in range(1, POINTS):
                found = splitmix_round(found) ^ (a[number] * _GOLDEN + self._secret)
            return splitmix_round(found)

    def variables(self, name: str, numbers: NDArray[Any], kind: Kind = NUMBER) -> FieldArray:
        """Return an independent random value for each number, the same for the same name and number."""
        return self.expand(numbers.astype(np.uint64), self.key(name), kind)

    def constant(self, value: float | Fraction) -> FieldArray:
        """Return a constant, as an array of components alone.

        The bounds of float32 and -inf are values of their own: no number lies beyond them, so the lower ones are the
        maximum of nothing.

        Raises:
            ValueRangeError: It is beyond float32, and not -inf.
        """
        if not (abs(float(value)) <= _LARGEST or value == -inf):
            raise ValueRangeError(f"the constant {value} is beyond float32")
        if value not in self._constants:
            if abs(float(value)) >= _LARGEST:
                kind = INFINITE if value == -inf else NUMBER
                found = self.variables(f"constant {float(value)}", np.zeros(1, np.uint64), kind)[:, 0]
            else:
                found = np.zeros(self.count, np.uint64)
                exact = rational_constant(value)
                for number in range(self.residues):
                    residue = (self.p if number < POINTS else self.q).constant(exact)
                    if residue is None:
                        raise UndefinedPointError(f"the constant {value} has no residue")
                    found[number] = residue
                found[-1] = MASK if exact in (0, 1) else NUMBER
            self._constants[value] = found
        return self._constants[value]

    def fill(self, value: float | Fraction, shape: tuple[int, ...]) -> FieldArray:
        """Return an array of this shape whose elements are a constant."""
        found = self.constant(value)
        return np.broadcast_to(found.reshape(-1, *(1 for _ in shape)), (self.count, *shape))

    # --- arithmetic

    def _for_residues(self, numbers: Words, axes: int) -> Words:
        """Return numbers, one for each residue, with axes of extent 1 behind: ``axes`` axes in all."""
        return numbers.reshape(-1, *(1,) * (axes - 1))

    def _reduced(self, words: Words, degree: Kind, kind: Kind) -> FieldArray:
        """Return the values with these residues, reduced.

        A remainder is x - m * (x // m), because numpy divides by one number faster than it takes remainders.
        """
        found = np.zeros((self.count, *words.shape[1:]), np.uint64)
        moduli = self._for_residues(self._moduli, words.ndim)
        np.subtract(words, words // moduli * moduli, out=found[: self.residues])
        found[-2], found[-1] = degree, kind
        return found

    def _by_modulus(
        self, operation: Callable[..., Words], degree: Kind, kind: Kind, *operands: FieldArray
    ) -> FieldArray:
        """Return the values whose residues are an operation's on a modulus and residues."""
        parts = [operation(self.p, *(a[:POINTS] for a in operands))]
        if self.residues > POINTS:
            parts.append(operation(self.q, *(a[POINTS : 2 * POINTS] for a in operands)))
        found = np.concatenate([*parts, np.zeros((self.count - self.residues, *parts[0].shape[1:]), np.uint64)])
        found[-2], found[-1] = degree, kind
        return found

    def binary(self, kind: OpKind, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return an elementwise function of two operands: one of ``ARITHMETIC``, ``COMPARISONS`` or SELECT."""
        match kind:
            case OpKind.ADD:
                return self.add(a, b)
            case OpKind.SUB:
                return self.subtract(a, b)
            case OpKind.MUL | OpKind.SELECT:
                return self.multiply(a, b)
            case OpKind.DIV:
                return self.multiply(a, self.invert(b))
            case OpKind.DIV_NO_NAN:  # a random function of b that is 0 at 0
                return self.multiply(a, self._zero_at_zero(b, self._function("inverse", b, b[-1] | NUMBER)))
            case OpKind.MAXIMUM:
                return self.maximum(a, b)
            case OpKind.MINIMUM:
                return self.minimum(a, b)
            case _:
                return self.compare(kind, a, b)

    def add(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a + b at all points, modulo each prime."""
        degree, kind = np.maximum(a[-2:], b[-2:])
        return self._reduced(a[: self.residues] + b[: self.residues], degree, kind | NUMBER)

    def subtract(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a - b at all points, modulo each prime; what is subtracted from an infinity stays infinite."""
        moduli = self._for_residues(self._moduli, b.ndim)
        degree, kind = np.maximum(a[-2:], b[-2:])
        kind = np.maximum(np.maximum(kind, NUMBER), _mask_kind(b[-1]))
        return self._reduced(a[: self.residues] + (moduli - b[: self.residues]), degree, kind)

    def multiply(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the elementwise product of a and b at all points, modulo each prime."""
        degree = _product_degree(a[-2], b[-2])
        return self._reduced(a[: self.residues] * b[: self.residues], degree, _product_kind(a[-1] | b[-1]))

    def negate(self, a: FieldArray) -> FieldArray:
        """Return -a at all points, modulo each prime."""
        return self._reduced(self._for_residues(self._moduli, a.ndim) - a[: self.residues], a[-2], a[-1] | NUMBER)

    def matmul(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the product over the last two axes; the axes before them broadcast."""
        rows, columns = a[-2:].max(axis=-1, keepdims=True), b[-2:].max(axis=-2, keepdims=True)
        degree, kind = _product_degree(rows[0], columns[0]), rows[1] | columns[1] | NUMBER
        if a.shape[-1] > _SHORT:
            return self._by_modulus(Modulus.matmul, degree, kind, a, b)
        # In float64: each sum of 47-bit products is below 2^53.
        left, right = a[: self.residues], b[: self.residues].astype(np.float64)
        low, high = ((part.astype(np.float64) @ right).astype(np.uint64) for part in (left & _LOW, left >> _LOW_BITS))
        return self._reduced((self._reduced(high, degree, kind)[: self.residues] << _LOW_BITS) + low, degree, kind)

    def sum(self, a: FieldArray, axis: int, kept: int = 1) -> FieldArray:
        """Return an axis folded to ``kept``: result[j] = sum over i of a[i * kept + j]; components are no axis."""
        parts = a.reshape(*a.shape[: axis + 1], a.shape[axis + 1] // kept, kept, *a.shape[axis + 2 :])
        degree, kind = parts[-2:].max(axis=axis + 1)
        return self._reduced(parts[: self.residues].sum(axis=axis + 1), degree, kind | NUMBER)

    def invert(self, a: FieldArray) -> FieldArray:
        """Return 1 / a; where an element is 0 at one of the points, it is poison."""
        return self._apply_partial("divisor", a, self.invert_nonzero(a))

    def invert_nonzero(self, a: FieldArray) -> FieldArray:
        """Return 1 / a of values that are not 0 at any inputs; see ``invert``."""
        zero = (a[: self.residues] == 0).any(axis=0)
        divisors = np.where(zero, np.uint64(1), a) if zero.any() else a
        return self._by_modulus(Modulus.inverse, a[-2], a[-1] | NUMBER | zero * POISON, divisors)

    def _apply_partial(self, name: str, a: FieldArray, found: FieldArray) -> FieldArray:
        """Return the results of a partial operation, poison where it is not ``allowed``, and keep its arguments."""
        words = self.words(a, self.key(f"partial {name}"))
        self._partial.append(np.unique(words))
        if self.allowed is not None:
            found[-1] |= ~np.isin(words, self.allowed) * POISON
        return found

    def take_partial(self) -> Words:
        """Return the words of the arguments of all partial operations since the last call."""
        found = np.unique(np.concatenate([np.zeros(0, np.uint64), *self._partial]))
        self._partial = []
        return found

    def select(self, mask: FieldArray, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return m * a + (1 - m) * b, where m is the mask's indicator: for masks of 0 and 1, the selection."""
        found = self.add(b, self.multiply(self.indicator(mask), self.subtract(a, b)))
        found[-1] = np.maximum(np.maximum(a[-1], b[-1]), _mask_kind(mask[-1]))
        return found

    def equal(self, a: FieldArray, b: FieldArray) -> NDArray[np.bool_]:
        """Return where the residues in Z_p of two values are equal."""
        return np.asarray((a[:POINTS] == b[:POINTS]).all(axis=0))

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
                return self._complement(self.indicator(a))
            case OpKind.SIGMOID | OpKind.SILU:
                share = self.invert_nonzero(self.add(self.fill(1.0, a.shape[1:]), self.exp(self.negate(a))))
                return share if kind is OpKind.SIGMOID else self.multiply(a, share)
            case OpKind.ABS:
                a = np.where(a[0] > self.p.m // 2, self.negate(a), a)
        found = self._function(kind.value, a, a[-1] | NUMBER)
        if kind in ZERO_AT_ZERO or kind in (OpKind.SQRT, OpKind.ABS):
            found = self._zero_at_zero(a, found)
        return self._apply_partial(kind.value, a, found) if kind in _PARTIAL else found

    def _function(self, name: str, a: FieldArray, kind: Kind) -> FieldArray:
        """Return a random function of the residues in Z_p, of a kind."""
        return self.expand(self.words(a, self.key(name)), self.key(f"{name} value"), kind)

    def _zero_at_zero(self, a: FieldArray, found: FieldArray) -> FieldArray:
        """Return values that are 0 where ``a`` is."""
        kind = found[-1]
        found = np.where((a[:POINTS] == 0).all(axis=0), np.uint64(0), found)
        found[-1] = kind
        return found

    def _complement(self, mask: FieldArray) -> FieldArray:
        """Return 1 - mask."""
        found = self.subtract(self.fill(1.0, mask.shape[1:]), mask)
        found[-1] = mask[-1]
        return found

    def exp(self, a: FieldArray) -> FieldArray:
        """Return the exponential: powers in Z_p of the residues in Z_q, and for those in Z_q a hash of these powers.

        That of an infinity is an unknown number, which cancels from nothing: no other function of an infinity has one.
        """
        assert self._powers is not None
        powers = self._powers(a[POINTS : 2 * POINTS])
        out = self._function("exp", powers, np.where(a[-1] == POISON, POISON, NUMBER))
        out[POINTS : 2 * POINTS] = np.where((powers == 1).all(axis=0), np.uint64(1), out[POINTS : 2 * POINTS])
        out[:POINTS] = powers
        return out

    def compare(self, kind: OpKind, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a comparison: a random function of the difference, not only 0 or 1; a <= b is 1 - (b < a)."""
        assert kind in COMPARISONS, kind
        if kind in (OpKind.GT, OpKind.GE):
            return self.compare(OpKind.LT if kind is OpKind.GT else OpKind.LE, b, a)
        if kind is OpKind.LE:
            return self._complement(self.compare(OpKind.LT, b, a))
        difference = self.subtract(b, a)
        if kind is OpKind.EQ:
            difference = np.where(difference[0] > self.p.m // 2, self.negate(difference), difference)
        found = self._function(kind.value, difference, MASK)
        same = (difference[:POINTS] == 0).all(axis=0)
        found = np.where(same, self.fill(float(kind is OpKind.EQ), same.shape), found)
        found[-1] = _mask_kind(a[-1] | b[-1])
        return found

    def indicator(self, a: FieldArray) -> FieldArray:
        """Return a mask itself, and of another value a random function in place of (a != 0)."""
        if not a[-1].any():
            return a
        found = self._function("nonzero", a, MASK)
        for value in (0.0, 1.0):
            constant = self.fill(value, a.shape[1:])
            found = np.where(self.equal(a, constant), constant, found)
        found = np.where(a[-1] == MASK, a, found)
        found[-1] = _mask_kind(a[-1])
        return found

    # --- maxima

    def _weights(self, a: FieldArray, axis: int) -> Words:
        """Return the word of each value's maximum along an axis: the sum of the words of what it is the maximum of.

        It is 0 for -inf and the lowest number, and of masks alone for 0.
        """
        own = self.words(a, self.key("maximum")) | np.uint64(1)
        least = np.bitwise_or.reduce(a[-1], axis, keepdims=True) == MASK
        least = least & (a[:POINTS] == 0).all(axis=0)
        for value in (-inf, -_LARGEST):
            least |= self.equal(a, self.fill(value, (1,) * (a.ndim - 1)))
        word = a[self.residues]
        return np.where(least, np.uint64(0), np.where(word != 0, word, own))

    def _of_weights(self, weights: Words, a: FieldArray, axis: int) -> FieldArray:
        """Return the maximum along an axis that has a word.

        Sound: a word is the sum of the words of the values, each as often as the value was given. Below 2^32 times, no
        product of a number of times with an odd word is 0 modulo 2^64.

        Raises:
            ValueRangeError: A value is given 2^32 times.
        """
        times = np.maximum(a[self.residues + 1 + _PARENTS], np.uint64(1)).sum(axis=axis, dtype=np.uint64)
        if times.size and int(times.max()) > _MOST_TIMES:
            raise ValueRangeError("a maximum has one value more than 2^32 times")
        found = self.expand(weights, self.key("maximum value"))
        found[self.residues], found[self.residues + 1 + _PARENTS] = weights, times
        return found

    def _mark_maximum(self, found: FieldArray, a: FieldArray, axis: int) -> FieldArray:
        """Give the maximum along an axis its kind: it is infinite only if all are, and a mask only if all are."""
        least, most = a[-1].min(axis), a[-1].max(axis)
        found[-1] = np.where((least == most) | (most == POISON), most, NUMBER)
        return found

    def maximum(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the larger one; a maximum of x and something, compared with x, is itself."""
        both = np.stack(np.broadcast_arrays(a, b), axis=1)
        a, b = both[:, 0], both[:, 1]
        first, second = self._weights(both, 0)
        parents = slice(self.residues + 1, self.residues + 1 + _PARENTS)
        with np.errstate(over="ignore"):
            found = self._of_weights(first + second, both, 0)
        found[parents] = first, second
        found = np.where((first == 0) | (b[parents] == first).any(axis=0), b, found)
        found = np.where((second == 0) | (first == second) | (a[parents] == second).any(axis=0), a, found)
        return self._mark_maximum(found, both, 0)

    def minimum(self, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return the smaller one: a symmetric random function of both."""
        first, second = (self.words(x, self.key("minimum")) for x in (a, b))
        with np.errstate(over="ignore"):
            found = np.where(first == second, a, self.expand(first + second, self.key("minimum value")))
        found[-1] = _product_kind(a[-1] | b[-1])
        return found

    def largest(self, a: FieldArray, axis: int) -> FieldArray:
        """Return the largest along an axis, kept as extent 1; equal elements count once."""
        words = self._weights(a, axis)
        ordered = np.sort(np.moveaxis(words, axis, -1))
        ordered[..., 1:][ordered[..., 1:] == ordered[..., :-1]] = 0
        with np.errstate(over="ignore"):
            found = self._of_weights(ordered.sum(axis=-1, dtype=np.uint64), a, axis)
        # A maximum of equal elements, or of one beside -inf, is that element.
        position = np.expand_dims(np.argmax(words != 0, axis=axis), (0, axis + 1))
        only = np.take_along_axis(a, position, axis=axis + 1).squeeze(axis + 1)
        found = np.where((ordered != 0).sum(axis=-1) <= 1, only, found)
        return np.expand_dims(self._mark_maximum(found, a, axis), axis + 1)


def _mask_kind(operands: Words) -> Words:
    """Return the kind of a mask computed from operands, from the bitwise or of their kinds."""
    return (operands >> NUMBER) * POISON


def _product_degree(a: Words, b: Words) -> Words:
    """Return a bound of the degree of a product, from those of its operands.

    Raises:
        ValueRangeError: It is too large.
    """
    found = a + b
    if found.size and found.max() > _MOST_DEGREE:
        raise ValueRangeError(f"a value has a degree above {_MOST_DEGREE}")
    return found


def _product_kind(operands: Words) -> Words:
    """Return the kind of a product, a mask if both operands are, from the bitwise or of their kinds."""
    return operands | operands >> NUMBER


__all__ = ["BITS", "EXPONENTIAL", "POINTS", "FieldArray", "FieldPoints", "UndefinedPointError", "ValueRangeError"]

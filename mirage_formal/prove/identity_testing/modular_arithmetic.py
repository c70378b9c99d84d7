"""Exact arithmetic modulo a prime below 2^31, on numpy arrays.

Residues are kept as uint64, or as float64 (exact) where they feed matrix products. A matrix product goes through
float64 BLAS: the smaller operand is cut into limbs and the contraction into chunks, so that every partial sum stays
below 2^53 and is therefore exact. Everything else is 64-bit integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.semantics.batched_matmul import Product, batched_product

#: Residues: uint64, or float64 with integral values.
Residues = NDArray[Any]
Words = NDArray[np.uint64]

_EXACT: Final = 1 << 53
#: Sums of this many partial products below 2^53 fit a uint64.
_CHUNKS: Final = 1 << 10
#: Elements that are reduced at a time: they and their quotients stay in a processor's cache.
BLOCK: Final = 1 << 14
#: Elements of the limbs' products of a group of matrices that are multiplied together.
GROUP: Final = 1 << 17
#: Below this many elements inverses are taken one by one.
_SMALL: Final = 64


def to_uint64(x: Residues) -> Words:
    """Return the residues as uint64."""
    return x if x.dtype == np.uint64 else x.astype(np.uint64)


def as_floats(x: Residues) -> NDArray[np.float64]:
    """Return the residues as float64."""
    return x if x.dtype == np.float64 else x.astype(np.float64)


def splitmix_round(z: Words) -> Words:
    """Return splitmix64 of words (Steele, Lea, Flood, 2014): a bijection that mixes all bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def apply_in_blocks(function: Callable[..., Words], *operands: Residues) -> Words:
    """Apply an elementwise function to cache-sized blocks, so that its intermediates stay small.

    Args:
        function: A function of blocks of the operands, all of one shape or broadcasting, that returns a new array.
        operands: Arrays that broadcast.
    """
    shape = np.broadcast_shapes(*[operand.shape for operand in operands])
    if prod(shape) <= 2 * BLOCK:
        return function(*operands)
    whole = [np.broadcast_to(operand, shape) for operand in operands]
    out = np.empty(shape, dtype=np.uint64)
    for at in _groups(shape, BLOCK):
        out[at] = function(*[operand[at] for operand in whole])
    return out


def _groups(shape: tuple[int, ...], most: int) -> Iterator[tuple[int | slice, ...]]:
    """Yield indices that cut an array of some shape into groups of at most ``most`` entries."""
    inner, axis = 1, len(shape) - 1
    while axis and inner * shape[axis] <= most:
        inner *= shape[axis]
        axis -= 1
    step = max(1, most // inner)
    for outer in np.ndindex(*shape[:axis]):
        for low in range(0, shape[axis], step):
            yield (*outer, slice(low, low + step))


class Modulus:
    """The field Z_m for a prime m below 2^31 with m = 3 mod 4."""

    def __init__(self, m: int) -> None:
        assert m < 1 << 31
        assert m % 4 == 3
        self.m = m
        self._m = np.uint64(m)

    def reduced(self, x: Words) -> Words:
        """Reduce words to residues in place; no other code may read the array.

        A remainder is x - m * (x // m), for quotients by one number are much faster than remainders.
        """
        flat = x.ravel(order="K")
        if not np.shares_memory(flat, x):  # a part of another array
            np.remainder(x, self._m, out=x)
            return x
        quotients = np.empty(min(BLOCK, flat.size), dtype=np.uint64)
        for low in range(0, flat.size, BLOCK):
            block = flat[low : low + BLOCK]
            whole = quotients[: block.size]
            np.floor_divide(block, self._m, out=whole)
            whole *= self._m
            block -= whole
        return x

    def constant(self, value: Fraction) -> int | None:
        """Return the residue of a rational; None if it has none, or if a nonzero rational would become 0."""
        if value.denominator % self.m == 0 or (value != 0 and value.numerator % self.m == 0):
            return None
        return value.numerator * pow(value.denominator, -1, self.m) % self.m

    def add(self, a: Residues, b: Residues) -> Words:
        """Return a + b modulo m, elementwise."""
        return apply_in_blocks(lambda x, y: self.reduced(to_uint64(x) + to_uint64(y)), a, b)

    def subtract(self, a: Residues, b: Residues) -> Words:
        """Return a - b modulo m, elementwise."""
        return apply_in_blocks(lambda x, y: self.reduced(to_uint64(x) + (self._m - to_uint64(y))), a, b)

    def multiply(self, a: Residues, b: Residues) -> Words:
        """Return a * b modulo m, elementwise."""
        return apply_in_blocks(lambda x, y: self.reduced(to_uint64(x) * to_uint64(y)), a, b)

    def scale(self, a: Residues, factor: int) -> Words:
        """Return a * factor modulo m, elementwise."""
        if factor == self.m - 1:
            return apply_in_blocks(lambda x: self.reduced(self._m - to_uint64(x)), a)
        return apply_in_blocks(lambda x: self.reduced(to_uint64(x) * np.uint64(factor)), a)

    def offset(self, a: Residues, constant: int) -> Words:
        """Return a + constant modulo m, elementwise."""
        return apply_in_blocks(lambda x: self.reduced(to_uint64(x) + np.uint64(constant)), a)

    def power(self, a: Residues, exponent: int) -> Words:
        """Return a^exponent for a non-negative exponent, by squaring."""
        base, out = to_uint64(a), None
        while exponent:
            if exponent & 1:
                out = base if out is None else self.multiply(out, base)
            exponent >>= 1
            if exponent:
                base = self.multiply(base, base)
        return np.ones_like(base) if out is None else out

    def inverse(self, a: Residues) -> Words:
        """Return inverses of nonzero residues: a product tree, one inversion at its root, three products an element."""
        flat = np.ascontiguousarray(to_uint64(a)).reshape(-1)
        return self._inverses(flat).reshape(a.shape)

    def _inverses(self, flat: Words) -> Words:
        if flat.size <= _SMALL:
            return self.power(flat, self.m - 2)
        half = flat.size // 2
        left, right = flat[:half], flat[half : 2 * half]
        above = self._inverses(self.multiply(left, right))
        parts = [self.multiply(above, right), self.multiply(above, left)]
        if flat.size % 2:
            parts.append(self.power(flat[-1:], self.m - 2))
        return np.concatenate(parts)

    def root(self, a: Residues) -> tuple[Words, NDArray[np.bool_]]:
        """Return the principal square root a^((m+1)/4), and where there is none because ``a`` is not a residue.

        For m = 3 mod 4 the principal root of a residue is itself a residue. So sqrt(x)sqrt(y) = sqrt(xy) holds for
        residues x, y. The root sqrt(x^2) is the one of x, -x that is a residue: the field's counterpart of |x|.
        """
        out = self.power(a, (self.m + 1) // 4)
        return out, self.multiply(out, out) != to_uint64(a)

    def sum(self, a: Residues, axis: int, kept: int) -> Words:
        """Return an axis folded to ``kept``: result[j] = sum over i of a[i * kept + j]; at most 2^33 terms."""
        whole = to_uint64(a)
        if kept == 1:
            return self.reduced(np.asarray(whole.sum(axis=axis, keepdims=True)))
        split = whole.reshape(*a.shape[:axis], a.shape[axis] // kept, kept, *a.shape[axis + 1 :])
        return self.reduced(np.asarray(split.sum(axis=axis)))

    def matmul(self, a: Residues, b: Residues, product: Product | None = None) -> Words:
        """Return the product of [..., m, k] and [..., k, n]; leading axes of extent 1 broadcast.

        Args:
            a: Left operand.
            b: Right operand.
            product: A function with the results of ``product``.
        """
        return batched_product(a, b, product or self.product)

    def product(self, a: Residues, b: Residues) -> Words:
        """Return the product of stacks of matrices.

        Stacks are multiplied in groups that stay in a processor's cache: the system would clear the memory of large
        intermediate arrays, which takes longer than the products of matrices with short sums.
        """
        a, b = as_floats(a), as_floats(b)
        limbs, width, chunk = self._plan(a.shape[-1])
        rows, columns = a.shape[-2], b.shape[-1]
        axis = -2 if a.size <= b.size else -1
        if limbs > 1:
            a, b = (_limbs(a, limbs, width, axis), b) if axis == -2 else (a, _limbs(b, limbs, width, axis))
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if prod(lead) == 1 or prod(lead) * rows * columns * limbs <= 2 * GROUP:
            return self._joined(np.split(self._partial(a, b, chunk), limbs, axis), width)
        a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
        out = np.empty((*lead, rows, columns), dtype=np.uint64)
        for at in _groups(lead, max(1, GROUP // (rows * columns * limbs))):
            out[at] = self._joined(np.split(self._partial(a[at], b[at], chunk), limbs, axis), width)
        return out

    def _joined(self, pieces: Sequence[Residues], width: int) -> Words:
        """Return the combination of the sums of limbs, highest first."""
        return apply_in_blocks(lambda *each: self._join_block(each, width), *pieces)

    def _join_block(self, pieces: Sequence[Residues], width: int) -> Words:
        out = self.reduced(pieces[0].astype(np.uint64))
        for piece in pieces[1:]:
            out <<= np.uint64(width)
            out += to_uint64(piece)
            self.reduced(out)
        return out

    def _plan(self, inner: int) -> tuple[int, int, int]:
        """Return limbs, bits of a limb, and the number of products that may be summed before 2^53.

        It has the fewest limbs that need one chunk only.
        """
        bits = self.m.bit_length()
        for limbs in (1, 2, 3):
            width = -(-bits // limbs)
            chunk = (_EXACT - 1) // ((self.m - 1) * min(self.m - 1, (1 << width) - 1))
            if chunk >= inner or limbs == 3:
                return limbs, width, chunk
        raise AssertionError

    def _partial(self, a: Residues, b: Residues, chunk: int) -> Residues:
        """Return the product of small enough factors as integers, reduced only where it would overflow."""
        inner = a.shape[-1]
        a, b = _for_blas(a), _for_blas(b)
        if inner <= chunk:
            return np.asarray(np.matmul(a, b))
        total: Words | None = None
        for count, low in enumerate(range(0, inner, chunk)):
            piece = np.matmul(a[..., low : low + chunk], b[..., low : low + chunk, :]).astype(np.uint64)
            if total is None:
                total = piece
            else:
                total += piece
                if count % _CHUNKS == _CHUNKS - 2:
                    self.reduced(total)
        assert total is not None
        return total


def _limbs(x: Residues, limbs: int, width: int, axis: int) -> NDArray[np.float64]:
    """Return the limbs of every element, highest first, concatenated along an axis.

    Scaling by powers of two, and differences of integers below 2^53, are exact in float64.
    """
    rest, parts = x, list[NDArray[np.float64]]()
    for place in range(limbs - 1, 0, -1):
        high = np.floor(rest * 2.0 ** (-width * place))
        rest = rest - high * 2.0 ** (width * place)
        parts.append(high)
    return np.concatenate([*parts, rest], axis=axis)


def _for_blas(x: Residues) -> Residues:
    """Return the array, copied only if neither of its last two axes is contiguous (BLAS could not read it)."""
    ok = any(x.shape[i] == 1 or x.strides[i] == x.itemsize for i in (-1, -2))
    return x if ok else np.ascontiguousarray(x)


class Powers:
    """A function from x in Z_q to omega^x in Z_p, computed from two tables of powers."""

    def __init__(self, field: Modulus, omega: int, exponents: int) -> None:
        self._field = field
        bits = exponents.bit_length()
        self._low = bits // 2
        self._mask = np.uint64((1 << self._low) - 1)
        self._fine = _table(field, omega, self._low)
        self._coarse = _table(field, pow(omega, 1 << self._low, field.m), bits - self._low)

    def __call__(self, x: Residues) -> Words:
        """Return omega^x elementwise."""
        return apply_in_blocks(self._each, x)

    def _each(self, x: Residues) -> Words:
        whole = to_uint64(x)
        # Signed numbers are what numpy takes elements by; it would convert others one by one.
        fine = self._fine[(whole & self._mask).view(np.int64)]
        fine *= self._coarse[(whole >> np.uint64(self._low)).view(np.int64)]
        return self._field.reduced(fine)


def _table(field: Modulus, base: int, bits: int) -> Words:
    """Return base^0 .. base^(2^bits - 1), computed by doubling."""
    table = np.ones(1, dtype=np.uint64)
    step = base
    for _ in range(bits):
        table = np.concatenate([table, field.scale(table, step)])
        step = step * step % field.m
    return table

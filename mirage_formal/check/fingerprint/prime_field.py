"""Arrays over GF(p) for primes below 2^31, by the galois library: arithmetic that shares no code with the prover's.

Every value is an array of galois. NumPy's own functions ``where`` and ``pad`` return plain arrays, so what they return
is made an array of the field again. galois multiplies matrices of such primes as Python integers, 50 ns an addition, so
the product is computed in float64 and galois confirms it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.support.errors import FormatError

#: Class of arrays that ``prime_field`` returns, and such an array; galois is loaded late, so its types are not named.
FieldClass = Any
Elements = Any

_EXACT = 53  # bits of integers that float64 holds exactly
_DEPTH = 1 << 10  # longest inner dimension that is multiplied in one piece
_AT_ONCE = 1 << 20  # elements of the largest product of a matrix and a vector before it is summed


@lru_cache(maxsize=4)
def prime_field(p: int) -> FieldClass:
    """Return galois' class of arrays over GF(p), whose operators it compiles when they are first used.

    Loads galois, which takes about a second a process; so nothing else here imports it.
    """
    import galois

    # In this order: a class that is made as compiled code compiles its polynomials too, which nothing here uses.
    field = galois.GF(p, verify=False, compile="python-calculate")
    field.compile("jit-calculate")
    return field


def galois_version() -> str:
    """Return the version of the galois that this process has loaded."""
    import galois

    return str(galois.__version__)


def element_of(value: Fraction, field: FieldClass) -> Elements:
    """Return an exact constant as an element of the field.

    Raises:
        ZeroDivisionError: Its denominator is a multiple of p.
    """
    p = field.order
    if value.denominator % p == 0:
        raise ZeroDivisionError(f"{value} has no residue modulo {p}")
    return field(value.numerator % p) / field(value.denominator % p)


def total(a: Elements, axis: int) -> Elements:
    """Return the sum along one axis, which is removed."""
    return np.add.reduce(a, axis=axis)


def matmul(a: Elements, b: Elements) -> Elements:
    """Return the product over the last two axes; the axes before them broadcast.

    Sound: galois confirms c = a b by c r = a (b r) for one vector r of uniformly random elements (Freivalds, 1977). Of
    each row of c in which a product is wrong, the difference is orthogonal to r with probability 1/p, so a wrong c is
    returned with at most that probability.

    Raises:
        FormatError: galois disagrees.
    """
    field = type(a)
    c = field(_float_matmul(np.asarray(a), np.asarray(b), field.order))
    r = field(np.random.default_rng().integers(0, field.order, b.shape[-1]))
    if (_times_vector(c, r) != _times_vector(a, _times_vector(b, r))).any():
        raise FormatError(f"galois gives another product of matrices {list(a.shape)} and {list(b.shape)}")
    return c


def _times_vector(a: Elements, x: Elements) -> Elements:
    """Return the product of matrices and vectors, in groups of rows that bound the memory."""
    many = prod(np.broadcast_shapes(a.shape[:-2], x.shape[:-1])) * a.shape[-1]
    step, vectors = max(1, _AT_ONCE // many), x[..., None, :]
    rows = range(0, a.shape[-2], step)
    return np.concatenate([total(a[..., start : start + step, :] * vectors, -1) for start in rows], axis=-1)


def _float_matmul(a: NDArray[Any], b: NDArray[Any], p: int) -> NDArray[Any]:
    """Return the product of residues, by float64.

    The right factor is cut into limbs and the inner dimension into pieces, so that every partial sum is an integer
    below 2^53 and float64 is exact whatever the order of additions.
    """
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if prod(shape) > 1 and prod(b.shape[:-2]) == 1:  # one right factor for all: one large product
        rows = np.ascontiguousarray(a).reshape(-1, a.shape[-1])
        return _float_matmul(rows, b.reshape(b.shape[-2:]), p).reshape(*shape, a.shape[-2], b.shape[-1])
    depth = min(a.shape[-1], _DEPTH)
    limb = _EXACT - p.bit_length() - (depth - 1).bit_length()
    out = np.zeros((*shape, a.shape[-2], b.shape[-1]), dtype=np.uint64)
    for start in range(0, a.shape[-1], depth):
        left, right = a[..., start : start + depth].astype(np.float64), b[..., start : start + depth, :]
        for shift in range(0, p.bit_length(), limb):
            piece = ((right >> shift) & ((1 << limb) - 1)).astype(np.float64)
            part = np.matmul(left, piece).astype(np.uint64) % np.uint64(p)
            out += part * np.uint64(pow(2, shift, p)) % np.uint64(p)
    return out % np.uint64(p)


def powers_of(base: int, exponents: Elements, field: FieldClass, bound: int) -> Elements:
    """Return base^e for exponents below ``bound``, by two tables of about sqrt(bound) entries."""
    width = (bound.bit_length() + 1) // 2
    low = _powers(base, 1 << width, field)
    high = _powers(pow(base, 1 << width, field.order), (bound >> width) + 1, field)
    e = np.asarray(exponents).astype(np.int64)
    return high[e >> width] * low[e & ((1 << width) - 1)]


@lru_cache(maxsize=4)
def _powers(base: int, count: int, field: FieldClass) -> Elements:
    """Return the first powers of base, by products: galois compiles no power for this."""
    table, step = field([1]), field(base)
    while table.size < count:
        table, step = np.concatenate([table, table * step]), step * step
    return table[:count]

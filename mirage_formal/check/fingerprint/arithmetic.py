"""The checker's own arithmetic of residues modulo a prime below 2^31, on numpy arrays of uint64.

Nothing is shared with prove/identity_testing. Products use float64 in pieces that stay below 2^53, powers are by
squaring, and inverses take one power for a whole array.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Residues = NDArray[np.uint64]

_EXACT = 53  # bits of integers that float64 holds exactly
_DEPTH = 1 << 10  # longest inner dimension that is multiplied in one piece


def is_prime(n: int) -> bool:
    """Return whether n is prime, by sympy: an implementation independent of the one that found the primes."""
    from sympy import isprime  # half of the time that it takes to load the checker; proofs alone do not need it

    return bool(isprime(n))


def residue(value: Fraction, p: int) -> int:
    """Return an exact constant modulo p.

    Raises:
        ZeroDivisionError: Its denominator is a multiple of p.
    """
    if value.denominator % p == 0:
        raise ZeroDivisionError(f"{value} has no residue modulo {p}")
    return value.numerator * pow(value.denominator, -1, p) % p


def multiply(a: Residues, b: Residues | int, p: int) -> Residues:
    """Return the elementwise product; exact because both factors are below 2^31."""
    return np.asarray(a * (np.uint64(b) if isinstance(b, int) else b) % np.uint64(p))


def add(a: Residues, b: Residues | int, p: int) -> Residues:
    """Return the elementwise sum."""
    return np.asarray((a + (np.uint64(b) if isinstance(b, int) else b)) % np.uint64(p))


def subtract(a: Residues, b: Residues, p: int) -> Residues:
    """Return the elementwise difference."""
    return np.asarray((a + (np.uint64(p) - b)) % np.uint64(p))


def power(a: Residues, exponent: int, p: int) -> Residues:
    """Return the elementwise power with one exponent."""
    out = np.ones_like(a)
    for bit in bin(exponent)[2:]:
        out = multiply(out, out, p)
        if bit == "1":
            out = multiply(out, a, p)
    return out


def inverse(a: Residues, p: int) -> Residues:
    """Return the elementwise inverse of residues that are not zero (zero gives zeros everywhere).

    Halves the array by multiplying pairs until one power does (Montgomery).
    """
    flat = a.reshape(-1)
    if flat.size <= 8:
        return power(a, p - 2, p)
    half = (flat.size + 1) // 2
    left, right = flat[:half], np.ones(half, dtype=np.uint64)
    right[: flat.size - half] = flat[half:]
    both = inverse(multiply(left, right, p), p)
    out = np.concatenate([multiply(both, right, p), multiply(both, left, p)])
    return out[: flat.size].reshape(a.shape)


def total(a: Residues, axis: int, p: int) -> Residues:
    """Return the sum along one axis, which is removed; fewer than 2^33 terms below 2^31 fit 64 bits."""
    return np.asarray(a.sum(axis=axis, dtype=np.uint64) % np.uint64(p))


def matmul(a: Residues, b: Residues, p: int) -> Residues:
    """Return the product over the last two axes; the axes before them broadcast.

    The right factor is cut into limbs and the inner dimension into pieces, so that every partial sum is an integer
    below 2^53 and float64 is exact whatever the order of additions.
    """
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if prod(shape) > 1 and prod(b.shape[:-2]) == 1:  # one right factor for all: one large product
        rows = np.ascontiguousarray(a).reshape(-1, a.shape[-1])
        return matmul(rows, b.reshape(b.shape[-2:]), p).reshape(*shape, a.shape[-2], b.shape[-1])
    depth = min(a.shape[-1], _DEPTH)
    limb = _EXACT - p.bit_length() - (depth - 1).bit_length()
    out: Residues = np.zeros((*shape, a.shape[-2], b.shape[-1]), dtype=np.uint64)
    for start in range(0, a.shape[-1], depth):
        left = a[..., start : start + depth].astype(np.float64)
        right = b[..., start : start + depth, :]
        for shift in range(0, p.bit_length(), limb):
            piece = ((right >> np.uint64(shift)) & np.uint64((1 << limb) - 1)).astype(np.float64)
            part = np.matmul(left, piece).astype(np.uint64) % np.uint64(p)
            out = np.asarray(out + multiply(part, pow(2, shift, p), p))
    return np.asarray(out % np.uint64(p))


def powers_of(base: int, exponents: Residues, p: int, bound: int) -> Residues:
    """Return base^e for exponents below ``bound``, by two tables of about sqrt(bound) entries."""
    width = (bound.bit_length() + 1) // 2
    low = _powers(base, 1 << width, p)
    high = _powers(pow(base, 1 << width, p), (bound >> width) + 1, p)
    mask = np.uint64((1 << width) - 1)
    return multiply(high[(exponents >> np.uint64(width)).astype(np.int64)], low[(exponents & mask).astype(np.int64)], p)


def _powers(base: int, count: int, p: int) -> NDArray[Any]:
    table: Residues = np.ones(1, dtype=np.uint64)
    while table.size < count:
        table = np.concatenate([table, multiply(table, pow(base, table.size, p), p)])
    return table[:count]

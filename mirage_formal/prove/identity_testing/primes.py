"""The pair of prime fields of a fingerprint: Z_p for values, Z_q for exponents, q | p - 1.

The pair for a given size is a fixed function of the size, so that anybody can recompute it: the largest p below 2^bits
with p = 2q + 1, p and q prime, and q = -1 modulo 4 * 2 * 3 * 5 * 7 (from 28 bits on also modulo 11 and 13). Then p and
q are 3 modulo 4, so the principal square root x^((p+1)/4) of a residue is a residue itself. Every positive integer with
these prime factors only is a residue in both fields. So positive constants such as 64 or 1/4096 are residues (quadratic
reciprocity: for an odd prime l, q = -1 mod 4l gives (l/q) = 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from mirage_formal.prove.identity_testing.prime_table import GALOIS, PAIRS
from mirage_formal.support.errors import UnsupportedError

MIN_BITS: Final = 16
MAX_BITS: Final = 31

#: Strong-probable-prime tests to these bases decide primality below 3.3e24 (Sorenson and Webster, 2015).
_BASES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


@dataclass(frozen=True, slots=True)
class FieldPair:
    """Primes p = 2q + 1 as above."""

    p: int
    q: int


def is_prime(n: int) -> bool:
    """Return whether ``n`` is prime, exactly, for every n below 3.3e24."""
    if n < 2:
        return False
    for base in _BASES:
        if n % base == 0:
            return n == base
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(n, base, odd, twos) for base in _BASES)


def _passes(n: int, base: int, odd: int, twos: int) -> bool:
    x = pow(base, odd, n)
    if x in (1, n - 1):
        return True
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return True
    return False


@lru_cache(maxsize=64)
def field_pair(bits: int) -> FieldPair:
    """Return the pair of primes for values of ``bits`` bits.

    Args:
        bits: 16 to 31; products of two elements must fit 64 bits, and limbs of them 53.

    Raises:
        UnsupportedError: ``bits`` is out of range.
    """
    if not MIN_BITS <= bits <= MAX_BITS:
        raise UnsupportedError(f"expected prime_bits in {MIN_BITS}..{MAX_BITS}, got {bits}", where="prime_bits")
    step = 840 * (143 if bits >= 28 else 1)
    # The largest q = -1 mod step with 2q + 1 < 2^bits.
    q = ((1 << bits) - 2) // 2
    q -= (q + 1) % step
    while not (is_prime(q) and is_prime(2 * q + 1)):
        q -= step
        if q <= 0:
            raise UnsupportedError(f"no pair of primes of {bits} bits", where="prime_bits")
    return FieldPair(2 * q + 1, q)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Answer of galois about a pair: its version and the least primitive root of Z_p.

    The primitive root g makes g^((p-1)/q) an element of order q, so exp has a picture.
    """

    galois_version: str
    primitive_root: int


def confirm(pair: FieldPair) -> Confirmation:
    """Return the confirmation of a pair by galois: both are prime, and Z_p has elements of order q.

    The answers for every pair that ``field_pair`` gives are kept in ``prime_table``, with the version of galois. galois
    itself takes one to three seconds to load, and is asked about other pairs only.



    Raises:
        UnsupportedError: galois disagrees.
    """
    q, root = PAIRS.get(pair.p, (0, 0))
    return Confirmation(GALOIS, root) if q == pair.q else ask_galois(pair)


def ask_galois(pair: FieldPair) -> Confirmation:
    """Return the confirmation from galois itself, without the table.

    Raises:
        UnsupportedError: galois disagrees.
    """
    import galois

    library: Any = galois
    p, q = pair.p, pair.q
    if not (library.is_prime(p) and library.is_prime(q) and (p - 1) % q == 0):
        raise UnsupportedError(f"galois does not confirm p = {p}, q = {q}", where="prime_bits")
    root = int(library.primitive_root(p))
    order_q = pow(root, (p - 1) // q, p)
    if order_q == 1 or pow(order_q, q, p) != 1:
        raise UnsupportedError(f"galois does not confirm an element of order {q} modulo {p}", where="prime_bits")
    return Confirmation(str(library.__version__), root)

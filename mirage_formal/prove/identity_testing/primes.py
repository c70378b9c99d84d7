"""The pair of prime fields of a fingerprint: Z_p for values, Z_q for exponents, q | p - 1.

The pair for a given size is a fixed function of the size, so that anybody can recompute it: the largest p below 2^bits
with p = 2q + 1, p and q prime, and q = -1 modulo 4 * 2 * 3 * 5 * 7 (from 28 bits on also modulo 11 and 13). Then p and
q are 3 modulo 4, so the principal square root x^((p+1)/4) of a residue is a residue itself. Every positive integer with
these prime factors only is a residue in both fields. So positive constants such as 64 or 1/4096 are residues (quadratic
reciprocity: for an odd prime l, q = -1 mod 4l gives (l/q) = 1).

galois has found the pairs; a search reads them here, because galois takes a second or more to load. ``python -m
mirage_formal.prove.identity_testing.primes`` prints them as the galois that is installed finds them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from mirage_formal.support.errors import UnsupportedError

MIN_BITS: Final = 16
MAX_BITS: Final = 31


class FieldPair(Struct, frozen=True):
    """Primes p = 2q + 1 as above, and the least primitive root of Z_p.

    The primitive root g makes g^((p-1)/q) an element of order q, so exp has a picture.
    """

    p: int
    q: int
    primitive_root: int


#: By the number of bits; galois 0.4.11 found them.
PAIRS: Final = {
    16: FieldPair(57119, 28559, 19),
    17: FieldPair(127679, 63839, 13),
    18: FieldPair(260399, 130199, 17),
    19: FieldPair(507359, 253679, 13),
    20: FieldPair(1026479, 513239, 11),
    21: FieldPair(2091599, 1045799, 11),
    22: FieldPair(4193279, 2096639, 19),
    23: FieldPair(8361359, 4180679, 13),
    24: FieldPair(16739519, 8369759, 11),
    25: FieldPair(33549599, 16774799, 13),
    26: FieldPair(67099199, 33549599, 13),
    27: FieldPair(134070719, 67035359, 23),
    28: FieldPair(264984719, 132492359, 17),
    29: FieldPair(534053519, 267026759, 29),
    30: FieldPair(1072911839, 536455919, 31),
    31: FieldPair(2147024879, 1073512439, 23),
}


def field_pair(bits: int) -> FieldPair:
    """Return the pair of primes for values of ``bits`` bits.

    Args:
        bits: 16 to 31; products of two elements must fit 64 bits, and limbs of them 53.

    Raises:
        UnsupportedError: ``bits`` is out of range.
    """
    if bits not in PAIRS:
        raise UnsupportedError(f"expected prime_bits in {MIN_BITS}..{MAX_BITS}, got {bits}", where="prime_bits")
    return PAIRS[bits]


def search_pair(bits: int) -> FieldPair:
    """Search the pair of primes for values of ``bits`` bits with galois."""
    import galois

    step = 840 * (143 if bits >= 28 else 1)
    # The largest q = -1 mod step with 2q + 1 < 2^bits.
    q = ((1 << bits) - 2) // 2
    q -= (q + 1) % step
    while not (galois.is_prime(q) and galois.is_prime(2 * q + 1)):
        q -= step
    return FieldPair(2 * q + 1, q, int(galois.primitive_root(2 * q + 1)))


if __name__ == "__main__":
    for size in range(MIN_BITS, MAX_BITS + 1):
        print(size, search_pair(size))

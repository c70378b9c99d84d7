"""Table of galois's answers about the prime fields of fingerprints, so that no run has to load it.

Written by ``python -m mirage_formal.prove.identity_testing.confirmation``, which asks galois about every pair that
``primes.field_pair`` gives; tests ask it again.
"""

from __future__ import annotations

from typing import Final

#: The version of galois that was asked.
GALOIS: Final = "0.4.11"
#: By p: q, and the least primitive root of Z_p. galois found p and q prime.
PAIRS: Final[dict[int, tuple[int, int]]] = {
    57119: (28559, 19),
    127679: (63839, 13),
    260399: (130199, 17),
    507359: (253679, 13),
    1026479: (513239, 11),
    2091599: (1045799, 11),
    4193279: (2096639, 19),
    8361359: (4180679, 13),
    16739519: (8369759, 11),
    33549599: (16774799, 13),
    67099199: (33549599, 13),
    134070719: (67035359, 23),
    264984719: (132492359, 17),
    534053519: (267026759, 29),
    1072911839: (536455919, 31),
    2147024879: (1073512439, 23),
}

"""Closing identities of a replayed proof, for sympy's second opinion; nothing here accepts a proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirage_formal.check.proof.ring import Coef, Mono, Poly, Ring


@dataclass(frozen=True, slots=True)
class Closing:
    """Closing identity of one pair of outputs: the polynomials that were found equal.

    Attributes:
        left: The program's element, as (monomial, coefficient).
        right: The candidate's element.
        powers: Kind and payload of each factor exp, pow or surd in them.
    """

    left: tuple[tuple[Mono, Coef], ...]
    right: tuple[tuple[Mono, Coef], ...]
    powers: Mapping[int, tuple[str, Any]]


def closing_identity(ring: Ring, left: Poly, right: Poly) -> Closing:
    """Return the closing identity of two polynomials, with the payloads of exp, pow and surd factors at any depth."""
    powers: dict[int, tuple[str, Any]] = {}
    stack = [f for mono in (*left, *right) for f, _ in mono]
    while stack:
        f = stack.pop()
        if f not in powers and ring.kinds[f] in ("exp", "pow", "surd"):
            powers[f] = (ring.kinds[f], ring.payloads[f])
            stack += [g for mono in ring.inside(f)[2] for g, _ in mono]
    return Closing(tuple(left.items()), tuple(right.items()), powers)

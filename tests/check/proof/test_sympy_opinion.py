"""sympy's second opinion: it confirms what holds, refutes what does not, and does not know what is too large."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mirage_formal.check.proof.closing_identities import Closing
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import Key, Poly, Ring
from mirage_formal.check.proof.sympy_crosscheck import (
    IdentityCrosscheck,
    SympyAnswer,
    crosscheck_identity,
    crosscheck_theorem,
)
from tests.kit.processes import calls
from tests.kit.proofs.hand_proofs import PAIRS, text

RING = Ring((2,))
X, Y = (RING.intern("in", (i, ((0, ((0, 1),)),))) for i in range(2))
SUM = frozenset({(((X, 2),), 1), (((Y, 2),), 1)})
P = RING.intern("pow", SUM)
EXP = [RING.intern("exp", frozenset({(((X, 2),), c)})) for c in (1, -1, Fraction(1, 2))]
ONE_PLUS = [RING.intern("pow", frozenset({((), 1), (((e, 2),), 1)})) for e in EXP[:2]]
TWO, THREE, SIX = (RING.intern("surd", n) for n in (2, 3, 6))
ROOT = RING.intern("pow", frozenset({(((TWO, 1),), 1), (((THREE, 1), (X, 2)), 1)}))
POWERS = {f: (RING.kinds[f], RING.payloads[f]) for f in (P, *EXP, *ONE_PLUS, TWO, THREE, SIX, ROOT)}


def said(left: Poly, right: Poly) -> SympyAnswer:
    return crosscheck_identity(Closing(tuple(left.items()), tuple(right.items()), POWERS)).answer


SAME = [
    ({((X, 2), (Y, 2)): 3}, {((Y, 2), (X, 2)): 3}),
    ({((P, 4),): 1}, {((X, 4),): 1, ((X, 2), (Y, 2)): 2, ((Y, 4),): 1}),
    ({((P, -2), (X, 2)): 1, ((P, -2), (Y, 2)): 1}, {(): 1}),
    ({((P, -1), (X, 2)): 1, ((P, -1), (Y, 2)): 1}, {((P, 1),): 1}),
    ({((ONE_PLUS[0], -2),): 1, ((ONE_PLUS[1], -2),): 1}, {(): 1}),
    ({((EXP[2], 4),): 1}, {((EXP[0], 2),): 1}),
    ({((EXP[0], 2), (EXP[1], 2)): 5}, {(): 5}),
    ({((TWO, 1), (THREE, 1)): 1}, {((SIX, 1),): 1}),
    ({((ROOT, 4),): 1}, {(): 2, ((SIX, 1), (X, 2)): 2, ((X, 4),): 3}),
    ({((X, 1), (Y, -3)): Fraction(1, 3)}, {((Y, -3), (X, 1)): Fraction(1, 3)}),
    ({}, {}),
]
OTHER = [
    ({((X, 2),): 1}, {((Y, 2),): 1}),
    ({((X, 2),): 1}, {((X, 1),): 1}),
    ({((X, 2),): 1}, {((X, 2),): Fraction(1, 2)}),
    ({((P, 4),): 1}, {((X, 4),): 1, ((Y, 4),): 1}),
    ({((P, -2), (X, 2)): 1}, {(): 1}),
    ({((P, 1),): 1}, {((P, -1),): 1}),
    ({((ONE_PLUS[0], -2),): 1}, {((ONE_PLUS[1], -2),): 1}),
    ({((EXP[0], 2),): 1}, {((EXP[1], 2),): 1}),
    ({((EXP[2], 2),): 1}, {((EXP[0], 2),): 1}),
    ({((TWO, 1),): 1}, {((THREE, 1),): 1}),
    ({((X, 2),): 1}, {}),
]


@pytest.mark.parametrize("sides", SAME)
def test_what_holds_is_confirmed(sides: tuple[Poly, Poly]) -> None:
    assert said(*sides) is SympyAnswer.CONFIRMED


@pytest.mark.parametrize("sides", OTHER)
def test_what_does_not_hold_is_refuted(sides: tuple[Poly, Poly]) -> None:
    assert said(*sides) is SympyAnswer.REFUTED


def test_what_is_too_large_is_undecided() -> None:
    wide = frozenset({(((RING.intern("in", (i, ())), 2),), 1) for i in range(2, 60)})
    f = RING.intern("pow", wide)
    found = crosscheck_identity(Closing(((((f, 12),), 1),), (), {f: ("pow", wide)}))
    assert found.answer is SympyAnswer.UNDECIDED
    assert "at most" in found.reason
    nothing = RING.intern("pow", frozenset({((), 1), (((TWO, 1), (TWO, 1)), Fraction(-1, 2))}))
    powers = {**POWERS, nothing: ("pow", RING.payloads[nothing])}
    closing = Closing(((((nothing, -2),), 1),), ((((nothing, -4),), 1),), powers)
    assert crosscheck_identity(closing).answer is SympyAnswer.UNDECIDED


def _wide(first: int) -> Key:
    """A sum of 40 * 40 products."""
    low, high = ([RING.intern("in", (i, ())) for i in range(n, n + 40)] for n in (first, first + 40))
    return frozenset((tuple(sorted(((f, 2), (g, 2)))), 1) for f in low for g in high)


@pytest.mark.slow
def test_work_is_bounded_and_equal_divisors_need_none() -> None:
    """Quotients by one large divisor, in another order: the numerators decide. Two such divisors are too large."""
    bodies = [_wide(100), _wide(300)]
    f, g = (RING.intern("pow", body) for body in bodies)
    powers = {f: ("pow", bodies[0]), g: ("pow", bodies[1])}
    x, y, z = ((((X, e), (f, -2)), 1) for e in (2, 4, 6))
    found: list[IdentityCrosscheck] = []

    def ask() -> None:
        found.append(crosscheck_identity(Closing((x, y), (y, x), powers)))
        found.append(crosscheck_identity(Closing((x, y), (y, z), powers)))
        found.append(crosscheck_identity(Closing(((((f, 2), (g, -2)), 1),), ((((g, 2), (f, -2)), 1),), powers)))

    calls(ask, 30_000_000)  # two million, nearly all of them sympy's
    assert [one.answer for one in found] == [SympyAnswer.CONFIRMED, SympyAnswer.REFUTED, SympyAnswer.UNDECIDED]
    assert "products" in found[2].reason


def test_an_answer_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="no truth value"):
        bool(SympyAnswer.CONFIRMED)


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_proofs_that_hold_are_confirmed_and_broken_closings_refuted(name: str) -> None:
    theorem = replay(*PAIRS[name], text(name))
    assert [o.answer for o in crosscheck_theorem(theorem)] == [SympyAnswer.CONFIRMED] * len(theorem.closings)
    for closing in theorem.closings:
        (mono, coef), *rest = closing.left
        broken = Closing(((mono, coef * 2), *rest), closing.right, closing.powers)
        assert crosscheck_identity(broken).answer is SympyAnswer.REFUTED

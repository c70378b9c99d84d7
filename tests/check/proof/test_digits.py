"""The mixed-radix lemma, as z3 and cvc5 decide it."""

from __future__ import annotations

import pytest

from mirage_formal.check.proof.digits import mixed_radix_obligations
from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import Satisfiability, discharge


@pytest.mark.parametrize("extents", [(2, 2), (3, 2), (7, 5, 3), (64, 64), (43, 16, 16), (2, 2, 2, 2), (4096, 6144)])
def test_both_solvers_prove_both_halves(extents: tuple[int, ...]) -> None:
    found = mixed_radix_obligations(extents)
    assert set(found) == {"injective", "onto"}
    for text in found.values():
        results = discharge(parse_script(text))
        assert [r.solver for r in results] == ["z3", "cvc5"]
        assert all(r.answer is Satisfiability.UNSAT for r in results), results


@pytest.mark.parametrize(
    ("half", "old", "new"),
    [
        ("injective", "(* 3 a0)", "(* 2 a0)"),
        ("injective", "(< a1 3)", "(< a1 4)"),
        ("injective", "(<= 0 b1)", "(<= (- 1) b1)"),
        ("onto", "(< t 15)", "(<= t 15)"),
        ("onto", "(div t 3)", "(div t 2)"),
        ("onto", "(* 3 d0)", "(* 4 d0)"),
    ],
)
def test_a_wrong_lemma_is_not_proved(half: str, old: str, new: str) -> None:
    text = mixed_radix_obligations((5, 3))[half]
    assert old in text
    # A wrong number on one side only.
    for result in discharge(parse_script(text.replace(old, new))):
        assert result.answer is not Satisfiability.UNSAT, (old, new, text)


def test_the_texts_say_which_extents() -> None:
    texts = mixed_radix_obligations((5, 3))
    assert "(< a0 5)" in texts["injective"]
    assert "(< a1 3)" in texts["injective"]
    assert "(< t 15)" in texts["onto"]
    assert mixed_radix_obligations((3, 5)) != texts

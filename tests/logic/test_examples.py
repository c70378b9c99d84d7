"""An introduction to ``mirage_formal/logic``: terms and scripts go to z3 and cvc5, answers are values."""

from __future__ import annotations

import pytest

from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import Satisfiability, discharge
from mirage_formal.logic.terms import add, unary, var
from mirage_formal.support.errors import FormatError


def test_equal_terms_are_one_object() -> None:
    """Terms are hash-consed, so that equality of terms is identity."""
    assert add(var("X"), var("Y")) is add(var("X"), var("Y"))
    assert unary("exp", var("X")) is not unary("exp", var("Y"))


def test_both_solvers_answer_a_script() -> None:
    text = "(set-logic QF_LIA)\n(declare-const x Int)\n(assert (< x x))\n(check-sat)\n"
    answers = discharge(parse_script(text))
    assert [answer.solver for answer in answers] == ["z3", "cvc5"]
    assert {answer.answer for answer in answers} == {Satisfiability.UNSAT}


def test_an_answer_has_no_truth_value() -> None:
    """Unknown can therefore not be mistaken for no."""
    with pytest.raises(TypeError, match="no truth value"):
        bool(Satisfiability.UNKNOWN)


def test_a_script_outside_of_the_subset_is_refused() -> None:
    with pytest.raises(FormatError):
        parse_script('(set-option :x "file")(check-sat)')

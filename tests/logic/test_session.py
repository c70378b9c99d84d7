"""Solver sessions: answers are values, failures are unknown, solvers load late."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from mirage_formal.logic.script import Script
from mirage_formal.logic.session import AxiomSession, Satisfiability, SubexpressionAnswer, discharge, discharge_all
from mirage_formal.logic.sexpr import parse_sexprs
from mirage_formal.logic.terms import add, const, mul, sum_, unary, var
from tests.kit.proofs.expressions import WORKLOADS

X, Y = var("X"), var("Y")
#: For what a solver decides at once, on a machine that others use as well.
PATIENCE_MS = 120_000
HEAD = "(set-logic QF_UF)(declare-sort Expr 0)(declare-const a Expr)(declare-const b Expr)"


def script(text: str) -> Script:
    return Script(parse_sexprs(text))


@pytest.mark.parametrize("value", [*SubexpressionAnswer, *Satisfiability])
def test_answers_have_no_truth_value(value: SubexpressionAnswer | Satisfiability) -> None:
    with pytest.raises(TypeError, match="no truth value"):
        bool(value)


def test_both_solvers_answer() -> None:
    for text, answer in (
        (HEAD + "(assert (not (= a a)))(check-sat)", Satisfiability.UNSAT),
        (HEAD + "(assert (not (= a b)))(check-sat)", Satisfiability.SAT),
    ):
        results = discharge(script(text))
        assert [r.solver for r in results] == ["z3", "cvc5"]
        assert [r.answer for r in results] == [answer, answer]
        assert all(r.version[0].isdigit() and r.milliseconds >= 0 and not r.reason for r in results)


def test_several_questions_are_answered_in_order() -> None:
    texts = [HEAD + f"(assert (not (= a {other})))(check-sat)" for other in "abab"]
    answers = [[r.answer.value for r in results] for results in discharge_all([script(text) for text in texts])]
    assert answers == [["unsat"] * 2, ["sat"] * 2] * 2
    assert discharge_all([]) == []


def test_what_solvers_cannot_read_is_unknown() -> None:
    """Multiplication of variables is refused by the logic, which is the solvers' to say."""
    text = "(set-logic QF_LIA)(declare-const a Int)(assert (< (* a a) 0))(check-sat)"
    for result in discharge(script(text)):
        assert result.answer is not Satisfiability.SAT
        assert result.answer is Satisfiability.UNSAT or result.reason


def test_running_out_of_time_is_unknown() -> None:
    holes = 11
    lines = ["(set-logic QF_UF)"]
    lines += [f"(declare-const p{i}_{j} Bool)" for i in range(holes + 1) for j in range(holes)]
    lines += [f"(assert (or {' '.join(f'p{i}_{j}' for j in range(holes))}))" for i in range(holes + 1)]
    for j in range(holes):
        for i in range(holes + 1):
            lines += [f"(assert (not (and p{i}_{j} p{k}_{j})))" for k in range(i)]
    for result in discharge(script("\n".join([*lines, "(check-sat)"])), timeout_ms=100):
        assert result.answer is Satisfiability.UNKNOWN, result
        assert result.reason


def test_quantified_axioms_prove_and_never_guess() -> None:
    session = AxiomSession()
    target = WORKLOADS["lora"]
    assert session.ask(sum_(4096, mul(var("X"), var("W"))), target, PATIENCE_MS) is SubexpressionAnswer.PROVED
    assert session.ask(mul(var("W"), var("X")), target, PATIENCE_MS) is SubexpressionAnswer.PROVED
    assert session.ask(unary("exp", var("W")), target, 100) is not SubexpressionAnswer.PROVED


def test_terms_are_z3_terms() -> None:
    session = AxiomSession()
    e = add(unary("exp", sum_(64, mul(X, Y))), const(3))
    assert str(session.term(e)).replace("\n", "") == "add(exp(sum(64, mul(var.X, var.Y))), const.3)"
    assert session.term(e) is session.term(e)


def test_solvers_are_not_loaded_before_they_are_asked() -> None:
    code = (
        "import sys, mirage_formal.logic.session, mirage_formal.logic.certificate;"
        "import mirage_formal.prove.abstract.subexpression_oracle;"
        "assert not {'z3', 'cvc5', 'numpy', 'galois'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_question_ends_although_z3_misses_its_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine a check of 20 ms once ran for ten minutes: its resources are limited as well."""
    session = AxiomSession()
    made = session._solver

    class Untimed:
        def __init__(self, *question: Any) -> None:
            self._solver = made(*question)

        def set(self, parameter: str, limit: int) -> None:
            if parameter != "timeout":
                self._solver.set(parameter, limit)

        def check(self) -> object:
            return self._solver.check()

    monkeypatch.setattr(session, "_solver", Untimed)
    whole = session.ask(sum_(2, X), unary("exp", X), 20)
    assert whole is SubexpressionAnswer.UNKNOWN

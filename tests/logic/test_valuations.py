"""Models in numbers: what they refute, and what added axioms and those that are switched off change."""

from __future__ import annotations

import random

import pytest

from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AddedAxiom, AxiomChoice
from mirage_formal.logic.session import SubexpressionAnswer
from mirage_formal.logic.terms import Expr, add, div, mul, sum_, unary, var
from mirage_formal.logic.valuations import ValuationRefuter, valuations_of
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from tests.kit.proofs.expressions import query, random_term

X, Y, Z = var("X"), var("Y"), var("Z")


def added(body: str) -> AxiomChoice:
    text = f"(assert (! (forall ((x Expr) (y Expr) (i Int)) (! {body} :qid a)) :named a))"
    return AxiomChoice((AddedAxiom("a", text),))


ROOT = added("(= (sqrt (mul x y)) (mul (sqrt x) (sqrt y)))")


def refutes(e: Expr, target: Expr, choice: AxiomChoice = USUAL_AXIOMS) -> bool:
    return ValuationRefuter(choice).refutes(e, target)


def exp(e: Expr) -> Expr:
    return unary("exp", e)


def sqrt(e: Expr) -> Expr:
    return unary("sqrt", e)


def test_no_model_refutes_what_the_normal_forms_prove() -> None:
    rng = random.Random(7)
    models, counts = ValuationRefuter(USUAL_AXIOMS), {answer: [0, 0] for answer in SubexpressionAnswer}
    for _ in range(400):
        target = random_term(rng, 4)
        oracle = NormalFormOracle([target], max_monomials=64)
        for e in (query(rng, target) for _ in range(5)):
            counts[oracle.contains(e)][models.refutes(e, target)] += 1
    assert counts[SubexpressionAnswer.PROVED][True] == 0
    assert counts[SubexpressionAnswer.PROVED][False] > 100
    assert counts[SubexpressionAnswer.REFUTED][True] > 100


@pytest.mark.parametrize(
    ("e", "target"),
    [
        (add(X, Y), mul(X, Y)),  # two terms in one
        (mul(X, X), mul(X, Y)),
        (exp(exp(X)), exp(X)),
        (Z, mul(X, Y)),
        (sum_(6, X), sum_(4, X)),  # a factor 3
        (sum_(4, X), sum_(6, X)),
        (exp(X), div(X, Y)),
    ],
)
def test_models_refute(e: Expr, target: Expr) -> None:
    assert refutes(e, target)
    assert not refutes(e, e)


def test_an_added_equation_leaves_fewer_models_and_refutes_nothing_that_it_entails() -> None:
    assert not refutes(sqrt(mul(X, Y)), mul(sqrt(X), sqrt(Y)), ROOT)
    assert not refutes(mul(X, Y), mul(sqrt(X), sqrt(Y)), ROOT)
    assert refutes(add(X, Y), mul(sqrt(X), sqrt(Y)), ROOT)
    # The number of roots is no longer kept, so it refutes nothing.
    assert refutes(mul(sqrt(X), sqrt(Y)), sqrt(mul(X, Y)))
    assert not refutes(mul(sqrt(X), sqrt(Y)), sqrt(mul(X, Y)), ROOT)


@pytest.mark.parametrize(
    "body",
    [
        "(= x y)",
        "(= (divide (mul x y) y) x)",
        "(= (exp (add x y)) (mul (exp x) (exp y)))",
        "(subexpr (mul x x) x)",
        "(subexpr (add x x) x)",
        "(=> (subexpr x y) (subexpr (exp x) (exp y)))",
    ],
)
def test_an_axiom_that_is_false_of_numbers_or_not_understood_leaves_no_model(body: str) -> None:
    assert valuations_of(added(body)) == ()
    assert not refutes(add(X, Y), Z, added(body))


def test_an_axiom_that_is_switched_off_leaves_more_models() -> None:
    assert not refutes(X, exp(X))
    assert refutes(X, exp(X), AxiomChoice(without=("sub-exp",)))
    assert not refutes(X, sqrt(X), AxiomChoice(without=("sub-exp",)))
    assert refutes(Y, div(X, Y), AxiomChoice(without=("sub-div-denominator",)))
    assert not refutes(X, div(X, Y), AxiomChoice(without=("sub-div-denominator",)))


def test_a_large_statement_ends() -> None:
    deep = "x"
    for _ in range(30):
        deep = f"(exp (add {deep} {deep}))" if len(deep) < 4000 else deep
    assert valuations_of(added(f"(= {deep} x)")) == ()

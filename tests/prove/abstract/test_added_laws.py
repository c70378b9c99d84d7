"""Laws in the normal forms of abstract expressions and in certificates; decisions that normal forms leave open."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AddedAxiom, AxiomChoice, axioms_in_force
from mirage_formal.logic.certificate import audit, to_smt2
from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import Satisfiability, SubexpressionAnswer, discharge
from mirage_formal.logic.terms import Expr, add, div, mul, sum_, unary, var
from mirage_formal.prove.abstract.refutation import PruningRefuter
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.support.errors import FormatError

X, Y, Z, W = (var(name) for name in "XYZW")


def bound(body: str) -> str:
    return f"((x Expr){' (y Expr)' if ' y' in body else ''})"


def stated(*bodies: str) -> AxiomChoice:
    texts = [f"(assert (! (forall {bound(body)} (! {body} :qid a{n})) :named a{n}))" for n, body in enumerate(bodies)]
    return AxiomChoice(tuple(AddedAxiom(f"a{n}", text) for n, text in enumerate(texts)))


def exp(e: Expr) -> Expr:
    return unary("exp", e)


def log(e: Expr) -> Expr:
    return unary("log", e)


def relu(e: Expr) -> Expr:
    return unary("relu", e)


SUM = "(= (exp (add x y)) (mul (exp x) (exp y)))"
INVERSE = "(= (exp (log x)) x)"
AGAIN = "(= (relu x) (relu (relu x)))"
CHOICE = stated(SUM, INVERSE, AGAIN)
TARGET = div(mul(mul(exp(X), exp(mul(Y, Z))), relu(Z)), W)
PARTS = [
    add(X, mul(Y, Z)),
    exp(add(X, mul(Y, Z))),
    log(W),
    log(log(W)),
    add(log(relu(Z)), X),
    relu(relu(Z)),
    log(relu(relu(Z))),
    log(TARGET),
    mul(exp(log(exp(X))), relu(Z)),
]


@pytest.mark.parametrize("e", PARTS, ids=str)
def test_laws_make_more_a_part_with_a_certificate_that_solvers_confirm(e: Expr) -> None:
    assert NormalFormOracle([TARGET]).contains(e) is SubexpressionAnswer.REFUTED
    oracle, axioms = NormalFormOracle([TARGET], choice=CHOICE), axioms_in_force(CHOICE)
    assert oracle.contains(e) is SubexpressionAnswer.PROVED
    certificate = oracle.certificate(e)
    assert certificate is not None
    text = to_smt2(certificate, axioms)
    assert audit(text, axioms=axioms).expression is e
    assert {one.answer for one in discharge(parse_script(text))} == {Satisfiability.UNSAT}
    with pytest.raises(FormatError, match="no axiom has this name"):
        audit(text)


@pytest.mark.parametrize("e", [add(X, W), mul(log(Z), Z), add(log(W), log(W)), exp(mul(X, Y)), log(add(X, Y))], ids=str)
def test_what_laws_do_not_entail_stays_refuted(e: Expr) -> None:
    assert NormalFormOracle([TARGET], choice=CHOICE).contains(e) is SubexpressionAnswer.REFUTED


def test_laws_that_go_round_in_circles_end() -> None:
    circle = stated("(= (relu (exp x)) (log x))", "(= (tanh (log x)) (exp x))", "(= (silu (silu x)) x)")
    oracle = NormalFormOracle([mul(exp(X), Y)], choice=circle)
    assert oracle.contains(log(X)) is SubexpressionAnswer.PROVED
    assert oracle.contains(unary("silu", mul(exp(X), Y))) is SubexpressionAnswer.PROVED
    assert oracle.contains(log(Y)) is SubexpressionAnswer.REFUTED


def test_an_argument_of_one_law_may_be_a_sum_that_another_exposes() -> None:
    target = mul(exp(add(log(X), mul(Y, Z))), W)  # X exp(Y Z) W
    oracle = NormalFormOracle([target], choice=CHOICE)
    assert oracle.contains(mul(X, exp(mul(Y, Z)))) is SubexpressionAnswer.PROVED
    assert oracle.contains(add(log(X), mul(Y, Z))) is SubexpressionAnswer.PROVED
    assert oracle.contains(sum_(2, X)) is SubexpressionAnswer.REFUTED


def roots() -> KernelGraph:
    graph = mf.new_kernel_graph()
    x, y = (graph.new_input(dims=(4, 4), dtype=mf.float16) for _ in "xy")
    graph.mark_output(graph.mul(graph.sqrt(x), graph.sqrt(y)))
    return graph.freeze()


ROOT = "(= (sqrt (mul x y)) (mul (sqrt x) (sqrt y)))"


def claim(e: Expr, target: Expr | None = None) -> tuple[Expr, tuple[Expr, ...]]:
    return e, (mul(X, Y) if target is None else target,)


def test_what_normal_forms_leave_open_is_kept_unless_it_is_refuted() -> None:
    refuter = PruningRefuter(stated(ROOT), roots())
    assert refuter.unfit
    assert not refuter.exact
    assert refuter.keeps(True, lambda: pytest.fail("nothing is asked"))
    assert not refuter.keeps(False, lambda: claim(add(X, Y)))
    assert not refuter.keeps(False, lambda: claim(unary("sqrt", mul(X, Y))))
    split = mul(unary("sqrt", X), unary("sqrt", Y))
    assert refuter.keeps(False, lambda: claim(mul(X, Y), split))  # unknown is kept
    without = PruningRefuter(AxiomChoice(without=("sub-exp",)), roots())
    assert not without.exact
    assert not without.keeps(True, lambda: claim(X, exp(X)))
    assert without.keeps(True, lambda: claim(X, mul(X, Y)))
    assert not without.keeps(False, lambda: pytest.fail("nothing is asked"))


@pytest.mark.parametrize(
    ("bodies", "unfit"),
    [
        ([ROOT], True),  # the program has a root
        (["(= (silu (mul x y)) (mul (silu x) (silu y)))"], False),  # no silu: it stays where it is
        (["(= (silu x) (mul x (sigmoid x)))"], True),  # a step may lose silu, and another one sigmoid
        (["(= (silu x) (mul x x))"], True),  # loses silu
        (["(= (silu (mul x x)) (silu y))"], True),  # loses x
        (["(= (silu (mul x x)) (silu (add x x)))", "(= (silu x) (sqrt x))"], True),  # a second axiom loses silu
        (["(subexpr (sqrt x) (silu x))"], False),
        (["(subexpr (silu x) (sqrt x))"], True),
        ([SUM], False),  # a law
        ([], False),
    ],
)
def test_an_axiom_matters_if_it_can_lead_to_the_program(bodies: list[str], unfit: bool) -> None:
    assert PruningRefuter(stated(*bodies) if bodies else USUAL_AXIOMS, roots()).unfit is unfit

"""The normal-form oracle against saturated e-graphs, a decision procedure of entirely different make."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AddedAxiom, AxiomChoice, axioms_in_force
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.logic.session import SubexpressionAnswer
from mirage_formal.logic.terms import Const, Variable, mul, unary
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.reproduce.egraph import EGraph, StopReason
from tests.kit.proofs import expressions
from tests.kit.proofs.expressions import extents_product, query, random_term, without_ones
from tests.kit.sampling import number

pytest.importorskip("egglog.bindings")

QUERIES = number(5_000, 20_000)
MAX_SUMS = 16
MAX_NODES = 20_000
MAX_SECONDS = 60.0


LAWS = ("(= (exp (add x y)) (mul (exp x) (exp y)))", "(= (silu (relu x)) (relu x))", "(= (relu (relu x)) (relu x))")


def laws(*bodies: str) -> AxiomChoice:
    bound = ["((x Expr) (y Expr))" if " y" in body else "((x Expr))" for body in bodies]
    texts = [f"(assert (! (forall {bound[n]} (! {body} :qid a{n})) :named a{n}))" for n, body in enumerate(bodies)]
    return AxiomChoice(tuple(AddedAxiom(f"a{n}", text) for n, text in enumerate(texts)))


@pytest.mark.slow
@pytest.mark.parametrize("choice", [USUAL_AXIOMS, laws(*LAWS)], ids=["usual", "laws"])
def test_no_disagreement_with_saturated_egraphs(choice: AxiomChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(20251120)
    if choice != USUAL_AXIOMS:
        monkeypatch.setattr(expressions, "FUNCTIONS", ("exp", "relu", "silu"))
    assert not laws_of(choice).unfit
    graph = EGraph(tuple(range(2, MAX_SUMS + 1)), axioms_in_force(choice))
    counts: Counter[str] = Counter()
    while counts["queries"] < QUERIES:
        target = random_term(rng, 4)
        if choice != USUAL_AXIOMS and rng.random() < 0.5:
            target = mul(unary("exp", target), unary("exp", random_term(rng, 2)))
        if extents_product(target) > MAX_SUMS or isinstance(target, Variable | Const):
            continue
        oracle = NormalFormOracle([target], max_monomials=16, choice=choice)
        if oracle.contains(target) is SubexpressionAnswer.UNKNOWN:
            counts["too wide"] += 1
            continue
        if graph.grow(target, MAX_NODES, MAX_SECONDS).ending is not StopReason.SATURATED:
            counts["not saturated"] += 1
            graph.forget()
            continue
        counts["targets"] += 1
        for e in {without_ones(query(rng, target)): None for _ in range(40)}:
            answer = oracle.contains(e)
            if answer is SubexpressionAnswer.UNKNOWN and choice != USUAL_AXIOMS:
                counts["unknown"] += 1
                continue
            held = graph.holds(e)
            assert answer is (SubexpressionAnswer.PROVED if held else SubexpressionAnswer.REFUTED), (
                f"{e} in {target}: {answer}, e-graph {held}"
            )
            counts["queries"] += 1
            counts["part"] += held
        graph.forget()
    print(dict(counts))
    # Both answers must be common, or the comparison says little.
    assert counts["part"] > QUERIES / 4
    assert counts["queries"] - counts["part"] > QUERIES / 4
    assert counts["not saturated"] < counts["targets"]
    assert counts["unknown"] < QUERIES / 100

"""The normal-form oracle against saturated e-graphs, a decision procedure of entirely different make."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mirage_formal.logic.session import SubexpressionAnswer
from mirage_formal.logic.terms import Const, Variable
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.reproduce.egraph import EGraph, StopReason
from tests.kit.proofs.expressions import extents_product, query, random_term, without_ones
from tests.kit.sampling import number

pytest.importorskip("egglog.bindings")

QUERIES = number(5_000, 20_000)
MAX_SUMS = 16
MAX_NODES = 20_000
MAX_SECONDS = 60.0


@pytest.mark.slow
def test_no_disagreement_with_saturated_egraphs() -> None:
    rng = random.Random(20251120)
    graph = EGraph(tuple(range(2, MAX_SUMS + 1)))
    counts: Counter[str] = Counter()
    while counts["queries"] < QUERIES:
        target = random_term(rng, 4)
        if extents_product(target) > MAX_SUMS or isinstance(target, Variable | Const):
            continue
        oracle = NormalFormOracle([target], max_monomials=16)
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

"""The normal-form oracle against saturated e-graphs, a decision procedure of entirely different make."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from expression_kit import equations, extents_product, query, random_term, without_ones

from mirage_formal.search.oracle import NormalFormOracle
from mirage_formal.smt.axioms import AxiomSet, load
from mirage_formal.smt.session import Answer
from mirage_formal.smt.sexpr import SExpr
from mirage_formal.smt.terms import Add, Const, Div, Expr, Mul, Sum, Unary, Var, head

egglog = pytest.importorskip("egglog.bindings")

MAX_SUMS = 16
MAX_NODES = 20_000
MAX_ROUNDS = 40


def _pattern(p: SExpr) -> str:
    if isinstance(p, str):
        return p
    if p[0] == "sum":
        extent = p[1] if isinstance(p[1], str) else f"({' '.join(map(str, p[1]))})"
        return f"(Sum {extent} {_pattern(p[2])})"
    return f"({_constructor(str(p[0]))} {' '.join(_pattern(a) for a in p[1:])})"


def _constructor(symbol: str) -> str:
    return symbol.capitalize()


def rules(axioms: AxiomSet) -> Iterator[str]:
    """Both directions of every equation, as rewrite rules that reach saturation.

    Left out is x -> sum(1, x), which never ends; sum(n, x) is split into all its factors up to the largest product of
    extents that the tests use.
    """
    for axiom in equations(axioms):
        left, right = (_pattern(p) for p in (axiom.conclusion.left, axiom.conclusion.right))
        yield f"(rewrite {left} {right} :ruleset laws)"
        if axiom.name == "sum-sum":
            for n in range(2, MAX_SUMS + 1):
                for i in (i for i in range(2, n) if n % i == 0):
                    yield f"(rewrite (Sum {n} x) (Sum {i} (Sum {n // i} x)) :ruleset laws)"
        elif axiom.name != "sum-one" and not axiom.name.endswith("-comm"):
            yield f"(rewrite {right} {left} :ruleset laws)"


def show(e: Expr) -> str:
    match e:
        case Var() | Const():
            return f'(Leaf "{head(e)}")'
        case Add(a, b) | Mul(a, b) | Div(a, b):
            return f"({_constructor(head(e))} {show(a)} {show(b)})"
        case Sum(extent, a):
            return f"(Sum {extent} {show(a)})"
        case Unary(function, a):
            return f"({_constructor(function)} {show(a)})"


class EGraph:
    def __init__(self) -> None:
        axioms = load()
        self._graph = egglog.EGraph()
        functions = " ".join(f"({_constructor(f)} E)" for f in sorted(axioms.functions))
        self._run(f"(datatype E (Leaf String) (Add E E) (Mul E E) (Divide E E) (Sum i64 E) {functions})")
        self._run("(ruleset laws)")
        for rule in rules(axioms):
            self._run(rule)

    def _run(self, text: str) -> list[object]:
        return list(self._graph.run_program(*self._graph.parse_program(text)))

    def saturate(self, target: Expr) -> bool:
        """Start again with the target; whether nothing is left to do, by egglog's own account."""
        self._run(f"(push 1) {show(target)}")
        for _ in range(MAX_ROUNDS):
            (outcome,) = self._run("(run laws 1)")
            if not outcome.report.updated:  # type: ignore[attr-defined]
                return True
            if self._size() > MAX_NODES:
                break
        return False

    def _size(self) -> int:
        (sizes,) = self._run("(print-size)")
        return sum(size for _, size in sizes.sizes)  # type: ignore[attr-defined]

    def forget(self) -> None:
        self._run("(pop 1)")

    def holds(self, e: Expr) -> bool:
        try:
            self._run(f"(check {show(e)})")
        except egglog.EggSmolError as error:
            if "Check failed" not in str(error):
                raise
            return False
        return True


@pytest.mark.slow
def test_no_disagreement_with_saturated_egraphs() -> None:
    rng = random.Random(20251120)
    graph = EGraph()
    counts: Counter[str] = Counter()
    while counts["queries"] < 20_000:
        target = random_term(rng, 4)
        if extents_product(target) > MAX_SUMS or isinstance(target, Var | Const):
            continue
        oracle = NormalFormOracle([target], max_monomials=16)
        if oracle.contains(target) is Answer.UNKNOWN:
            counts["too wide"] += 1
            continue
        if not graph.saturate(target):
            counts["not saturated"] += 1
            graph.forget()
            continue
        counts["targets"] += 1
        for e in {without_ones(query(rng, target)): None for _ in range(40)}:
            answer = oracle.contains(e)
            held = graph.holds(e)
            assert answer is (Answer.PROVED if held else Answer.REFUTED), f"{e} in {target}: {answer}, e-graph {held}"
            counts["queries"] += 1
            counts["part"] += held
        graph.forget()
    print(dict(counts))
    # Both answers must be common, or the comparison says little.
    assert counts["part"] > 5_000
    assert counts["queries"] - counts["part"] > 5_000
    assert counts["not saturated"] < counts["targets"]

"""Each axiom is true of tensors, in float64 and in Z_p, and of degrees; each broken axiom is caught."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mirage_formal.logic.axioms import AxiomSet, load, parse
from mirage_formal.logic.script import Script
from mirage_formal.logic.session import AxiomSession, Satisfiability, discharge
from mirage_formal.logic.sexpr import read
from tests.kit.proofs.axiom_models import FIELD, FLOAT, Numbers, degrees_hold, equation_holds

AXIOMS = load()
EQUATIONS = [n for n, a in AXIOMS.axioms.items() if a.conclusion.relation == "="]
TRIALS = 60

#: For every axiom, wrong versions of its body: operators, operands, variables, extents and directions confused.
BROKEN = {
    "add-comm": ["(= (add x y) (add y y))", "(= (add x y) (mul y x))"],
    "mul-comm": ["(= (mul x y) (mul x x))", "(= (divide x y) (divide y x))"],
    "add-assoc": ["(= (add (add x y) z) (add x (add y y)))", "(= (add (add x y) z) (add x (mul y z)))"],
    "mul-assoc": ["(= (mul (mul x y) z) (mul x (add y z)))", "(= (mul (mul x y) z) (mul x y))"],
    "mul-over-add": ["(= (mul x (add y z)) (add (mul x y) z))", "(= (mul x (add y z)) (mul (add x y) (add x z)))"],
    "div-over-add": [
        "(= (divide x (add y z)) (add (divide x y) (divide x z)))",
        "(= (divide (add x y) z) (add (divide x z) y))",
    ],
    "mul-div": ["(= (mul x (divide y z)) (divide (mul x z) y))", "(= (mul x (divide y z)) (divide x (mul y z)))"],
    "div-div": [
        "(= (divide (divide x y) z) (divide x (divide y z)))",
        "(= (divide (divide x y) z) (divide (mul x y) z))",
    ],
    "sum-one": ["(= (sum 1 x) (add x x))", "(= (sum 1 x) (mul x x))"],
    "sum-sum": ["(= (sum i (sum j x)) (sum i x))", "(= (sum i (sum i x)) (sum (* i j) x))"],
    "sum-over-add": ["(= (sum i (add x y)) (add (sum i x) y))", "(= (sum i (add x y)) (mul (sum i x) (sum i y)))"],
    "sum-mul": ["(= (sum i (mul x y)) (mul (sum i x) (sum i y)))", "(= (sum i (mul x y)) (mul x y))"],
    "sum-div": [
        "(= (sum i (divide x y)) (divide x (sum i y)))",
        "(= (sum i (divide x y)) (divide (sum i x) (sum i y)))",
    ],
    "sub-refl": ["(subexpr x y)"],
    "sub-trans": ["(=> (and (subexpr x y) (subexpr y z)) (subexpr z x))", "(=> (subexpr x y) (subexpr x z))"],
    "sub-add": ["(subexpr (add x y) x)", "(subexpr z (add x y))"],
    "sub-mul": ["(subexpr (mul x y) x)", "(subexpr z (mul x y))"],
    "sub-div-numerator": ["(subexpr (divide x y) x)", "(subexpr z (divide x y))"],
    "sub-div-denominator": ["(subexpr (divide x y) y)", "(subexpr (mul x y) (divide x z))"],
    "sub-sum": ["(subexpr (sum i x) x)", "(subexpr (sum i x) (sum j x))"],
    **{f"sub-{f}": [f"(subexpr ({f} x) x)", f"(subexpr y ({f} x))"] for f in sorted(AXIOMS.functions)},
}


def with_body(name: str, body: str) -> AxiomSet:
    """The signature with one axiom of this name that says ``body``."""
    declarations = [line for line in AXIOMS.text.splitlines() if line.startswith("(declare-")]
    bound = "(i Int) (j Int) (x Expr) (y Expr) (z Expr)"
    # Every function needs its own axiom of containment to be read at all.
    others = [
        f"(assert (! (forall ((x Expr)) (! (subexpr x ({f} x)) :qid own-{f})) :named own-{f}))"
        for f in AXIOMS.functions
    ]
    stated = f"(assert (! (forall ({bound}) (! {body} :qid {name})) :named {name}))"
    return parse("\n".join([*declarations, *others, stated]))


def true_everywhere(axioms: AxiomSet, name: str) -> bool:
    axiom = axioms.axioms[name]
    degrees, numbers = random.Random(1), np.random.default_rng(1)
    if not all(degrees_hold(axiom, degrees) for _ in range(10 * TRIALS)):
        return False
    return axiom.conclusion.relation != "=" or all(
        equation_holds(axiom, field, numbers) for field in (FLOAT, FIELD) for _ in range(TRIALS)
    )


@pytest.mark.parametrize("numbers", [FLOAT, FIELD], ids=lambda n: n.name)
@pytest.mark.parametrize("name", EQUATIONS)
def test_equation_is_true_of_tensors(name: str, numbers: Numbers) -> None:
    rng = np.random.default_rng(7)
    assert all(equation_holds(AXIOMS.axioms[name], numbers, rng) for _ in range(TRIALS))


@pytest.mark.parametrize("name", AXIOMS.axioms)
def test_axiom_is_true_of_degrees(name: str) -> None:
    rng = random.Random(7)
    assert all(degrees_hold(AXIOMS.axioms[name], rng) for _ in range(10 * TRIALS))


def test_every_axiom_has_broken_versions() -> None:
    assert set(BROKEN) == set(AXIOMS.axioms)


@pytest.mark.parametrize(("name", "body"), [(n, b) for n, bodies in BROKEN.items() for b in bodies])
def test_broken_axiom_is_caught(name: str, body: str) -> None:
    assert not true_everywhere(with_body(name, body), name)


@pytest.mark.parametrize("name", EQUATIONS)
def test_broken_equation_is_caught_by_numbers_alone(name: str) -> None:
    for body in BROKEN[name]:
        axiom = with_body(name, body).axioms[name]
        for numbers in (FLOAT, FIELD):
            rng = np.random.default_rng(3)
            assert not all(equation_holds(axiom, numbers, rng) for _ in range(TRIALS)), (body, numbers.name)


def test_axioms_are_not_contradictory() -> None:
    assert AxiomSession().consistent(2_000) is not Satisfiability.UNSAT
    for result in discharge(AXIOMS.script, timeout_ms=2_000):
        assert result.answer is not Satisfiability.UNSAT, result


def test_a_contradiction_would_be_seen() -> None:
    wrong = "(declare-const a Expr)(assert (not (subexpr a (add a a))))(check-sat)"
    z3, cvc5 = discharge(Script([*read(AXIOMS.text), *read(wrong)]), timeout_ms=120_000)
    assert z3.answer is Satisfiability.UNSAT
    assert cvc5.answer is Satisfiability.UNSAT


def test_axioms_do_not_make_everything_part_of_everything() -> None:
    more = "(declare-const a Expr)(declare-const b Expr)(assert (not (subexpr a b)))(check-sat)"
    script = Script([*read(AXIOMS.text), *read(more)])
    assert all(r.answer is not Satisfiability.UNSAT for r in discharge(script, timeout_ms=2_000))

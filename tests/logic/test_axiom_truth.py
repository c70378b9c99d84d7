"""Each axiom is true of tensors, in float64 and in Z_p, and of degrees; each broken axiom is caught."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.logic.axioms import Atom, Axiom, AxiomSet, load_axioms, parse_axioms, pattern_extent
from mirage_formal.logic.script import Script
from mirage_formal.logic.session import Satisfiability, discharge
from mirage_formal.logic.sexpr import SExpr, parse_sexprs

Array = NDArray[Any]
PRIME = 2_147_483_647
POINTS = 8


@dataclass(frozen=True)
class Numbers:
    """A field: how to draw, add, multiply, divide and compare."""

    name: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]
    add: Callable[[Array, Array], Array]
    mul: Callable[[Array, Array], Array]
    div: Callable[[Array, Array], Array]
    total: Callable[[Array], Array]
    equal: Callable[[Array, Array], bool]


def _inverse(a: Array) -> Array:
    return np.array([pow(int(x), PRIME - 2, PRIME) for x in a.ravel()], dtype=object).reshape(a.shape)


FLOAT = Numbers(
    "float64",
    lambda rng, shape: rng.uniform(0.5, 2.0, shape),
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a: a.sum(axis=-1),
    lambda a, b: bool(np.allclose(a, b, rtol=1e-12, atol=0)),
)
FIELD = Numbers(
    "Z_p",
    lambda rng, shape: rng.integers(1, PRIME, shape).astype(object),
    lambda a, b: (a + b) % PRIME,
    lambda a, b: (a * b) % PRIME,
    lambda a, b: (a * _inverse(b)) % PRIME,
    lambda a: a.sum(axis=-1) % PRIME,
    lambda a, b: bool((a == b).all()),
)


def _indices(p: SExpr, extents: Mapping[str, int], around: int, out: dict[str, int]) -> None:
    """For each variable, the number of index values that it may depend on: those around all its occurrences."""
    if isinstance(p, str):
        out[p] = min(out.get(p, around), around)
    elif p[0] == "sum":
        _indices(p[2], extents, around * pattern_extent(p[1], extents), out)
    else:
        for part in p[1:]:
            _indices(part, extents, around, out)


def equation_holds(axiom: Axiom, numbers: Numbers, rng: np.random.Generator) -> bool:
    """Whether an equation holds for random tensors and extents, sum(i, x) being the sum of x over an index.

    A variable depends on the indices around all its occurrences and on no other: the side condition under which the
    paper's axioms speak about tensors (in sum-mul, y does not depend on the index).
    """
    extents = {name: int(rng.integers(2, 5)) for name, sort in axiom.variables if sort == "Int"}
    free: dict[str, int] = {}
    for side in (axiom.conclusion.left, axiom.conclusion.right):
        _indices(side, extents, 1, free)
    values = {name: numbers.draw(rng, (POINTS, free[name])) for name in sorted(free)}

    def value(p: SExpr, around: int) -> Array:
        if isinstance(p, str):
            here = values[p]
            if here.shape[1] not in (1, around):
                raise ValueError(f"{p} depends on {here.shape[1]} index values, but {around} are around it")
            return np.broadcast_to(here, (POINTS, around))
        if p[0] == "sum":
            extent = pattern_extent(p[1], extents)
            return numbers.total(value(p[2], around * extent).reshape(POINTS, around, extent))
        operator = {"add": numbers.add, "mul": numbers.mul, "divide": numbers.div}[str(p[0])]
        return operator(value(p[1], around), value(p[2], around))

    try:
        return numbers.equal(value(axiom.conclusion.left, 1), value(axiom.conclusion.right, 1))
    except ValueError:
        return False


def _omega(n: int) -> int:
    """Prime factors of n, with multiplicity."""
    return next((1 + _omega(n // d) for d in range(2, n + 1) if n % d == 0), 0)


def _degree(p: SExpr, binding: Mapping[str, int]) -> int:
    """Degree of a term: factors add up, terms take the larger, a sum adds its extent's prime factors."""
    if isinstance(p, str):
        return binding[p]
    match p[0]:
        case "add":
            return max(_degree(p[1], binding), _degree(p[2], binding))
        case "mul" | "divide":
            return _degree(p[1], binding) + _degree(p[2], binding)
        case "sum":
            return _degree(p[2], binding) + _omega(pattern_extent(p[1], binding))
    return _degree(p[1], binding) + 1


def degrees_hold(axiom: Axiom, rng: random.Random) -> bool:
    """Whether an axiom holds for random degrees, containment being <=."""
    binding = {n: rng.randrange(1, 13 if sort == "Int" else 9) for n, sort in axiom.variables}

    def holds(atom: Atom) -> bool:
        left, right = _degree(atom.left, binding), _degree(atom.right, binding)
        return left == right if atom.relation == "=" else left <= right

    return not all(holds(p) for p in axiom.premises) or holds(axiom.conclusion)


AXIOMS = load_axioms()
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
    return parse_axioms("\n".join([*declarations, *others, stated]))


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
    for result in discharge(AXIOMS.script, timeout_ms=2_000):
        assert result.answer is not Satisfiability.UNSAT, result


def test_a_contradiction_would_be_seen() -> None:
    wrong = "(declare-const a Expr)(assert (not (subexpr a (add a a))))(check-sat)"
    z3, cvc5 = discharge(Script([*parse_sexprs(AXIOMS.text), *parse_sexprs(wrong)]), timeout_ms=120_000)
    assert z3.answer is Satisfiability.UNSAT
    assert cvc5.answer is Satisfiability.UNSAT


def test_axioms_do_not_make_everything_part_of_everything() -> None:
    more = "(declare-const a Expr)(declare-const b Expr)(assert (not (subexpr a b)))(check-sat)"
    script = Script([*parse_sexprs(AXIOMS.text), *parse_sexprs(more)])
    assert all(r.answer is not Satisfiability.UNSAT for r in discharge(script, timeout_ms=2_000))

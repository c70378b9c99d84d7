"""Concrete meanings of the axioms: tensors summed over indices (float64 and Z_p), and degrees for containment."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.logic.axioms import Atom, Axiom, extent_of
from mirage_formal.logic.sexpr import SExpr

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
        _indices(p[2], extents, around * extent_of(p[1], extents), out)
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
            extent = extent_of(p[1], extents)
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
            return _degree(p[2], binding) + _omega(extent_of(p[1], binding))
    return _degree(p[1], binding) + 1


def degrees_hold(axiom: Axiom, rng: random.Random) -> bool:
    """Whether an axiom holds for random degrees, containment being <=."""
    binding = {n: rng.randrange(1, 13 if sort == "Int" else 9) for n, sort in axiom.variables}

    def holds(atom: Atom) -> bool:
        left, right = _degree(atom.left, binding), _degree(atom.right, binding)
        return left == right if atom.relation == "=" else left <= right

    return not all(holds(p) for p in axiom.premises) or holds(axiom.conclusion)

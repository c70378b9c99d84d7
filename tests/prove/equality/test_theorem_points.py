"""float64 against theorems: points at which a listed condition does not hold say nothing, all others do."""

from __future__ import annotations

import numpy as np

from mirage_formal import Graph, Tensor
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from tests.kit.graphs.mutants import Decision, differs
from tests.kit.proofs.claims import Pair, kernel, on, pair
from tests.kit.proofs.theorem_points import differs_under, where_conditions_hold

GIVEN = {"X": (4, 6)}


def _program(g: Graph, x: Tensor) -> Tensor:
    size = g.abs(x)
    return g.select(g.gt(size, 0), g.log(size), x)


#: |x| is x where log(x) has a value, which the selection discards in the other case.
RIGHT = pair(GIVEN, _program, lambda g, x: g.select(g.gt(x, 0), g.log(x), x))
WRONG = pair(GIVEN, _program, lambda g, x: g.select(g.gt(x, 1), g.log(x), x))
CONDITIONS = (
    "program, kernel operator 2: argument of log nonzero",
    "program, kernel operator 2: argument of log nonnegative",
    "candidate, kernel operator 1: argument of log nonzero",
    "candidate, kernel operator 1: argument of log nonnegative",
)


def _conditions(both: Pair) -> tuple[str, ...]:
    verdict = prove(*both)
    assert isinstance(verdict, Equivalent)
    return replay_composed(*both, verdict.proof).conditions


def test_a_right_pair_is_the_same_where_its_conditions_hold_and_differs_elsewhere() -> None:
    assert differs(*RIGHT) is Decision.DIFFERENT
    assert _conditions(RIGHT) == CONDITIONS
    assert differs_under(*RIGHT, CONDITIONS) is Decision.SAME


def test_a_wrong_pair_differs_where_the_same_conditions_hold() -> None:
    assert differs_under(*WRONG, CONDITIONS) is Decision.DIFFERENT


def test_a_condition_that_a_theorem_does_not_list_excuses_nothing() -> None:
    assert differs_under(*RIGHT, CONDITIONS[:2]) is Decision.DIFFERENT
    assert differs_under(*RIGHT, ()) is Decision.DIFFERENT


def test_no_point_meets_what_cannot_hold() -> None:
    both = pair(GIVEN, lambda g, x: x / (x - x), lambda g, x: g.exp(x))
    assert differs_under(*both, ["program, kernel operator 1: divisor nonzero"]) is Decision.UNCLEAR


def test_conditions_are_those_of_the_operators_that_they_name() -> None:
    """A divisor that is 0 but for rounding counts as 0, and operators of a block count as those of their kernel."""
    left, right = pair(
        {"X": (4, 6), "Y": (4, 6)},
        lambda g, x, y: g.sqrt(x) / (y - 1),
        lambda g, x, y: kernel(
            g,
            (2, 1, 1),
            [(x, on(x=0)), (y, on(x=0))],
            lambda b, u, v: (b.forloop_accum(b.sqrt(u) / (v - 1)), on(x=0)),
        ),
    )
    conditions = _conditions((left, right))
    assert [text for text in conditions if "block operator" in text]
    x = np.stack([np.full((4, 6), value) for value in (2.0, 0.0, -1.0, 2.0, 2.0)])
    y = np.stack([np.full((4, 6), value) for value in (2.0, 2.0, 2.0, 1.0 + 1e-12, -1.0)])
    x[2, :, 1:] = 1.0
    for some in (conditions, conditions[:2], conditions[2:]):
        assert where_conditions_hold(left, right, some, (x, y)).tolist() == [True, True, False, False, True]

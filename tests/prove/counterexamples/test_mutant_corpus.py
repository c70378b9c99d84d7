"""Mutants of found candidates: enough of them, and counterexamples for the wrong ones only."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.counterexamples.refute import CLEAR, find_counterexample, input_arrays
from mirage_formal.semantics.float64_reference import run
from tests.kit.graphs.mutants import SEARCHED, WRITTEN, Decision, Mutant, candidates, differs, mutants
from tests.kit.proofs.claims import pair
from tests.kit.sampling import THOROUGH, number

COUNT = number(250, 700)


@cache
def _decided() -> tuple[tuple[Mutant, Decision], ...]:
    return tuple((item, differs(item.program, item.graph)) for item in mutants(1, COUNT, every=THOROUGH))


@pytest.mark.slow
def test_candidates_of_every_example_are_right() -> None:
    seen: Counter[Any] = Counter()
    for name, program, graph in candidates(every=THOROUGH):
        assert differs(program, graph) is Decision.SAME, name
        seen[name] += 1
    assert set(seen) == {*SEARCHED, *WRITTEN}
    assert all(seen[name] >= 5 for name in SEARCHED), seen


@pytest.mark.slow
def test_mutants_are_well_formed_distinct_and_of_the_programs_interface() -> None:
    items = [item for item, _ in _decided()]
    assert len({(item.program, item.graph) for item in items}) == COUNT
    for item in items:
        assert faults(item.graph) == []
        assert item.graph.inputs == item.program.inputs
        shapes = [[kernel_types(g)[n].shape for n in g.outputs] for g in (item.program, item.graph)]
        assert shapes[0] == shapes[1]


def test_float64_decides_nearly_all() -> None:
    found = Counter(decision for _, decision in _decided())
    assert found[Decision.UNCLEAR] <= 0.02 * COUNT
    assert found[Decision.DIFFERENT] >= 0.5 * COUNT
    assert found[Decision.SAME] >= 0.1 * COUNT


def test_the_seed_decides() -> None:
    assert list(mutants(3, 40, every=THOROUGH)) == list(mutants(3, 40, every=THOROUGH))
    assert list(mutants(3, 40, every=THOROUGH)) != list(mutants(4, 40, every=THOROUGH))


@pytest.mark.slow
def test_wrong_mutants_have_confirmed_counterexamples_and_right_ones_none() -> None:
    changed = []
    for item, decision in _decided():
        found = find_counterexample(
            item.program, item.graph, seed=0, attempts=3 if decision is Decision.DIFFERENT else 1
        )
        if decision is Decision.SAME:
            assert found is None, item.name
        if decision is Decision.DIFFERENT:
            assert found is not None, item.name
        if found is not None:
            inputs = input_arrays(item.program, found)
            a, b = run(item.program, inputs)[found.output], run(item.graph, inputs)[found.output]
            assert (a[found.index], b[found.index]) == (found.expected, found.got)
            assert abs(found.expected - found.got) > CLEAR * max(np.abs(a).max(), np.abs(b).max())
            changed.append(len(found.entries))
    assert sorted(changed)[len(changed) // 2] <= 5


@pytest.mark.parametrize("factor", [1.5, 2.0, 2.5, 3.0])
def test_rounding_is_no_difference_where_a_variance_cancels(factor: float) -> None:
    """Error functions near 1 differ by little, so that float64 loses their variance; a wrong one is told apart."""

    def values(g: Graph, x: Tensor) -> Tensor:
        return g.erf(g.scale(x, factor) + 3)

    def moments(g: Graph, y: Tensor, by: float) -> Tensor:
        middle = g.mean(y, 1)
        return (y - middle) / g.sqrt(g.scale(g.mean(g.square(y), 1), by) - g.square(middle))

    shapes = {"X": (2, 2)}
    right, wrong = (
        pair(shapes, lambda g, x: g.layer_norm(values(g, x), dim=1), lambda g, x, by=by: moments(g, values(g, x), by))
        for by in (1.0, 1.001)
    )
    assert differs(*right) is not Decision.DIFFERENT
    assert differs(*wrong) is Decision.DIFFERENT

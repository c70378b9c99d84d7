"""Searches that are cut: what they count, and that limits which are not reached change nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from mirage_formal.logic.session import SubexpressionAnswer
from mirage_formal.logic.terms import add, mul, sum_, unary, var
from mirage_formal.prove.abstract.normal_form import NormalForms
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.reproduce.inputs import rmsnorm
from mirage_formal.search.engine_interface import LimitReached, SearchCounters, SearchOptions, Stats, UnitResult
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.exhaustive import block_enumeration as block_module
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.space import SearchSpace, load_space

PROGRAM = rmsnorm(2, 4, 6)
SPACE = load_space("tiny").with_overrides(max_block_ops=4)


def results(options: SearchOptions) -> Iterator[UnitResult]:
    engine = ExhaustiveEngine()
    for unit in engine.units(PROGRAM, SPACE, options):
        yield engine.run(PROGRAM, SPACE, options, unit)


def total(options: SearchOptions) -> Stats:
    return sum((result.stats for result in results(options)), Stats())


def test_limits_that_are_not_reached_change_nothing() -> None:
    free = list(results(SearchOptions("exhaustive")))
    loose = SearchOptions("exhaustive", max_states=10**9, deadline=time.monotonic() + 3600)
    assert list(results(loose)) == free
    assert all(result.stats.cut == 0 for result in free)


@pytest.mark.parametrize("prune", [True, False])
def test_a_unit_ends_at_its_number_of_states(prune: bool) -> None:
    for result in results(SearchOptions("exhaustive", prune=prune, max_states=30)):
        assert result.stats.cut == 1
        assert result.stats.states == 30
    assert list(results(SearchOptions("exhaustive", max_states=30))) == list(
        results(SearchOptions("exhaustive", max_states=30))
    )


def test_guided_search_ends_at_the_states_of_its_space_with_what_it_has_found() -> None:
    def found(space: SearchSpace) -> tuple[UnitResult, ...]:
        engine, options = GuidedEngine(), SearchOptions()
        return tuple(engine.run(PROGRAM, space, options, unit) for unit in engine.units(PROGRAM, space, options))

    free = found(SPACE)
    assert found(SPACE.with_overrides(max_states=10**9)) == free
    assert all(result.stats.cut == 0 for result in free)
    (whole,) = free
    assert whole.candidates
    sizes = set()
    for most in (1, whole.stats.states // 2, whole.stats.states - 1):
        (part,) = found(SPACE.with_overrides(max_states=most))
        assert part.stats.cut == 1
        assert part.stats.states >= most
        assert found(SPACE.with_overrides(max_states=most)) == (part,)
        assert {one.graph for one in part.candidates} <= {one.graph for one in whole.candidates}
        sizes.add(len(part.candidates))
    assert min(sizes) < len(whole.candidates)


def test_a_unit_ends_at_its_deadline() -> None:
    counts = total(SearchOptions("exhaustive", deadline=time.monotonic() - 1))
    assert counts.cut > 0
    assert counts.states == 0
    tally = SearchCounters(deadline=time.monotonic() - 1)
    with pytest.raises(LimitReached):
        tally.step("states")
    assert tally.stats() == Stats()


def test_openings_with_many_block_graphs_are_enumerated_again_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = list(results(SearchOptions("exhaustive")))
    monkeypatch.setattr(block_module, "_MAX_REMEMBERED", 2)
    again = list(results(SearchOptions("exhaustive")))
    assert [r.candidates for r in again] == [r.candidates for r in remembered]
    assert sum(r.stats.states for r in again) > sum(r.stats.states for r in remembered)


def test_queries_and_classes() -> None:
    for result in results(SearchOptions("exhaustive")):
        assert len(set(result.queries)) == len(result.queries) == result.stats.oracle_calls - result.stats.cache_hits
        assert 0 < len(result.classes) <= len(result.queries)
    for result in results(SearchOptions("exhaustive", prune=False, max_states=100)):
        assert result.queries == ()
        assert result.classes == frozenset()


def test_keys_of_normal_forms_are_the_same_in_all_tables() -> None:
    a, b, c = var("a"), var("b"), var("c")
    equal = [sum_(4, mul(a, add(b, c))), add(sum_(2, mul(sum_(2, c), a)), mul(b, sum_(4, a)))]
    other = [sum_(4, mul(a, add(b, b))), sum_(2, mul(a, add(b, c))), unary("exp", sum_(4, mul(a, add(b, c))))]
    forms = [NormalForms() for _ in range(3)]
    for e in other:  # other numbers in the first table
        forms[0].of(e)
    keys = [f.key(f.of(e)) for f in forms for e in equal]
    assert len(set(keys)) == 1
    assert len({f.key(f.of(e)) for f in forms for e in other} | set(keys)) == 4
    oracle = NormalFormOracle([equal[0]])
    assert oracle.key(equal[1]) == keys[0]
    assert oracle.key(other[0]) is None
    assert oracle.calls == 0
    assert oracle.contains(equal[1]) is SubexpressionAnswer.PROVED

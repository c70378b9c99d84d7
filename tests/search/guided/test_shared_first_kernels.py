"""Shares of one search solve their first kernels once in a process, and find and count what each would by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.prove.abstract.pruning_audit import DecisionSample
from mirage_formal.search.engine_interface import SearchOptions, Unit, UnitResult
from mirage_formal.search.guided import guided_engine
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.guided.saturation import Saturator
from mirage_formal.search.space import SearchSpace, load_space
from tests.search.guided.test_guided import rms_linear, two_kernels

ENGINE = GuidedEngine()
SPACE = load_space("attention").with_overrides(max_block_ops=4)
PROGRAMS = [two_kernels()[0], rms_linear(16, 64, 32)]


def results(
    program: KernelGraph, space: SearchSpace, units: Sequence[Unit], options: SearchOptions
) -> list[tuple[UnitResult, int]]:
    """The result of each unit, and the number of decisions that it offers to a sample."""
    found = []
    for unit in units:
        sample = DecisionSample(1000, unit.label)
        result = ENGINE.run(program, space, msgspec.structs.replace(options, sample=sample), unit)
        found.append((result, len(sample.decisions())))
    return found


def alone(program: KernelGraph, space: SearchSpace, units: Sequence[Unit]) -> list[tuple[UnitResult, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guided_engine, "_first_kernels", lambda *_: None)
        return results(program, space, units, SearchOptions())


@pytest.mark.parametrize("program", PROGRAMS)
def test_shares_find_and_count_what_they_do_alone(program: KernelGraph) -> None:
    units = ENGINE.units(program, SPACE, SearchOptions())
    assert len(units) == 5
    wanted = alone(program, SPACE, units)
    for order in (units, units[::-1]):
        guided_engine._first_kernels.cache_clear()
        found = results(program, SPACE, order, SearchOptions())
        assert found == [wanted[unit.index] for unit in order]


def test_later_shares_close_fewer_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    program, closed = PROGRAMS[0], 0
    close = Saturator.close

    def counted(self: Saturator, *args: Any) -> Any:
        nonlocal closed
        closed += 1
        return close(self, *args)

    monkeypatch.setattr(Saturator, "close", counted)
    counts = []
    _, *shares = ENGINE.units(program, SPACE, SearchOptions())
    guided_engine._first_kernels.cache_clear()
    for unit in shares:
        closed = 0
        ENGINE.run(program, SPACE, SearchOptions(), unit)
        counts.append(closed)
    assert max(counts[1:]) < counts[0]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8, 0.99])
def test_a_unit_that_ends_at_its_limit_is_the_same(share: float) -> None:
    program = PROGRAMS[0]
    unit = ENGINE.units(program, SPACE, SearchOptions())[1]
    ((whole, _),) = alone(program, SPACE, [unit])
    space = SPACE.with_overrides(max_states=int(share * whole.stats.states))
    guided_engine._first_kernels.cache_clear()
    wanted, found = alone(program, space, [unit]), results(program, space, [unit], SearchOptions())
    assert found == wanted
    assert found[0][0].stats.cut == 1


def test_nothing_is_shared_where_decisions_rest_on_more_than_forms() -> None:
    assert guided_engine._first_kernels(PROGRAMS[1], SPACE, SearchOptions()) is not None
    assert guided_engine._first_kernels(PROGRAMS[1], SPACE, SearchOptions(prune=False)) is None

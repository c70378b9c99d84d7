"""Closures of one search share what operators make of the classes that they have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.prove.abstract.pruning_audit import DecisionSample, PruningDecision
from mirage_formal.search.engine_interface import SearchOptions, UnitResult
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.guided.saturation import Saturator
from mirage_formal.search.space import load_space
from tests.kit.graphs import workloads
from tests.search.guided.test_guided import rms_linear, two_kernels

PROGRAMS = {
    "two kernels": two_kernels()[0],
    "norm": rms_linear(16, 64, 32),
    "gated": workloads.gated_mlp(8, 64, 64),
}
SPACE = load_space("attention").with_overrides(max_block_ops=5)


def searched(program: KernelGraph) -> list[tuple[UnitResult, list[PruningDecision]]]:
    """The result of each unit, and the decisions that its audit asks about."""
    engine, found = GuidedEngine(), []
    for unit in engine.units(program, SPACE, SearchOptions()):
        sample = DecisionSample(1000, unit.label)
        result = engine.run(program, SPACE, SearchOptions(sample=sample), unit)
        found.append((result, sample.decisions()))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_search_finds_what_it_would_if_no_closure_shared_anything(name: str) -> None:
    """Results, counters and sampled decisions are the same, and fewer classes are extended by operators."""
    extended = 0
    close, unary = Saturator.close, Saturator._unary

    def counted(self: Saturator, *args: Any) -> Iterator[Any]:
        nonlocal extended
        extended += 1
        return unary(self, *args)

    def alone(self: Saturator, *args: Any) -> Any:
        self._own.clear()
        self._pairs_of.clear()
        return close(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saturator, "_unary", counted)
        found, shared = searched(PROGRAMS[name]), extended
        patch.setattr(Saturator, "close", alone)
        extended = 0
        assert searched(PROGRAMS[name]) == found
    assert shared < 0.9 * extended

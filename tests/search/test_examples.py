"""An introduction to ``mirage_formal/search``: an engine splits a search into units and returns candidates."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions, UnitResult
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.space import load_space


def program() -> KernelGraph:
    """exp(X W), which two predefined kernels compute."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 8), dtype=mf.float16)
    w = graph.new_input(dims=(8, 8), dtype=mf.float16)
    graph.mark_output(graph.exp(graph.matmul(x, w)))
    return graph.freeze()


@pytest.fixture(scope="module")
def results() -> list[UnitResult]:
    engine, space, options = GuidedEngine(), load_space("tiny"), SearchOptions()
    return [engine.run(program(), space, options, unit) for unit in engine.units(program(), space, options)]


def test_candidates_are_well_formed(results: list[UnitResult]) -> None:
    graphs = [candidate.graph for result in results for candidate in result.candidates]
    assert graphs
    assert [graph for graph in graphs if faults(graph)] == []


def test_the_search_fuses_both_operators_into_one_kernel(results: list[UnitResult]) -> None:
    fused = [c.graph for r in results for c in r.candidates if len(c.graph.ops) == 1]
    assert fused
    assert all(isinstance(graph.ops[0], GraphDefined) for graph in fused)
    assert isinstance(prove(program(), fused[0]), Equivalent)


def test_what_is_pruned_is_counted(results: list[UnitResult]) -> None:
    assert sum(result.stats.states for result in results) > 0
    assert all(count > 0 for result in results for count in result.stats.pruned.values())

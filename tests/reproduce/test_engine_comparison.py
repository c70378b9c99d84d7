"""Guided against exhaustive at RMSNorm's real shapes, in the rows of 5 and 6 operators as the paper counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_fields

from mirage_formal.graph.formats.json import decode_graph
from mirage_formal.graph.graph import GraphDefined, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verifier import faults
from mirage_formal.records.reproduction import Row
from mirage_formal.reproduce.engine_comparison import compare_engines, incompleteness_reason, scale_down
from mirage_formal.reproduce.inputs import WORKLOADS
from mirage_formal.reproduce.search_variants import ARMS, RowLimits, run_row
from mirage_formal.search.known_incompleteness import IncompletenessReason
from mirage_formal.search.space import load_space
from tests.kit.sampling import number

KEY = "0" * 64
PROGRAM = WORKLOADS["rmsnorm"](1)


def row(arm: str, block_ops: int) -> Row:
    space = load_space("paper").with_overrides(max_block_ops=block_ops)
    return run_row(KEY, ARMS[arm], PROGRAM, space, RowLimits(600.0, 1 << 40))


@pytest.mark.slow
@pytest.mark.parametrize(("block_ops", "least"), [(3, 20), (4, 45)][: number(1, 2)])
def test_every_difference_has_a_name(block_ops: int, least: int) -> None:
    guided, exhaustive = row("guided", block_ops), row("exhaustive-1", block_ops)
    assert guided.complete
    assert exhaustive.complete
    found = compare_engines(KEY, PROGRAM, guided, exhaustive)
    assert found.paper_ops == block_ops + 2
    assert found.both >= least
    assert found.guided_only == 0
    assert found.unexplained == 0
    # Both also compute from a copy of X that their one kernel writes beside the norm.
    assert found.exhaustive_only == {IncompletenessReason.RECOMPUTES.value: 2}
    # Nothing that guided finds would be excused, so the predicate is no blanket excuse.
    assert all(incompleteness_reason(PROGRAM, decode_graph(graph)) is None for graph in guided.graphs)
    assert guided.fingerprint_tests
    assert exhaustive.fingerprint_tests == exhaustive.complete_graphs
    # A row with fewer candidates is caught, in both directions.
    fewer = compare_engines(KEY, PROGRAM, replace_graphs(guided, guided.graphs[1:]), exhaustive)
    assert fewer.unexplained == 1
    assert compare_engines(KEY, PROGRAM, guided, replace_graphs(exhaustive, ())).guided_only == len(guided.graphs)


def replace_graphs(one: Row, graphs: tuple[bytes, ...]) -> Row:
    return with_fields(one, graphs=graphs)


def test_scaled_candidates_keep_operators_and_unit_dims() -> None:
    for data in row("guided", 3).graphs:
        graph = decode_graph(data)
        pair = scale_down(PROGRAM, graph)
        assert pair is not None
        program, small = pair
        assert not faults(small)
        assert program.inputs == small.inputs
        assert max(n for source in small.inputs for n in source.tensor.shape) <= 24
        for a, b in zip(graph.ops, small.ops, strict=True):
            if isinstance(a, GraphDefined) and isinstance(b, GraphDefined):
                assert a.graph.ops == b.graph.ops
                assert a.graph.inputs == b.graph.inputs
                assert (a.graph.forloop_range > 1) == (b.graph.forloop_range > 1)
            else:
                assert a == b


def test_a_candidate_that_is_not_equal_has_no_excuse() -> None:
    wrong = replace(PROGRAM, ops=(Op(OpKind.MATMUL, (0, 1)),), outputs=(2,))
    assert incompleteness_reason(PROGRAM, wrong) is None

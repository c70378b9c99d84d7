"""What is split before it is dropped: a long row, whose only block would be slower than the operators one by one."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.check.equivalence import replay_with_obligations
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.formats.json import decode_graph
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.prove.equality.prove import prove
from mirage_formal.run import split_k_candidates as dealt_module
from mirage_formal.run.ranking import graph_pattern
from mirage_formal.run.settings import Settings, make_job, preprocess_job
from mirage_formal.run.split_k_candidates import split_loops_of_candidates
from mirage_formal.run.task_values import UnitTask
from mirage_formal.run.tasks import plan, search_unit
from tests.kit.proofs.claims import Saved, kernel, on, program

H200 = load_target("h200")
LENGTH = 1 << 18


def length_of(length: int = LENGTH) -> KernelGraph:
    return program({"X": (1, length)}, lambda g, x: g.sqrt(g.reduction(g.square(x), 1)))


def in_one_block(loop: int, length: int = LENGTH, *, product: bool = False) -> KernelGraph:
    """The root of a sum of squares by one block; or of products of each element with itself: another pattern."""

    def body(g: mf.Graph, x: mf.Tensor) -> mf.Tensor:
        def inner(t: mf.BlockBuilder, x: mf.BlockTensor) -> Saved:
            return t.sqrt(t.forloop_accum(t.mul(x, x) if product else t.square(x), "sum")), on()

        return kernel(g, (1,), [(x, on(), 1)], inner, loop)

    return program({"X": (1, length)}, body)


def test_a_long_row_is_dealt_to_blocks_whose_parts_are_float32() -> None:
    wanted = length_of()
    most = estimate(wanted, H200).us
    found = [in_one_block(32), in_one_block(64)]
    assert min(estimate(graph, H200).us for graph in found) > 2 * most
    best, *_ = split_loops_of_candidates(found, H200, most)
    assert estimate(best, H200).us < most
    first, second = best.ops
    assert isinstance(first, GraphDefined)
    assert isinstance(second, GraphDefined)
    assert first.graph.blocks == 64
    assert kernel_types(best)[1].dtype is DType.FLOAT32
    verdict = prove(wanted, best)
    assert isinstance(verdict, Equivalent)
    assert replay_with_obligations(wanted, best, verdict.proof).theorem.closings


def test_nothing_is_split_of_a_pattern_of_which_a_candidate_is_worth_reporting() -> None:
    graph, slower = in_one_block(64), in_one_block(512)
    own = estimate(graph, H200).us
    assert own < estimate(slower, H200).us
    assert split_loops_of_candidates([graph], H200, own) == []
    assert split_loops_of_candidates([slower, graph], H200, own) == []
    other = in_one_block(512, product=True)
    assert graph_pattern(other) != graph_pattern(graph)
    (split,) = split_loops_of_candidates([slower, graph, other], H200, own)
    assert (len(split.ops), estimate(split, H200).us < own) == (2, True)
    assert isinstance(prove(length_of(), split), Equivalent)
    assert split_loops_of_candidates([], H200, 1.0) == []
    assert split_loops_of_candidates([graph], H200, 0.5) == []  # launches alone take longer


def test_nothing_is_split_that_stays_above_what_is_found() -> None:
    """Such a candidate would be reported as the best of its number of kernels."""
    most = estimate(length_of(), H200).us
    best, *_ = split_loops_of_candidates([in_one_block(64)], H200, most)
    other = in_one_block(64, product=True)
    assert split_loops_of_candidates([other], H200, most)
    assert split_loops_of_candidates([best, other], H200, most) == []


def test_a_search_has_them_among_its_candidates() -> None:
    wanted = length_of()
    job = preprocess_job(make_job(wanted, Settings(max_kernel_ops=1)))
    most = estimate(wanted, H200).us
    records = [one for unit in plan(job) for one in search_unit(UnitTask(job, "", unit, 0)).candidates]
    below = [one for one in records if one.estimated_us < most]
    assert below
    assert all(one.kernels == 2 for one in below)
    assert isinstance(prove(wanted, decode_graph(min(below, key=lambda one: one.estimated_us).graph)), Equivalent)


def test_a_search_has_them_of_several_patterns() -> None:
    """An adapter beside a product of many rows: which of the ways to add them is fastest is for a GPU to say."""

    def adapted(g: mf.Graph, x: mf.Tensor, w: mf.Tensor, a: mf.Tensor, b: mf.Tensor) -> mf.Tensor:
        return (x @ w) + (x @ a) @ b

    wanted = program({"X": (128, 4096), "W": (4096, 4096), "A": (4096, 16), "B": (16, 4096)}, adapted)
    job = preprocess_job(make_job(wanted, Settings()))
    most = estimate(wanted, H200).us
    found = [one for unit in plan(job) for one in search_unit(UnitTask(job, "", unit, 0)).candidates]
    split = [decode_graph(one.graph) for one in found if one.estimated_us < most]
    patterns = {graph_pattern(graph) for graph in split}
    assert len(patterns) > 2
    assert {len(graph.ops) for graph in split} == {1, 2}, "though one is worth reporting as it stands"
    for graph in split:
        assert isinstance(prove(wanted, graph), Equivalent)


def test_a_search_splits_nothing_where_its_best_is_clearly_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits take time, and most units have candidates that are dropped."""

    def never(*given: object) -> list[KernelGraph]:
        raise AssertionError(given)

    monkeypatch.setattr(dealt_module, "split_loops_of_candidates", never)
    wanted = program({"X": (1024, 4096)}, lambda g, x: g.sqrt(g.reduction(g.square(g.exp(x)), 1)))
    job = preprocess_job(make_job(wanted, Settings(max_kernel_ops=1)))
    most = estimate(wanted, H200).us
    costs = [one.estimated_us for unit in plan(job) for one in search_unit(UnitTask(job, "", unit, 0)).candidates]
    assert min(costs) < 0.6 * most < most < max(costs)

"""The oracles asked about one search's questions: counts that add up, and a truncated e-graph caught at pruning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.logic.session import SubexpressionAnswer
from mirage_formal.logic.terms import Expr, mul, sum_, var
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.reproduce import oracle_comparison as module
from mirage_formal.reproduce.egraph import EGraph, StopReason, extents_of
from mirage_formal.reproduce.inputs import ntrans, rmsnorm
from mirage_formal.reproduce.oracle_comparison import NORMAL_FORM, QueryProgram, SearchTask, oracle, queries_of_search
from mirage_formal.search.space import load_space

SPACE = load_space("tiny").with_overrides(max_block_ops=3, griddims=[(2, 1, 1)], fmaps=[-1, 1])
ASKER = QueryProgram("rmsnorm in small", rmsnorm(2, 4, 6), (SPACE,), "tiny")


def quiet(name: str, done: int, total: int) -> None:
    assert 0 <= done <= total


@pytest.mark.slow
def test_the_table_of_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "query_programs", lambda: (ASKER,))
    monkeypatch.setattr(module, "_Z3", {"quantified z3, 10 ms": 10})
    monkeypatch.setattr(module, "ARMS", (NORMAL_FORM, module._EGRAPH, "quantified z3, 10 ms"))
    monkeypatch.setattr(module, "SHIPPED_NODES", 20)  # too few to hold all that is equal to the target
    monkeypatch.setattr(module, "_HUNG_S", 20.0)  # z3 hangs once in a while
    result = oracle(tmp_path, 10, 0, quiet)
    (source,) = result.sources
    assert source.saturated
    assert source.sampled == 10
    by = {row.arm: row for row in result.rows}
    assert list(by) == [NORMAL_FORM, module._EGRAPH, "quantified z3, 10 ms"]
    for row in result.rows:
        assert row.proved + row.refuted + row.unknown == (source.sampled if "z3" in row.arm else source.queries)
        assert row.wrongly_kept == 0
        assert row.us_per_query > 0
    exact = by[NORMAL_FORM]
    assert exact.wrongly_pruned == 0
    assert exact.proved == exact.valid > 20
    assert exact.refuted > 20
    assert by[module._EGRAPH].wrongly_pruned > 0, "what a truncated e-graph lacks may be valid"
    assert "| rmsnorm in small | normal form |" in (tmp_path / "oracle.md").read_text()
    monkeypatch.setattr(module, "_OracleComparison", None)
    assert oracle(tmp_path, 10, 0, quiet).rows == result.rows


class Hanging(module._Workers):
    """Workers in this process: one question hangs, whatever it is asked with; the others are refuted in half a second.

    Attributes:
        hangs: It, the first of the first chunk.
    """

    def __init__(self) -> None:
        self.hangs: Expr | None = None

    def run(self, what: str, function: Callable[[Any], Any], tasks: Sequence[Any], limit_s: float) -> dict[int, Any]:
        if not isinstance(tasks[0], module.Z3Task):
            return {i: function(task) for i, task in enumerate(tasks)}
        self.hangs = self.hangs or tasks[0].queries[0]
        refuted = (SubexpressionAnswer.REFUTED, 0.5)
        return {i: (refuted,) * len(task.queries) for i, task in enumerate(tasks) if self.hangs not in task.queries}


def test_a_question_that_hangs_takes_no_answer_with_it_and_counts_with_its_time() -> None:
    workers = Hanging()
    asking = module._OracleComparison(ASKER, "0" * 64, 14, 0, workers)
    answers, seconds = asking._ask_z3(10)
    assert len(answers) == 14
    assert [(e, answer) for e, answer in answers.items() if answer is not SubexpressionAnswer.REFUTED] == [
        (workers.hangs, SubexpressionAnswer.UNKNOWN)
    ]
    assert seconds == 13 * 0.5 + module._HUNG_ALONE_S


def test_questions_are_distinct_and_answered_alike_by_saturated_egraph() -> None:
    queries = queries_of_search(SearchTask(ASKER.program, SPACE))
    assert len(set(queries)) == len(queries) > 50
    (target,) = expressions(ASKER.program).outputs
    graph = EGraph(extents_of(target))
    assert graph.grow(target, 100_000, 60.0).ending is StopReason.SATURATED
    exact = NormalFormOracle([target])
    assert all(graph.holds(e) == (exact.contains(e) is SubexpressionAnswer.PROVED) for e in queries)


def test_an_egraph_ends_at_its_limit() -> None:
    (target,) = expressions(ntrans(2, 4)).outputs
    graph = EGraph(extents_of(target))
    grown = graph.grow(target, 1_000, 60.0)
    assert grown.ending is StopReason.NODES
    assert graph.holds(target)
    graph.forget()
    assert graph.grow(var("x"), 10, 60.0).ending is StopReason.SATURATED
    assert not graph.holds(target)


def test_lookup_says_no_where_a_factor_is_too_many() -> None:
    """egglog 13.2's ``check`` says yes here, and inserting the term makes a new node."""
    (target,) = expressions(ntrans(2, 4)).outputs
    h, x, alpha = var("H"), var("X"), var("alpha")
    part = mul(alpha, sum_(2, mul(sum_(2, h), mul(x, alpha))))
    graph = EGraph(extents_of(target))
    assert graph.grow(target, 200_000, 60.0).ending is StopReason.SATURATED
    assert graph.holds(part)
    assert not graph.holds(mul(h, part))

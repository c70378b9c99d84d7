"""An introduction to ``mirage_formal/run``: one call searches, proves, and writes a directory of evidence."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.check.candidate import check_candidate
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.run.driver import run_search
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings


def program() -> KernelGraph:
    """exp(X W)."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 8), dtype=mf.float16)
    w = graph.new_input(dims=(8, 8), dtype=mf.float16)
    graph.mark_output(graph.exp(graph.matmul(x, w)))
    return graph.freeze()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return run_search(program(), Settings(config="tiny", keep=2, workers=1), tmp_path_factory.mktemp("run") / "run")


def test_results_are_proved_and_cheapest_first(report: RunReport) -> None:
    assert len(report.results) == 2
    assert all(isinstance(result.verdict, Equivalent) for result in report.results)
    estimates = [result.cost for result in report.results]
    assert estimates == sorted(estimates)


def test_each_result_has_a_directory_that_the_checker_accepts(report: RunReport) -> None:
    for result in report.results:
        assert check_candidate(result.directory).verdict == "equivalent"


def test_the_directory_says_what_was_asked_and_what_was_found(report: RunReport) -> None:
    assert {"run.json", "search.jsonl", "summary.json"} <= {path.name for path in report.directory.iterdir()}

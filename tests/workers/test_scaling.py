"""The simulation of docs/scaling.md, against schedules that were worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import Measured, Overhead, Phase, Recorder, measure_overhead, replay, schedule, serial, table
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.runs.fake_engine import UNITS, program


def test_tasks_go_in_order_to_the_first_worker_that_is_free() -> None:
    # Worker A: 0-4 (first), 4-6 (fourth); worker B: 0-3 (second), 3-6 (third), 6-8 (fifth).
    assert schedule([4, 3, 3, 2, 2], 2, 0.0) == 8.0


def test_the_client_sends_one_task_at_a_time() -> None:
    # Sent at 0.5, 1.0, 4.5 (B is free at 4), 5.0 (A at 4.5), 6.5 (A at 6): ends 4.5, 4, 6.5, 6, 8.5.
    assert schedule([4, 3, 2, 1, 2], 2, 0.5) == 8.5


def test_more_workers_than_tasks_wait_for_the_client_and_the_longest() -> None:
    assert schedule([1, 1, 5, 1], 1024, 1.0) == 8.0
    assert schedule([1] * 10, 1, 0.25, begin=2.0) == 2.0 + 10 * 1.25


HAND = Measured(
    "by hand",
    (
        Phase("plan", 1.0, (2.0,), 0.0),
        Phase("search", 0.5, (4.0, 3.0, 2.0, 1.0, 2.0), 0.25),
        Phase("prove", 1.0, (6.0,) * 4, 0.25),
    ),
    3.0,
)
COST = Overhead(dispatch=0.25, start=2.0)


def test_phases_wait_for_each_other_and_for_the_supervisor() -> None:
    # Start 2, plan from 3 (sent 3.25) to 5.25, search from 5.75 for 8.5, prove from 15.25: sent 15.75, 16.25, 22.25,
    # 22.75, so the last ends at 28.75; writing takes 3.
    assert replay(HAND, 2, COST) == 31.75
    assert serial(HAND, COST) == 2.0 + (1.0 + 0.25) + (0.5 + 5 * 0.5) + (1.0 + 4 * 0.5) + 3.0
    assert replay(HAND, 10**6, COST) >= serial(HAND, COST)


def test_the_table_has_the_simulated_times() -> None:
    text = "\n".join(table([HAND], COST))
    assert "| 2 | 31.8 |" in text
    assert "| search | 5 | 12.00 | 2.000 | 4.000 | 0.500 |" in text


def test_a_recorder_measures_every_task(tmp_path: Path) -> None:
    with Recorder() as recorder:
        run_search(
            program(),
            Settings(engine="tests.kit.runs.fake_engine:FakeEngine", config="tiny", keep=4),
            tmp_path,
            executor=recorder,
        )
    names = [phase.name for phase in recorder.phases]
    assert names[:3] == ["plan", "run_search_task", "certify"]
    searched = recorder.phases[1].seconds
    assert len(searched) == UNITS + 1  # and the lower bounds
    assert all(seconds > 0 for seconds in searched)
    assert recorder.rest() > 0


def test_the_overhead_of_a_cluster_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_EMPTY", 20)  # a mean of more tasks is more exact, which is not asked here
    overhead = measure_overhead()
    assert overhead.dispatch > 0
    assert overhead.start > 0


@pytest.mark.parametrize("workers", [1, 2, 8, 64, 1024])
def test_more_workers_are_never_worse(workers: int) -> None:
    assert replay(HAND, workers + 1, COST) <= replay(HAND, workers, COST)

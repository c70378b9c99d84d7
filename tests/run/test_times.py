"""When units were searched: one clock for all sessions of a run, few samples, and nothing that depends on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_formal import records
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import SAMPLES, UnitRecord
from mirage_formal.run.driver import run_search
from mirage_formal.run.progress import Progress, RunPhase, times
from mirage_formal.run.progress.times import Samples, SearchClock
from mirage_formal.run.settings import Settings
from mirage_formal.run.task_values import UnitProgress
from mirage_formal.workers.dispatch import TaskDone, TaskFailed
from tests.kit.processes import Clock, clock_of
from tests.kit.runs.fake_engine import UNITS, fresh_name, program, shared


def journaled(root: Path) -> list[UnitRecord]:
    return [records.decode(line, UnitRecord, "") for line in (root / "search.jsonl").read_bytes().splitlines()]


def settings(engine: str = "FakeEngine", *, resume: bool = False, workers: int = 2) -> Settings:
    name = f"tests.kit.runs.fake_engine:{engine}"
    return Settings(config="tiny", keep=4, workers=workers, engine=name, resume=resume, cache=False)


@pytest.fixture
def slow() -> Iterator[KernelGraph]:
    graph = program(fresh_name())
    yield graph
    shutil.rmtree(shared(graph))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the module, at 100 s until a test puts it forward."""
    found = clock_of(monkeypatch, times, still=True)
    found.ahead = 100.0
    return found


def done(index: int, since: float | None, place: int = 0) -> TaskDone[None]:
    return TaskDone(index, None, 1, 0.0, since=since, place=place)


def test_every_unit_of_a_run_has_its_times(tmp_path: Path) -> None:
    run_search(program(), settings(), tmp_path / "run")
    found = journaled(tmp_path / "run")
    assert len(found) == UNITS
    ends = []
    for one in found:
        assert one.times is not None
        assert 0 <= one.times.begin <= one.times.end
        assert one.times.worker in (0, 1)
        ends.append(one.times.end)
    assert ends == sorted(ends)  # lines stand in the order in which units ended
    for worker in (0, 1):
        mine = sorted((one.times.begin, one.times.end) for one in found if one.times and one.times.worker == worker)
        assert all(before[1] <= behind[0] for before, behind in pairwise(mine))


def _interrupted(program: KernelGraph, root: Path) -> None:
    """A run that is stopped after two of its units."""

    def stop(progress: Progress) -> None:
        if (progress.phase, progress.done) == (RunPhase.SEARCH, 2):
            raise KeyboardInterrupt

    run_search(program, settings("Slow"), root, watch=stop)


def test_a_resumed_run_goes_on_where_its_journal_ends(slow: KernelGraph, tmp_path: Path) -> None:
    root = tmp_path / "run"
    _interrupted(slow, root)
    before = journaled(root)
    # An hour of searching lies behind it; how long ago that was does not matter.
    later = [msgspec.structs.replace(one.times, end=3600.0) for one in before if one.times is not None]
    lines = [msgspec.structs.replace(one, times=now) for one, now in zip(before, later, strict=True)]
    (root / "search.jsonl").write_bytes(b"".join(map(records.json_line, lines)))
    (shared(slow) / "go").touch()
    resumed = run_search(slow, settings("Slow", resume=True), root)
    assert resumed.summary.status == "complete"
    fresh = journaled(root)[len(before) :]
    assert len(fresh) == UNITS - len(before)
    assert all(one.times is not None and 3600 <= one.times.begin <= one.times.end < 3600 + 600 for one in fresh)


def test_a_journal_without_times_is_resumed_and_read(slow: KernelGraph, tmp_path: Path) -> None:
    root = tmp_path / "run"
    _interrupted(slow, root)
    old = [msgspec.to_builtins(one) for one in journaled(root)]
    for one in old:
        del one["times"]
    (root / "search.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in old))
    (shared(slow) / "go").touch()
    assert run_search(slow, settings("Slow", resume=True), root).summary.status == "complete"
    known = [one.times is not None for one in journaled(root)]
    assert known == [False] * len(old) + [True] * (UNITS - len(old))


def test_a_clock_begins_when_units_are_handed_out(clock: Clock) -> None:
    watched = SearchClock(())
    clock.ahead = 130.0  # planning took half a minute
    watched.start()
    clock.ahead = 137.5
    found = watched.times_of_unit(done(0, since=131.0, place=3), {"states": 5})
    assert found == records.TimesRecord(begin=1.0, end=7.5, worker=3, samples=())
    assert watched.times_of_unit(done(1, since=None), {}) is None


def test_samples_are_those_of_the_last_try(clock: Clock) -> None:
    watched = SearchClock(())
    watched.start()
    for at, states in ((101.0, 900), (102.0, 950), (104.0, 10), (105.0, 20), (106.0, 2000)):
        clock.ahead = at
        watched.look({7: UnitProgress(states, states // 10, {}), 8: UnitProgress(1, 0, {})})
    found = watched.times_of_unit(done(7, since=103.0), {"states": 1000, "classes": 100})
    assert found is not None
    assert found.samples == ((4.0, 10, 1), (5.0, 20, 2))  # nor does any exceed what was visited in the end
    failed = watched.times_of_unit(TaskFailed(8, "died", 3, since=103.0, place=1), {})
    assert failed is not None
    assert failed.samples == ()


@given(st.lists(st.tuples(st.floats(0.001, 50), st.integers(0, 1000)), max_size=400))
def test_samples_are_few_and_grow(steps: list[tuple[float, int]]) -> None:
    samples, at, states = Samples(), 0.0, 0
    told = []
    for wait, more in steps:
        at, states = at + wait, states + more
        samples.add(at, states, states // 7)
        told.append((at, states, states // 7))
    assert len(samples.kept) <= SAMPLES
    assert set(samples.kept) <= set(told)
    for before, behind in pairwise(samples.kept):
        assert before[0] < behind[0]
        assert before[1] < behind[1]


def test_samples_of_a_long_unit_span_all_of_it() -> None:
    samples = Samples()
    for second in range(10_000):
        samples.add(float(second), second, 0)
    seconds = [at for at, _, _ in samples.kept]
    assert len(seconds) > SAMPLES // 3
    assert seconds[0] == 0
    assert seconds[-1] > 9000
    gaps = [behind - before for before, behind in pairwise(seconds)]
    assert max(gaps) < 4 * min(gaps)

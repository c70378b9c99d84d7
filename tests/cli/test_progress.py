"""Live progress: what units say while they run, how long is left, and where all of it is shown."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import jsonschema
import msgspec
import pytest
from rich.console import Console

from mirage_formal.records import FoundRecord, UnitRecord
from mirage_formal.records.answer import ProgressEvent, answer_schema
from mirage_formal.run import progress as values
from mirage_formal.run.driver import run_search
from mirage_formal.run.progress import Progress, RunPhase, counts, display_choice, progress_display
from mirage_formal.run.progress.bars import Bars
from mirage_formal.run.progress.counts import RemainingTime, RunCounters
from mirage_formal.run.settings import Settings
from mirage_formal.run.task_values import UnitProgress
from mirage_formal.search.engine_interface import SearchCounters, Stats, watch_counts
from mirage_formal.support.errors import SpaceError
from mirage_formal.workers import task_progress
from mirage_formal.workers.pool import Pool
from tests.kit.processes import clock_of
from tests.kit.runs.fake_engine import fresh_name, program, shared
from tests.kit.runs.unit_records import unit_record

EVENT = ProgressEvent(
    command="search", task="attn", phase="searching", done=1, total=4, elapsed_s=2.0, left_s=6.0, states=1000,
    states_per_s=500.0, pruned={"shape": 7, "copy": 3}, candidates=3, best_us=12.25, proved=2, refused=1,
)  # fmt: skip


def unit(states: int, pruned: dict[str, int], us: float) -> UnitRecord:
    found = FoundRecord(digest="a" * 64, graph=b"{}", kernels=1, estimated_us=us)
    return unit_record(found, label="u", stats={"states": states}, pruned=pruned, milliseconds=1.0)


# --- what is counted --------------------------------------------------------------------------------------------------


def test_tallies_are_read_while_they_count_and_nothing_else_is_counted_for_it() -> None:
    before = SearchCounters()
    with watch_counts() as so_far:
        assert so_far() == Stats()
        first, second = SearchCounters(), SearchCounters()
        first.step("states")
        second.step("states")
        second.prune("shape", "block")
        assert so_far() == Stats(states=2, pruned_at={"block": {"shape": 1}})
        with watch_counts() as inner:
            SearchCounters().step("states")
            assert inner().states == 1
        assert so_far().states == 2
    before.step("states")
    assert so_far().states == 2


def test_a_task_says_where_it_stands_until_it_ends() -> None:
    assert task_progress.current_progress() is None
    with task_progress.report_progress(lambda: 3):
        assert task_progress.current_progress() == 3
    assert task_progress.current_progress() is None


def step_by_step(path: str) -> int:
    """Says 1 until the test leaves a file."""
    with task_progress.report_progress(lambda: 1):
        while not Path(path).exists():
            threading.Event().wait(0.02)
    return 2


def test_a_pool_hears_what_its_workers_say(tmp_path: Path) -> None:
    """While they compute, and no longer."""
    file = tmp_path / "go"
    with Pool(1) as pool:
        for outcome in pool.run(step_by_step, [str(file)], limit_s=300):
            if pool.said == {0: 1}:
                file.touch()
            if outcome is not None:
                assert getattr(outcome, "value", None) == 2
        assert file.exists()
        assert pool.said == {}


def test_states_of_units_that_run_are_among_those_of_a_run(tmp_path: Path) -> None:
    """They are shown before the unit ends, and once: what the unit finds at its end takes their place."""
    given = program(fresh_name())
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.phase is RunPhase.SEARCH and progress.states >= 10 + 11 + 500:
            (shared(given) / "go").touch()

    settings = Settings(engine="tests.kit.runs.fake_engine:Talking", config="tiny", keep=1, workers=1, cache=False)
    report = run_search(given, settings, tmp_path / "run", name="x", watch=watch)
    searching = [one for one in seen if one.phase is RunPhase.SEARCH and one.done == 2]
    assert any(one.states >= 10 + 11 + 500 and one.pruned_by.get("talk") for one in searching)
    assert seen[-1].states == report.summary.states < 500
    assert any(one.recent_states_per_s > 0 for one in seen)


def test_totals_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, counts, still=True)
    total = RunCounters([unit(100, {"shape": 5}, 9.0)])
    clock.ahead = 2.0
    total.add(unit(50, {"shape": 1, "copy": 9}, 7.0))
    shown = total.progress((RunPhase.SEARCH, 1, 9), [UnitProgress(30, 3, {"copy": 1}), UnitProgress(20, 0, {})], (4, 2))
    assert (shown.states, dict(shown.pruned_by)) == (200, {"copy": 10, "shape": 6})
    assert (shown.best_us, shown.candidates, shown.proved, shown.refused) == (7.0, 1, 4, 2)
    assert shown.recent_states_per_s == 50.0  # what an earlier process has visited is not counted
    clock.ahead = 12.0
    total.progress((RunPhase.SEARCH, 1, 9), [UnitProgress(90, 0, {})], (4, 2))
    clock.ahead = 22.0
    assert total.progress((RunPhase.SEARCH, 1, 9), [UnitProgress(190, 0, {})], (4, 2)).recent_states_per_s == 10.0


def test_the_time_left_is_said_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, counts, still=True)
    forecast = RemainingTime()
    assert forecast.left_s("a", 3, 40) is None  # what was there before says nothing
    clock.ahead = 10.0
    assert forecast.left_s("a", 4, 40) is None
    assert forecast.left_s("a", 8, 40) == pytest.approx(10 / 5 * 32)
    assert forecast.left_s("a", 40, 40) == 0.0
    assert forecast.left_s("b", 0, 0) is None


# --- where it is shown ------------------------------------------------------------------------------------------------


def test_a_line_says_where_a_run_stands() -> None:
    assert progress_display.progress_line(EVENT) == (
        "attn: searching 1 of 4 | 1,000 states, 500/s | pruned 10: shape 7, copy 3 | "
        "3 candidates, best est. 12.2 us, 2 proved, 1 refused | 2.0 s"
    )
    other = ProgressEvent(command="check", task="", phase="checking", done=0, total=0, elapsed_s=0.0, left_s=None)
    assert progress_display.progress_line(other) == "checking | 0.0 s"


def test_each_total_of_a_run_is_reached_and_no_count_goes_back(tmp_path: Path) -> None:
    """Of the speed nothing is said behind the search, where it would fall to 0."""
    seen: list[Progress] = []
    settings = Settings(engine="tests.kit.runs.fake_engine:FakeEngine", config="tiny", keep=2, workers=1, cache=False)
    run_search(program(), settings, tmp_path / "run", name="x", watch=seen.append)
    for phase in set(RunPhase) - {RunPhase.FORESEE}:  # rounding errors are estimated beside proofs
        standing = [(one.done, one.total) for one in seen if one.phase is phase]
        assert standing == sorted(standing)
        assert standing[-1][0] == standing[-1][1] > 0
    assert not any(one.phase is RunPhase.FORESEE for one in seen)
    assert all(one.recent_states_per_s == 0 for one in seen if one.phase is not RunPhase.SEARCH)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_bars_are_as_wide_as_the_terminal_allows(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    with Bars("search", console) as bars:
        for phase in ("searching", "certifying"):
            bars.show(msgspec.structs.replace(EVENT, phase=phase, done=240, total=240))
        bars._drawn.refresh()
        drawn = file.getvalue()
    lines = [line.split("\x1b[2K")[-1] for line in drawn.split("\n") if "━" in line][-2:]
    assert all(line.count("━") >= width // 4 for line in lines), lines
    assert {len(line.rstrip("\r")) for line in lines} == {width}, lines
    assert all(("attn: " in line) == (width > 40) for line in lines)
    assert "2 proved, 1 refused" in " ".join(drawn.replace("\x1b[2K", "").replace("\r", "").split())


def test_bars_fit_60_columns_and_say_what_is_left() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, color_system=None, legacy_windows=False)
    with Bars("search", console) as bars:
        bars.show(EVENT)
        bars._drawn.refresh()
        drawn = file.getvalue()
    lines = [line.replace("\r", "").split("\x1b[2K")[-1] for line in drawn.split("\n")]
    assert any("attn: searching" in line and "1/4 0:06 left" in line for line in lines), lines
    assert any(line.startswith("1,000 states, 500/s") for line in lines)
    assert any("3 candidates, best est. 12.2 us, 2 proved, 1 refused" in line for line in lines)
    assert all(len(line) <= 60 for line in lines if "\x1b" not in line)


def test_many_phases_are_few_bars() -> None:
    bars = Bars("reproduce", Console(file=io.StringIO(), force_terminal=True, width=60))
    with bars:
        for number in range(40):
            bars.step(f"row {number}", 1, 1)
    assert len(bars._drawn.tasks) <= 6


def test_lines_are_news(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, progress_display, still=True)
    file = io.StringIO()
    with progress_display.ProgressLines("search", file) as lines:
        for done, ahead in ((0, 0.0), (1, 1.0), (2, 600.0)):
            clock.ahead = ahead
            lines.step("searching", done, 9, "attn")
        lines.step("writing", 0, 1, "attn")
    assert [one.split(" |")[0] for one in file.getvalue().splitlines()] == [
        "attn: searching 0 of 9",
        "attn: searching 2 of 9",
        "attn: writing 0 of 1",
    ]


def test_lines_of_json_follow_their_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, progress_display, still=True)
    file = io.StringIO()
    with progress_display.JsonLines("search", file) as shown:
        watch = shown.watch("attn")
        for done in range(5):
            watch(values.Progress(RunPhase.SEARCH, done, 4, 10 * done, 0, 1.0, remark="slow\x1b[2K"))
        clock.ahead = 1.0
        shown.steps("attn")("building", 1, 2)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    for one in lines:
        jsonschema.validate(one, {**answer_schema(), "$ref": "#/$defs/ProgressEvent"})
    assert [(one["phase"], one["done"]) for one in lines] == [("searching", 0), ("searching", 4), ("building", 1)]
    assert "\x1b" not in file.getvalue()


class Terminal(io.StringIO):
    """A file that says it is one."""

    def isatty(self) -> bool:
        return True


def test_the_display_is_chosen_by_where_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert type(display_choice.display("auto", "x")) is Bars
    assert type(display_choice.display("none", "x")) is progress_display.Display
    assert type(display_choice.display("json", "x")) is progress_display.JsonLines
    monkeypatch.setenv("TERM", "dumb")
    assert type(display_choice.display("auto", "x")) is progress_display.ProgressLines
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert type(display_choice.display("auto", "x")) is progress_display.Display
    assert type(display_choice.display("bars", "x")) is progress_display.ProgressLines
    with pytest.raises(SpaceError, match="expected one of auto, bars, json, none, got 'loud'"):
        display_choice.display("loud", "x")

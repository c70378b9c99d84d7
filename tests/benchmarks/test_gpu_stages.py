"""What is measured in which order, with jobs that are answered from a script instead of on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import corpus_gpu, gpu_bench, gpu_stages, gpu_table
from benchmarks.gpu_cases import rounds
from benchmarks.gpu_jobs import Job, Ledger, Pool, Result, Turn
from benchmarks.gpu_sanitize import best
from benchmarks.gpu_stages import Row, Stages, choose, following
from benchmarks.harness import parser_of
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

WITHIN: Result = {
    "answer": "within",
    "scales": [{"scale": s, "answer": "within", "reason": ""} for s in (0.1, 1.0, 8.0)],
}
OUTSIDE: Result = {
    "answer": "outside",
    "scales": [
        {"scale": 0.1, "answer": "within", "reason": ""},
        {"scale": 1.0, "answer": "within", "reason": ""},
        {"scale": 8.0, "answer": "outside", "reason": "too far"},
    ],
}


class Answered:
    """A pool whose jobs are answered at once; what has no answer stays without one."""

    def __init__(self, path: Path, answer: Callable[[Job], Result | None]) -> None:
        self.ledger = Ledger(path)
        self.answer = answer
        self.calls: list[tuple[int, list[Job]]] = []

    def do(self, jobs: Iterable[Job], *, processes: int, limit_s: float, until: float) -> None:
        new = [job for job in jobs if self.ledger.get(job) is None]
        self.calls.append((processes, new))
        for job in new:
            if (result := self.answer(job)) is not None:
                self.ledger.put(job, dict(result))

    def done(self, do: str) -> list[str]:
        """What was asked for, by name, candidate and peer."""
        keys = ("name", "kernels", "peer")
        jobs = [job for _, jobs in self.calls for job in jobs if job["do"] == do]
        return [" ".join(Path(job[key]).name for key in keys if key in job) for job in jobs]


def kernels(place: Path, count: int) -> list[Path]:
    made = [place / f"{i:03}" for i in range(1, count + 1)]
    for directory in made:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "launch.json").write_text('{"program": {"inputs": [{"shape": [4, 4]}]}}')
    return made


def stages(pool: Answered, cache: str = "c", *given: str) -> Stages:
    peers = ("eager", "compile", "autotune")
    options = parser_of(gpu_stages.__doc__).parse_args(["--jobs", "4", *given])
    return Stages(cast(Pool, pool), lambda name: peers, options, cache)


def cell(us: float) -> dict[str, Any]:
    return {"us": us, "low": us, "high": us * 1.1, "spread": 0.1, "runs": [us, us, us * 1.1]}


def script(job: Job) -> Result | None:
    """Two programs: of a the third candidate is fastest, but wrong, then the first; of b autotune does not compile."""
    where = f"{job.get('name')} {Path(job.get('kernels', '')).name} {job.get('peer', '')}"
    match job["do"]:
        case "bandwidth":
            return {"gbs": 4000.0, "device": "A GPU", "torch": "2"}
        case "time":
            return {"us": {"001": 5.0, "002": 9.0, "003": 2.0}[Path(job["kernels"]).name], "replays_error": 3e-4}
        case "numerics":
            kept = OUTSIDE if where.startswith("a-b8 003") else WITHIN
            return {**kept, "digest": "d" * 64, "launches": ["k0 (x): 4x1x1 blocks of 128, 3 registers"]}
        case "compile":
            return {"error": "not finished in 240 s"} if where.startswith("b-b1 001 autotune") else {"error_norm": 0.0}
        case _:
            cells = {peer: cell(20.0 - i) for i, peer in enumerate(job["peers"])}
            cells |= {"ours": cell(10.0), "read_plain": cell(8.0), "read_bulk": cell(5.0)}
            return {"cells": cells, "notes": {}, "replays_error": 3e-4}


def test_the_fastest_that_is_right_is_measured_beside_what_compiled(tmp_path: Path) -> None:
    places = {"a-b8": kernels(tmp_path / "a", 3), "b-b1": kernels(tmp_path / "b", 1)}
    pool = Answered(tmp_path / "ledger", script)
    a, b = stages(pool).run(places)
    assert pool.done("time") == ["a-b8 001", "a-b8 002", "a-b8 003"]  # one candidate alone need not be chosen
    assert pool.done("numerics") == ["a-b8 003", "b-b1 001", "a-b8 001"]
    assert pool.done("row") == ["a-b8 001", "b-b1 001"]
    # Times are taken one after another, all else side by side; numerics never beside a compiler's own timing.
    for processes, jobs in pool.calls:
        kinds = {job["do"] for job in jobs}
        assert len(kinds) <= 1
        assert processes == (4 if kinds & {"compile", "numerics"} else processes)
        assert not (kinds & {"time", "row", "bandwidth"} and processes > 1)
    assert Path(a.chosen or "").name == "001"
    assert a.within
    assert (a.us("ours"), a.us("eager", "compile", "autotune")) == (10.0, 18.0)
    assert a.over("eager", "compile", "autotune") == 1.8
    assert dict(a.missing) == {}
    assert dict(b.missing) == {"autotune": "not finished in 240 s"}
    assert b.over("eager", "compile", "autotune") == 1.9
    assert a.us("read_plain", "read_bulk") == 5.0


def test_where_some_candidates_are_exact_the_fastest_of_these_is_measured(tmp_path: Path) -> None:
    places, off = {"b-b8": kernels(tmp_path / "b", 3)}, {"003": 1.1e-3, "001": 2e-3}

    def inexact(job: Job) -> Result | None:
        found = script(job)
        if job["do"] == "time" and found is not None:
            found["replays_error"] = off.get(Path(job["kernels"]).name, 3e-4)
        return found

    (row,) = stages(Answered(tmp_path / "ledger", inexact)).run(places)
    assert Path(row.chosen or "").name == "002"
    off["002"] = 1.01e-3
    (row,) = stages(Answered(tmp_path / "another", inexact)).run(places)
    assert Path(row.chosen or "").name == "003", "none is"


def test_a_later_call_does_what_is_missing(tmp_path: Path) -> None:
    places = {"a-b8": kernels(tmp_path / "a", 3), "b-b1": kernels(tmp_path / "b", 1)}
    cut = Answered(
        tmp_path / "ledger", lambda job: None if job["do"] == "row" and "b" in job["name"][0] else script(job)
    )
    rows = stages(cut).run(places)
    assert [row.reason for row in rows] == ["", "no time left"]
    again = Answered(tmp_path / "ledger", script)
    rows = stages(again).run(places)
    assert [job["do"] for _, jobs in again.calls for job in jobs] == ["row"]
    assert [row.us("ours") for row in rows] == [10.0, 10.0]
    # Tables can be made where there is neither time nor the compiler's cache.
    table = Answered(tmp_path / "ledger", lambda job: None)
    a, b = stages(table, "elsewhere").run(places)
    assert (a.us("compile"), b.us("compile")) == (19.0, 19.0)
    assert (dict(a.missing), dict(b.missing)) == ({}, {"autotune": "not compiled"})
    # Where the compiler's cache is gone, only what is not measured yet is compiled again.
    moved = Answered(tmp_path / "ledger", script)
    stages(moved, "another").run(places)
    assert moved.done("compile") == ["b-b1 001 compile", "b-b1 001 autotune"]
    assert moved.done("row") == []
    # Other kernels in the same place are measured.
    (places["b-b1"][0] / "launch.json").write_text('{"program": {"inputs": []}}')
    other = Answered(tmp_path / "ledger", script)
    stages(other).run(places)
    assert other.done("row") == ["b-b1 001"]


def test_without_time_for_numerics_nothing_goes_on_for_ever(tmp_path: Path) -> None:
    pool = Answered(tmp_path / "ledger", lambda job: None if job["do"] == "numerics" else script(job))
    (row,) = stages(pool).run({"a-b8": kernels(tmp_path / "a", 3)})
    assert (row.chosen, row.reason) == (None, "no candidate ran")


def test_candidates_are_chosen_by_scales_within_then_by_time() -> None:
    timed = {"x": 1.0, "y": 2.0, "z": 3.0}
    assert following(timed, {}) == "x"
    assert following(timed, {"x": OUTSIDE}) == "y"
    assert following(timed, {"x": {"error": "crash"}, "y": OUTSIDE}) == "z"
    assert following(timed, {"x": OUTSIDE, "y": WITHIN}) is None
    assert following(timed, dict.fromkeys(timed, OUTSIDE)) is None
    assert choose(timed, {"x": OUTSIDE, "y": OUTSIDE, "z": WITHIN}) == "z"
    assert choose(timed, dict.fromkeys(timed, OUTSIDE)) == "x"
    assert choose(timed, {"x": {"error": "crash"}}) is None


def test_rounds_are_interleaved_and_medians_count() -> None:
    order: list[str] = []
    scripted = {"ours": [3.0, 1.0, 2.0], "peer": [7.0, 9.0, 8.0], "bad": [1.0]}

    def measured(name: str) -> Callable[[], Any]:
        def run() -> Any:
            order.append(name)
            return SimpleNamespace(us=scripted[name].pop(0))  # the last one of bad raises

        return run

    found = rounds({name: measured(name) for name in scripted})
    assert order == ["ours", "peer", "bad", "ours", "peer", "bad", "ours", "peer"]
    assert found["ours"] == {"us": 2.0, "low": 1.0, "high": 3.0, "spread": 1.0, "runs": [3.0, 1.0, 2.0]}
    assert found["peer"]["us"] == 8.0
    assert found["bad"] == {"error": "IndexError: pop from empty list"}


def test_a_compiler_times_its_candidates_alone(tmp_path: Path) -> None:
    text = f"""
import sys, time
from pathlib import Path
from benchmarks.gpu_jobs import Turn
def timing(again):
    begin = time.monotonic()
    if again: run(False)
    time.sleep(0.3)
    print(begin, time.monotonic())
run = Turn(Path({str(tmp_path / "lock")!r})).taking(timing)
run(True)
"""
    command = [sys.executable, "-c", text]
    children = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    spans = []
    for child in children:
        said = child.communicate(timeout=HUNG_S)[0].splitlines()
        assert len(said) == 2  # it may call itself
        spans.append(tuple(float(x) for x in said[-1].split()))
    spans.sort()
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    # One that raises lets go.
    failing = Turn(tmp_path / "lock").taking(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing()
    assert Turn(tmp_path / "lock").taking(lambda: 5)() == 5  # and does not wait for a lock that is held


def test_the_tables_say_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_table, "program_bytes", lambda place: 8_000_000)
    kept = {**WITHIN, "digest": "d" * 64, "launches": ["k0 (x): 4x1x1 blocks of 128, 3 registers"], "registers": 3}
    kept["scales"] = [{**s, "error": 1.0, "tolerance": 2.0, "ratio": 0.5} for s in WITHIN["scales"]]
    place = str(tmp_path / "ntrans-b8" / "kernels" / "002-x")
    cells = {"ours": cell(10.0), "eager": cell(30.0), "compile": cell(12.0), "read_plain": cell(8.0)}
    found = {"replays_error": 2e-4, "cells": cells}
    row = Row("ntrans-b8", 2, {place: 9.0}, {place: kept}, place, {"autotune": "late"}, cells, found)
    nothing = Row("ntrans-b16", 2, {}, {"x": {"error": "CompileError: no"}})
    written: dict[str, Any] = {
        "device": {"device": "A GPU", "gbs": 4000.0},
        "rows": gpu_table.table([row, nothing], 4000.0),
    }
    first, second = written["rows"]
    assert (first["ours"], first["floor"], first["ratio"], first["x_read_only"]) == (10.0, 2.0, 1.2, 1.25)
    assert "ours" not in second
    assert second["reason"] == "CompileError: no"
    assert not gpu_bench.good(first)  # a peer is missing
    assert gpu_bench.good({**first, "missing": {}})
    assert not gpu_bench.good({**first, "missing": {}, "replays_error": 2e-3})
    assert not gpu_bench.good(second)
    text = gpu_table.markdown(written, [{"run": "ntrans-b8", "tool": "racecheck", "outcome": "clean"}])
    assert "| ntrans | 8 | 10.00 | 2.00 | 8.00 | 30.00 | 12.00 |  |  |  | 1.20 | 1.25 | 4x1x1 blocks of 128 |" in text
    assert "- ntrans, b = 8: max-autotune: late" in text
    assert "| ntrans | 8 | dddddddddddd | 10.0 | 10.0 | 10.0 |  |  |  | 10.0 | 2.0e-04 |  | clean |" in text
    assert "| ntrans | 16 |  |  |  |  |  |  |  |  |  |  | CompileError: no |" in text
    assert "dddddddddddd, error 2.0e-04, spread 10.0 %; autotune: late" in gpu_table.show(written)
    assert "| ntrans | 10.00 | 1.20 | 1.25 |" in gpu_table.page(text).replace("|  |  |  |", "|")
    assert "| ntrans | 10.00 | 1.20 |" in gpu_table.readme(text).replace("|  |  |", "|")
    # What is outside of the tolerance has no time of ours.
    outside = Row("ntrans-b8", 2, {place: 9.0}, {place: {**kept, **OUTSIDE}}, place, {}, cells, found)
    (plain,) = gpu_table.table([outside], None)
    assert "ours" not in plain
    assert plain["reason"] == "scale 8 outside: too far"

    # The sanitizer watches what was measured, and else the first.
    run, other = tmp_path / "ntrans-b8", tmp_path / "ntrans-b16"
    kernels(run / "kernels", 2)
    kernels(other / "kernels", 2)
    bench = tmp_path / "gpu_bench.json"
    bench.write_text(json.dumps(written))
    assert best([run, other], bench) == {run: run / "kernels" / "002-x", other: other / "kernels" / "001"}


def test_the_corpus_table(tmp_path: Path) -> None:
    place = str(tmp_path)
    kept = {**OUTSIDE, "digest": "e" * 64, "launches": ["one", "two"]}
    cells = {"ours": cell(10.0), "eager": cell(30.0), "compile": cell(8.0), "read_bulk": cell(4.0)}
    found = {"replays_error": 2e-4, "cells": cells}
    rows = [
        Row("slow", 1, {place: 0.0}, {place: kept}, place, {}, cells, found),
        Row(
            "fast",
            1,
            {place: 0.0},
            {place: kept},
            place,
            {},
            {**cells, "autotune": cell(32.0), "compile": cell(40.0)},
            found,
        ),
        Row("broken", 0),
    ]
    text = corpus_gpu.table(rows)
    assert "| slow | eeeeeeeeeeee | 2 | 10.00 | 8.00 |  | 30.00 | 0.80 | 4.00 | 2.50 | 10.0 | 2e-04 | within, " in text
    assert "| fast | eeeeeeeeeeee | 2 | 10.00 | 40.00 | 32.00 | 30.00 | 3.20 |" in text
    assert "| no kernels |" in text
    assert "2 of 3 programs; geometric mean of the ratios 1.60, least 0.80; 0 within" in text
    assert "1 below 0.9: slow 0.80." in text


def test_candidates_of_a_program_lie_side_by_side_or_alone(tmp_path: Path) -> None:
    (alone,) = kernels(tmp_path / "alone", 1)
    assert corpus_gpu.candidates(alone, 3) == [alone]
    several = kernels(tmp_path / "several" / "kernels", 3)
    assert corpus_gpu.candidates(tmp_path / "several", 2) == several[:2]
    assert corpus_gpu.candidates(tmp_path, 2) == []


@pytest.mark.parametrize(("document", "table"), [("docs/results.md", gpu_table.page), ("README.md", gpu_table.readme)])
def test_documents_have_the_numbers_of_the_results(document: str, table: Callable[[str], str]) -> None:
    results = (REPOSITORY / "benchmarks" / "results-h200.md").read_text()
    made = table(results)
    assert made.count("\n") == 2 + 8
    assert made in (REPOSITORY / document).read_text()


def test_without_a_gpu_nothing_else_is_tried(tmp_path: Path) -> None:
    places = {"a-b8": kernels(tmp_path / "a", 3)}
    pool = Answered(tmp_path / "ledger", lambda job: {"error": "ModuleNotFoundError: No module named 'torch'"})
    (row,) = stages(pool).run(places)
    assert [job["do"] for _, jobs in pool.calls for job in jobs] == ["bandwidth"]
    assert row.reason == "no candidate ran"
    # --retry does it again.
    ledger = Ledger(tmp_path / "ledger", retry=True)
    assert ledger.get({"do": "bandwidth"}) is None


def test_why_no_candidate_ran(tmp_path: Path) -> None:
    broken = Answered(tmp_path / "ledger", lambda job: {"error": "lost"} if job["do"] == "time" else script(job))
    (row,) = stages(broken).run({"a-b8": kernels(tmp_path / "a", 3)})
    assert row.reason == "lost"
    assert broken.done("numerics") == []

"""Progress of a running search: what its records say while they grow, and a server that only its address opens."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from mirage_formal.autotune.plans import (
    CandidatePlan,
    MeasuredTime,
    PiecePlan,
    ScheduleVariant,
    TuningDirectory,
    TuningPlan,
)
from mirage_formal.cache.lock import lock_directory
from mirage_formal.cli.app import app
from mirage_formal.cli.report import _tuning_reader
from mirage_formal.report.reading.progress_reader import ProgressReader, pareto_front
from mirage_formal.report.watch_server import WatchServer
from mirage_formal.support.errors import RunError
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S


class Growing:
    """A copy of a run that has recorded nothing but what was asked for; units are added by hand."""

    def __init__(self, run: Path, root: Path) -> None:
        self.run, self.root = run, root
        root.mkdir()
        shutil.copy(run / "run.json", root)
        (root / "search.jsonl").write_bytes(b"")
        self.lines = (run / "search.jsonl").read_bytes().splitlines(keepends=True)

    def add(self, text: bytes) -> None:
        with (self.root / "search.jsonl").open("ab") as file:
            file.write(text)


@pytest.fixture
def growing(small: Path, tmp_path: Path) -> Growing:
    return Growing(small, tmp_path / "growing")


def test_units_states_and_candidates_grow_with_the_records(growing: Growing) -> None:
    reader = ProgressReader(growing.root)
    (begun,) = reader.read()
    assert (begun.done, begun.states, begun.candidates, begun.best_us, begun.units) == (0, 0, 0, None, None)
    done: list[Any] = []
    for line in growing.lines:
        half = len(line) // 2
        growing.add(line[:half])
        (partial,) = reader.read()
        assert partial.done == len(done)
        assert partial.faults == ()
        growing.add(line[half:])
        done.append(json.loads(line))
        (now,) = reader.read()
        found = [one for unit in done for one in unit["candidates"]]
        assert now.done == len(done)
        assert now.states == sum(unit["stats"]["states"] for unit in done)
        assert now.candidates == len({one["digest"] for one in found})
        assert now.best_us == min(one["estimated_us"] for one in found)
        assert now.newest[0].startswith(f"unit {done[-1]['unit']} done")
        assert now.accepted is None
    assert now.state == "not running"
    for name in ("exhausted.json", "summary.json"):
        shutil.copy(growing.run / name, growing.root)
    (ended,) = reader.read()
    assert (ended.state, ended.units) == ("complete", len(done))
    assert ended.accepted == len(json.loads((growing.run / "summary.json").read_bytes())["candidates"])


def test_a_run_is_running_while_its_writer_holds_the_lock(growing: Growing) -> None:
    reader = ProgressReader(growing.root.parent)
    with lock_directory(growing.root):
        assert [(one.place, one.state) for one in reader.read()] == [("growing", "running")]
    with lock_directory(growing.root.parent):  # of a whole program, which holds the locks of its parts
        assert [one.state for one in reader.read()] == ["running"]
    assert [one.state for one in reader.read()] == ["not running"]


def test_a_line_of_another_run_is_named_and_not_counted(growing: Growing) -> None:
    key = json.loads(growing.lines[0])["key"].encode()
    growing.add(growing.lines[0].replace(key, b"0" * 64))
    (one,) = ProgressReader(growing.root).read()
    assert one.done == 0
    assert "expected a line of run" in one.faults[0]


def test_the_parts_of_a_whole_program_are_read(whole: Path) -> None:
    found = ProgressReader(whole).read()
    assert [one.place for one in found] == [f"parts/{path.name}" for path in sorted((whole / "parts").iterdir())]
    assert {one.state for one in found} == {"complete"}


@pytest.mark.parametrize(
    ("given", "front"),
    [
        ([], []),
        ([(2, 3.0, "a"), (1, 3.0, "b")], [(1, 3.0, "b")]),
        ([(3, 1.0, "c"), (2, 2.0, "a"), (1, 4.0, "b")], [(1, 4.0, "b"), (2, 2.0, "a"), (3, 1.0, "c")]),
        ([(1, 4.0, "b"), (2, 5.0, "a"), (3, 1.0, "c"), (1, 3.0, "d")], [(1, 3.0, "d"), (3, 1.0, "c")]),
    ],
)
def test_the_front_has_what_no_other_candidate_beats(given: Any, front: Any) -> None:
    assert list(pareto_front(given)) == front


def test_a_tuning_is_followed_by_its_times(tmp_path: Path) -> None:
    place = TuningDirectory(tmp_path)
    piece = PiecePlan(
        graph=msgspec.Raw(b"null"),
        position=0,
        warm=(),
        variants=tuple(ScheduleVariant(key=key, schedule=None) for key in "ab"),
    )
    candidates = (CandidatePlan("001", "", 5.0, (0, 0), (0, 1)), CandidatePlan("002", "", 7.0, (0,), (0,)))
    place.plans.put(("run", "sm_90a"), TuningPlan("run", "sm_90a", candidates, (piece,)))
    read = _tuning_reader(tmp_path)
    (begun,) = read()
    assert (begun.done, begun.units, begun.candidates) == (0, 2, 2)
    assert begun.front == ((1, 7.0, "002"), (2, 5.0, "001"))
    place.keep_times("gpu", [MeasuredTime("a", 2.0, 1.0, 3, 1), MeasuredTime("b", 0.0, 0.0, 0, 1, failed="no result")])
    (now,) = read()
    assert (now.done, now.failed) == (2, 1)
    assert now.newest == ("kernel b on gpu: no result", "kernel a on gpu: 2.00 µs")


# --- the server ------------------------------------------------------------------------------------------------------


def asked(address: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=HUNG_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextlib.contextmanager
def served(root: Path) -> Iterator[WatchServer]:
    with WatchServer("Progress", ProgressReader(root).read) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_only_the_address_with_the_token_is_answered(growing: Growing) -> None:
    with served(growing.root) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert asked(server.address)[0] == 200
        data = server.address.replace("/?", "/progress.json?")
        assert [one["done"] for one in json.loads(asked(data)[1])] == [0]
        growing.add(growing.lines[0])
        assert [one["done"] for one in json.loads(asked(data)[1])] == [1]
        bare = server.address.partition("?")[0]
        for wrong in ("", "?token=", "?token=wrong", f"?token={server.token}x", "?token=%ff", "?other=1"):
            for path in ("", "progress.json", "nowhere"):
                code, text = asked(f"{bare}{path}{wrong}")
                assert code == 403
                assert "done" not in text
        for path in ("nowhere", "progress.json/", "..%2frun.json", "../run.json", "run.json"):
            assert asked(f"{bare}{path}?token={server.token}")[0] == 404
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert asked(data, method)[0] >= 400


def test_two_servers_have_two_tokens(growing: Growing) -> None:
    with served(growing.root) as one, served(growing.root) as other:
        assert one.token != other.token
        assert len(one.token) >= 32


def test_the_page_may_ask_its_own_server_alone(growing: Growing) -> None:
    with served(growing.root) as server:
        _, text = asked(server.address)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "connect-src &#39;self&#39;" in text or "connect-src 'self'" in text
    assert "unsafe" not in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_a_directory_without_a_run_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="expected a directory with a run"):
        ProgressReader(tmp_path / name)


def test_the_command_prints_the_same_values_once(growing: Growing) -> None:
    growing.add(growing.lines[0])
    done = CliRunner().invoke(app, ["watch", str(growing.root), "--json"])
    answer = json.loads(done.output)
    assert (done.exit_code, answer["command"]) == (0, "watch")
    assert answer["result"][0]["done"] == 1


def test_the_command_serves_until_it_is_interrupted(growing: Growing) -> None:
    command = [sys.executable, "-m", "mirage_formal", "watch", str(growing.root)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert asked(address)[0] == 200
            growing.add(b"".join(growing.lines))
            data = json.loads(asked(address.replace("/?", "/progress.json?"))[1])
            assert data[0]["done"] == len(growing.lines)
            assert asked(address.partition("?")[0])[0] == 403
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=HUNG_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=HUNG_S)

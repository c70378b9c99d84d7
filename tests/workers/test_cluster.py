"""Searches on a dask cluster: what one process finds, whatever happens to the workers; mistakes are explained."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import SEARCH_FILE, UnitRecord, decode
from mirage_formal.run.candidate_table import describe_run, warnings
from mirage_formal.run.driver import run_search
from mirage_formal.run.executors import make_executor
from mirage_formal.run.preload import PRELOAD
from mirage_formal.run.progress import Progress, RunPhase
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import ENGINES, Settings, environment
from mirage_formal.support.errors import ClusterError, MirageError, SpaceError
from mirage_formal.workers import cluster as module
from mirage_formal.workers import dispatch
from mirage_formal.workers.cluster import Cluster
from mirage_formal.workers.dispatch import TaskDone, TaskOverdue
from mirage_formal.workers.task_progress import report_progress
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S, alive, clock_of, first_try, gone
from tests.kit.runs.fake_engine import UNITS, fresh_name, program, shared
from tests.kit.sampling import but


def identity(x: int) -> int:
    return x


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hang_first(path: str) -> str:
    """The first call for a path that is one leaves its process id there and hangs."""
    if path and first_try(path):
        Path(path).write_text(str(os.getpid()))
        time.sleep(600)
    return path


def process() -> dict[str, str]:
    """An environment that no two processes share."""
    return {"process": str(os.getpid())}


def marked() -> dict[str, str]:
    """An environment that differs on workers that are asked once the test has made a file."""
    here = multiprocessing.parent_process() is None
    return {"mark": "none" if here or not Path(os.environ["MIRAGE_TEST_MARK"]).exists() else "another"}


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """Two dask workers on this machine."""
    with Cluster("local:2", PRELOAD, environment=environment) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hurried() -> Iterator[Cluster]:
    """The same, and what takes twice as long as is usual is computed again elsewhere."""
    with Cluster("local:2", PRELOAD, slow_factor=2, slow_after_s=1.0) as cluster:
        yield cluster


@pytest.fixture
def given() -> Iterator[KernelGraph]:
    graph = program(fresh_name())
    yield graph
    shutil.rmtree(shared(graph), ignore_errors=True)


def settings(engine: str = "FakeEngine", **more: object) -> Settings:
    name = engine if engine in ENGINES else f"tests.kit.runs.fake_engine:{engine}"
    return Settings(**{"engine": name, "config": "tiny", "keep": 100, **more})  # type: ignore[arg-type]


def found(report: RunReport) -> list[tuple[str, float]]:
    return [(item.digest, item.estimated_us) for item in report.summary.candidates]


# The same as one process


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("engine", but(["FakeEngine", "exhaustive", "guided"], "exhaustive"))
def test_two_dask_workers_find_what_one_process_finds(two: Cluster, tmp_path: Path, engine: str) -> None:
    chosen = settings(engine=engine, keep=6, max_kernel_ops=1, max_block_ops=3)
    here = run_search(program(), msgspec.structs.replace(chosen, workers=1), tmp_path / "here")
    there = run_search(program(), chosen, tmp_path / "there", executor=two)
    assert len(here.results) >= 6
    assert found(there) == found(here)
    assert (there.summary.states, there.summary.pruned) == (here.summary.states, here.summary.pruned)
    assert (there.summary.found, there.summary.rejected) == (here.summary.found, ())
    assert check([str(tmp_path / "there")]) == 0


class Killer:
    """Kills a dask worker once the search has come so far."""

    def __init__(self, cluster: Cluster, ready: Callable[[], bool]) -> None:
        self.cluster = cluster
        self.ready = ready
        self.killed = 0

    def __call__(self, progress: Progress) -> None:
        if progress.phase is RunPhase.SEARCH and self.ready() and not self.killed:
            self.killed = next(iter(self.cluster.pids().values()))
            os.kill(self.killed, signal.SIGKILL)


def test_a_killed_dask_worker_loses_nothing(given: KernelGraph, tmp_path: Path) -> None:
    whole = run_search(given, settings(workers=2), tmp_path / "whole")
    with Cluster("local:2", PRELOAD, environment=environment) as cluster:
        # Both workers are busy then: Slow's units wait for a file from the third one on.
        killer = Killer(cluster, lambda: all((shared(given) / f"waiting{unit}").exists() for unit in (2, 3)))

        def watch(progress: Progress) -> None:
            killer(progress)
            if killer.killed:
                (shared(given) / "go").touch()

        report = run_search(given, settings("Slow"), tmp_path / "run", executor=cluster, watch=watch)
        assert killer.killed
        assert gone([killer.killed])
    assert found(report) == found(whole)
    assert report.failed == ()
    attempts = [r.attempts for r in journaled(tmp_path / "run")]
    assert sorted(attempts) == [1] * (UNITS - 1) + [2]


def journaled(root: Path) -> list[UnitRecord]:
    return [decode(line, UnitRecord, "") for line in (root / SEARCH_FILE).read_bytes().splitlines()]


def test_units_that_kill_their_process_once_are_tried_again(two: Cluster, given: KernelGraph, tmp_path: Path) -> None:
    before = two.pids()
    report = run_search(given, settings("KilledOnce"), tmp_path / "run", executor=two)
    assert [(r.status, r.attempts) for r in journaled(tmp_path / "run")] == [("done", 2)] * UNITS
    assert found(report) == found(run_search(given, settings(workers=2), tmp_path / "whole"))
    assert two.pids() == before  # a task's crash is no crash of its dask worker


def test_a_poison_unit_is_reported_and_the_run_completes(two: Cluster, given: KernelGraph, tmp_path: Path) -> None:
    report = run_search(given, settings("Poison"), tmp_path / "run", executor=two)
    assert [(record.unit, record.attempts) for record in report.failed] == [(1, 3)]
    assert "exit code -9" in report.failed[0].error
    assert (report.summary.status, report.summary.units_done) == ("complete", UNITS - 1)
    assert report.results
    assert any("INCOMPLETE" in text for text in warnings(report))


def test_a_time_limit_ends_the_search_and_the_cluster_can_be_used_again(
    two: Cluster, given: KernelGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        clock = clock_of(changed, dispatch)

        def watch(progress: Progress) -> None:
            if (progress.phase, progress.done) == (RunPhase.SEARCH, 2):
                clock.ahead = 2 * HUNG_S

        chosen = settings("Slow", time_limit=HUNG_S)
        stopped = run_search(given, chosen, tmp_path / "run", executor=two, watch=watch)
    assert (stopped.summary.status, stopped.summary.units_done) == ("time-limit", 2)
    (shared(given) / "go").touch()
    resumed = run_search(given, settings("Slow", resume=True), tmp_path / "run", executor=two)
    assert resumed.summary.status == "complete"
    assert found(resumed) == found(run_search(given, settings("Slow"), tmp_path / "whole", executor=two))


def test_ctrl_c_keeps_what_was_found(two: Cluster, given: KernelGraph, tmp_path: Path) -> None:
    def press(progress: Progress) -> None:
        if (progress.phase, progress.done) == (RunPhase.SEARCH, 2) and not pressed:
            pressed.append(1)
            raise KeyboardInterrupt

    pressed: list[int] = []
    stopped = run_search(given, settings("Slow"), tmp_path / "run", executor=two, watch=press)
    assert (stopped.summary.status, stopped.summary.units_done) == ("interrupted", 2)
    assert stopped.results


# Stragglers


def test_a_straggler_is_computed_again_elsewhere_and_the_first_answer_wins(hurried: Cluster, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    list(hurried.run(identity, range(4), limit_s=60))  # so that no start of a process counts as a task's time
    outcomes = [o for o in hurried.run(hang_first, ["", "", "", path], limit_s=500) if o is not None]
    slow = [o for o in outcomes if isinstance(o, TaskOverdue)]
    assert slow[-1].again
    assert {o.index for o in slow} == {3}
    assert len(slow) <= 2
    done = {o.index: o for o in outcomes if isinstance(o, TaskDone)}
    assert (done[3].value, done[3].attempts) == (path, 2)
    assert gone([int(Path(path).read_text())])  # the slow one is not left behind
    assert [o.value for o in hurried.run(identity, [7], limit_s=60) if isinstance(o, TaskDone)] == [7]


def test_a_straggling_unit_is_shown_with_its_label(hurried: Cluster, given: KernelGraph, tmp_path: Path) -> None:
    seen: list[str] = []

    def watch(progress: Progress) -> None:
        seen.append(progress.remark)
        if progress.remark.startswith("slow: unit 5") and progress.remark.endswith("as well"):
            (shared(given) / "go").touch()

    report = run_search(given, settings("Straggling"), tmp_path / "run", executor=hurried, watch=watch)
    assert any(text.startswith("slow: unit 5 (unit 5): ") and "others" in text for text in report.remarks)
    assert any(text in describe_run(report) for text in report.remarks)
    assert report.remarks[-1] in seen
    assert found(report) == found(run_search(given, settings(workers=2), tmp_path / "whole"))


# The cluster's own end, and ours


def step_by_step(path: str) -> int:
    """Says 1, then 2, until the test leaves a file."""
    for step in (1, 2):
        with report_progress(lambda step=step: step):  # type: ignore[misc]
            while not Path(f"{path}{step}").exists():
                time.sleep(0.02)
    return 3


def test_a_cluster_hears_what_its_tasks_say(two: Cluster, tmp_path: Path) -> None:
    """While they compute, and no longer; of two tasks it knows which one says what."""
    paths, heard = [str(tmp_path / name) for name in "ab"], set()
    for outcome in two.run(step_by_step, paths, limit_s=HUNG_S):
        for index, said in two.said.items():
            heard.add((index, said))
            if (index, said) == (1, 1) or (0, 2) in heard:
                Path(f"{paths[1]}1").touch()
            if (1, 2) in heard:
                Path(f"{paths[0]}1").touch()
            if (index, said) in ((0, 2), (1, 2)):
                Path(f"{paths[index]}2").touch()
        if outcome is not None:
            assert getattr(outcome, "value", None) == 3
    assert heard == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert two.said == {}


def test_what_other_clients_and_other_tasks_say_is_not_taken(two: Cluster) -> None:
    two._hear((0.0, ("mirage_formal-another-1", pickle.dumps(9))))
    two._hear((0.0, (f"mirage_formal-{two._name}-999999", pickle.dumps(9))))
    assert two._told.qsize() == 1
    two._note_told()
    assert two.said == {}


def test_journals_of_a_cluster_have_samples(two: Cluster, given: KernelGraph, tmp_path: Path) -> None:
    """As those of one machine: states that a unit had visited by then, while it was searched."""
    states: list[int] = []

    def watch(progress: Progress) -> None:
        if progress.phase is RunPhase.SEARCH and (not states or progress.states > states[-1]):
            states.append(progress.states)
        if len(states) > UNITS + 3:
            (shared(given) / "go").touch()

    run_search(given, settings("Counting"), tmp_path / "run", watch=watch, executor=two)
    (unit,) = [one for one in journaled(tmp_path / "run") if one.unit == 2]
    assert unit.times is not None
    assert len(unit.times.samples) >= 2
    for (at, before, _), (then, behind, _) in pairwise(unit.times.samples):
        assert (at < then, before < behind) == (True, True)
    assert unit.times.begin <= unit.times.samples[0][0] <= unit.times.samples[-1][0] <= unit.times.end
    assert unit.times.samples[-1][1] <= unit.stats["states"]
    assert check([str(tmp_path / "run")]) == 0


def test_processes_of_a_local_cluster_end_with_it() -> None:
    cluster = Cluster("local:2")
    own = [o.value for o in cluster.run(nap_and_tell, [0.5, 0.5], limit_s=60) if isinstance(o, TaskDone)]
    pids = [*cluster.pids().values(), *own]
    assert len(set(pids)) == 4
    assert all(map(alive, pids))
    cluster.close()
    assert gone(pids)


def nap_and_tell(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


SCRIPT = """
print("main", flush=True)
from mirage_formal.workers.cluster import Cluster
from tests.workers.test_cluster import hang_first
cluster = Cluster("local:2")
print(*cluster.pids().values(), flush=True)
for outcome in cluster.run(hang_first, {paths!r}, limit_s=1000):
    pass
"""


def test_everything_ends_when_the_client_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    hanging = [tmp_path / "a", tmp_path / "b"]
    script.write_text(SCRIPT.format(paths=[str(path) for path in hanging]))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "main\n"
        pids = [int(pid) for pid in client.stdout.readline().split()]  # not "main" again: no worker imported the script
        end = time.monotonic() + HUNG_S
        while not all(path.is_file() and path.read_text() for path in hanging) and time.monotonic() < end:
            time.sleep(0.02)
        pids += [int(path.read_text()) for path in hanging]
        assert all(map(alive, pids))
        client.kill()
    assert len(set(pids)) == 4
    assert gone(pids)


def test_a_lost_scheduler_is_explained() -> None:
    with Cluster("local:1") as cluster:
        outcomes = cluster.run(nap, [0.0, 600.0], limit_s=1000)
        assert isinstance(next(o for o in outcomes if o is not None), TaskDone)
        assert cluster._host is not None
        os.killpg(cluster._host._process.pid, signal.SIGKILL)
        with pytest.raises(ClusterError, match="lost the scheduler") as caught:
            list(outcomes)
    assert "--resume" in caught.value.hint


def test_closings_of_the_client_that_meet_do_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has lost its scheduler closes itself; then its own ``close`` may raise."""
    with Cluster("local:1") as cluster:
        assert [outcome for outcome in cluster.run(nap, [0.0], limit_s=HUNG_S) if isinstance(outcome, TaskDone)]
        close, closed = cluster._client.close, []

        def meet(**given: Any) -> None:
            close(**given)
            closed.append(given)
            raise RuntimeError("Cannot change state of expiring Timeout")

        monkeypatch.setattr(cluster._client, "close", meet)
        host = cluster._host
        assert host is not None
    assert closed
    assert gone([host._process.pid])


# Mistakes


def test_an_address_that_nobody_listens_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", 1.0)
    with pytest.raises(ClusterError, match="expected a dask scheduler, got none") as caught:
        Cluster("tcp://127.0.0.1:9")
    assert caught.value.where == "tcp://127.0.0.1:9"
    assert "dask scheduler" in caught.value.hint


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"cluster": "127.0.0.1:8786"}, "expected one of tcp://, tls://, local:"),
        ({"cluster": "local:0"}, "expected local:N"),
        ({"cluster": "local:x"}, "expected local:N"),
        ({"cluster": "local:2", "workers": 2}, "expected workers or a cluster"),
        ({"worker_memory": 0.0}, "expected a positive finite number"),
        ({"workers": -1}, "expected a whole number from 1 up"),
    ],
)
def test_settings_that_make_no_sense(chosen: dict[str, object], said: str) -> None:
    with pytest.raises((ClusterError, SpaceError), match=said) as caught:
        make_executor(Settings(**chosen))  # type: ignore[arg-type]
    assert caught.value.hint


def test_without_the_package_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClusterError, match="not installed") as caught:
        make_executor(Settings(cluster="local:2"))
    assert "pip install 'distributed>=" in caught.value.hint


def test_workers_of_another_version_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"worker tcp://.*: expected process \d+, got \d+") as caught:
        Cluster("local:1", environment=process)
    assert "same" in caught.value.hint


def test_workers_without_the_package_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def environment():\n    return {}\n")
    command = [sys.executable, "-m", "mirage_formal.workers.cluster_host", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        address = host.stdout.readline().decode().strip()
        monkeypatch.syspath_prepend(str(tmp_path))
        from only_here import environment as foreign  # type: ignore[import-not-found]

        with pytest.raises(MirageError, match=r"expected mirage_formal to be installed, got .*ModuleNotFoundError"):
            Cluster(address, environment=foreign)
        host.stdin.close()
        host.wait(HUNG_S)


def test_a_worker_of_another_version_that_joins_later_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("MIRAGE_TEST_MARK", str(mark))
    with Cluster("local:2", environment=marked) as cluster:
        mark.touch()
        old = cluster.pids()
        os.kill(next(iter(old.values())), signal.SIGKILL)  # its nanny starts another in its place
        end = time.monotonic() + HUNG_S
        done = 0
        while not cluster.remarks and time.monotonic() < end:
            done += sum(isinstance(o, TaskDone) for o in cluster.run(nap, [0.1] * 4, limit_s=60))
        [remark] = cluster.remarks
        assert "expected mark none, got another" in remark
        assert not any(address in remark for address in old)
        assert done % 4 == 0
        assert [o.value for o in cluster.run(identity, [1, 2], limit_s=60) if isinstance(o, TaskDone)] == [1, 2]


def test_the_environment_names_code_and_data() -> None:
    ours = environment()
    assert ours["mirage_formal"] == "0.1.0"
    assert len(ours["code of mirage_formal"]) == len(ours["data files"]) == 64
    assert ours == environment()


def test_dask_is_loaded_only_for_a_cluster() -> None:
    modules = "mirage_formal.cli.app, mirage_formal.run.driver"
    script = f"import sys, {modules}; print({{'dask', 'distributed'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout == "set()\n"

"""The real engines through the whole pipeline: the same with any number of workers and whatever dies, and it checks."""

from __future__ import annotations

import os
import signal
from multiprocessing import forkserver
from pathlib import Path

import pytest

from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.verifier import faults
from mirage_formal.run.driver import run_search
from mirage_formal.run.progress import Progress, RunPhase
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings
from tests.kit.runs.fake_engine import program


def search(engine: str, out: Path, **more: object) -> RunReport:
    chosen = {"config": "tiny", "max_kernel_ops": 1, "max_block_ops": 3, "keep": 6, "workers": 2, **more}
    watch = chosen.pop("watch", lambda progress: None)
    return run_search(program(), Settings(engine=engine, **chosen), out, watch=watch)  # type: ignore[arg-type]


def found(report: RunReport) -> list[tuple[str, float]]:
    return [(item.digest, item.estimated_us) for item in report.summary.candidates]


class Killer:
    """Kills workers while they search, a few times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, progress: Progress) -> None:
        if progress.phase is RunPhase.SEARCH and self.left and (pids := workers()):
            self.left -= 1
            os.kill(pids[0], signal.SIGKILL)


def workers() -> list[int]:
    """The children of the server that this process forks its workers from."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    path = Path(f"/proc/{server}/task/{server}/children")
    return [int(pid) for pid in path.read_text().split()] if path.is_file() else []


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("engine", ["exhaustive", "guided"])
def test_engines_find_the_same_however_they_run(engine: str, tmp_path: Path) -> None:
    two = search(engine, tmp_path / "two")
    assert two.summary.rejected == ()
    assert len(two.results) == 6
    assert all(faults(result.graph) == [] for result in two.results)
    assert found(search(engine, tmp_path / "one", workers=1)) == found(two)
    killer = Killer(2)
    killed = search(engine, tmp_path / "killed", watch=killer)
    assert killer.left < 2
    assert found(killed) == found(two)
    assert check([str(tmp_path / "killed")]) == 0


def test_engines_agree_on_what_is_best(tmp_path: Path) -> None:
    assert found(search("guided", tmp_path / "a")) == found(search("exhaustive", tmp_path / "b"))


def test_without_pruning_nothing_is_lost(tmp_path: Path) -> None:
    plain = search("exhaustive", tmp_path / "a", max_block_ops=2, keep=1000)
    unpruned = search("exhaustive", tmp_path / "b", max_block_ops=2, keep=1000, prune=False)
    assert {digest for digest, _ in found(plain)} <= {digest for digest, _ in found(unpruned)}
    assert "expression" not in unpruned.summary.pruned
    assert plain.summary.pruned["expression"] > 0

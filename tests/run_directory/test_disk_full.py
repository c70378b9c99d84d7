"""A full disk at every write of a run: an error on one screen, and --resume completes it once there is room."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check.__main__ import main as check
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.save import save_built
from mirage_formal.run.driver import run_search
from mirage_formal.run.executors import make_executor
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings
from mirage_formal.run.verify.verdicts import VerifiedGraph, write_verdicts
from mirage_formal.support.errors import RunError
from mirage_formal.workers.dispatch import Executor
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S
from tests.kit.runs.fake_engine import program
from tests.kit.sampling import THOROUGH, share

FAKE: dict[str, Any] = {"config": "tiny", "keep": 1, "workers": 1, "engine": "tests.kit.runs.fake_engine:FakeEngine"}


class Disk:
    """Below a directory, the n-th thing that needs room fails, and everything after it: half of a write gets through.

    Attributes:
        used: How many things have needed room.
    """

    def __init__(self, root: Path, room: int) -> None:
        self.root = str(root)
        self.room = room
        self.used = 0

    def take(self) -> bool:
        """Whether there is no room for one more."""
        self.used += 1
        return self.used > self.room

    def full(self, path: object = None) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    @contextmanager
    def mounted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
        real_open, real_mkdir = io.open, os.mkdir

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            ours = isinstance(file, str | Path) and str(file).startswith(self.root) and set(mode) & set("wxa+")
            if ours and not os.path.exists(file) and self.take():
                raise self.full(str(file))  # no room for a name
            found = real_open(file, mode, *arguments, **options)
            return Tight(found, self) if ours else found

        def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
            if str(path).startswith(self.root) and not os.path.exists(path) and self.take():
                raise self.full(str(path))
            real_mkdir(path, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(io, "open", opened)
            patch.setattr(os, "mkdir", mkdir)
            yield self


class Tight:
    """A file on such a disk."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def write(self, data: Any) -> int:
        if self._disk.take():
            self._file.write(data[: len(data) // 2])
            raise self._disk.full()
        written: int = self._file.write(data)
        return written

    def __enter__(self) -> Tight:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor[Any]]:
    with make_executor(Settings(**FAKE)) as made:
        yield made


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return run_search(program(), Settings(**FAKE), tmp_path_factory.mktemp("usual") / "run")


def full(action: Callable[[], object]) -> str | None:
    """Do something that may meet a full disk; the name of the file for which there was no room."""
    try:
        action()
    except RunError as error:
        return error.where if os.strerror(errno.ENOSPC) in error.what else "another error"
    except OSError as error:
        return Path(error.filename).name if error.errno == errno.ENOSPC else "another error"
    return None


def digests(report: RunReport) -> list[str]:
    return [item.digest for item in report.summary.candidates]


@pytest.mark.usefixtures("check_mostly_here")
@pytest.mark.slow
def test_a_run_meets_a_full_disk_at_every_write(
    usual: RunReport,
    workers: Executor[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exhaustive: room for 0, 1, 2 ... writes, until there is enough for the whole run.

    Every one is met in ``make test`` as well, but only what every second one leaves is resumed and checked.
    """
    places = set()
    for room in range(1000):
        root = tmp_path / str(room) / "run"
        root.parent.mkdir()
        disk = Disk(root.parent, room)
        with disk.mounted(monkeypatch):
            named = full(lambda: run_search(program(), Settings(**FAKE), root, executor=workers))  # noqa: B023
        if named is None:
            break
        places.add(named)
        assert not list(root.parent.rglob("*.tmp"))  # what was begun gives its room back
        assert not (root / ".candidates").exists()
        if room % 2 and not THOROUGH:
            continue
        resume = (root / "run.json").is_file()
        found = run_search(program(), Settings(**FAKE, resume=resume), root, executor=workers)
        assert (found.summary.status, digests(found)) == ("complete", digests(usual))
        assert check([str(root), "--jobs", "1"]) == 0, room
    assert room > 20
    assert "another error" not in places
    assert {"run.json", "search.jsonl", "summary.json", "proof.jsonl", "manifest.json", ".run.lock"} <= places
    capsys.readouterr()


def test_kernels_that_do_not_fit_leave_the_earlier_ones(
    usual: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(usual.results[0].graph, program(), load_target("h200"))
    place = tmp_path / "kernels" / "001-0123456789ab"
    save_built(built, place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    for room in range(1000):
        with Disk(tmp_path, room).mounted(monkeypatch):
            if full(lambda: save_built(built, place)) is None:
                break
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert room > 5


def test_verdicts_that_do_not_fit_are_named(usual: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = VerifiedGraph(0, usual.results[0].graph, Equivalent(b"{}", ()), 0.0)

    def judged(root: Path) -> None:
        with write_verdicts(root, "x", usual.results[0].graph) as keep:
            keep(one)

    for room in range(100):
        root = tmp_path / str(room) / "out"
        root.parent.mkdir()
        with Disk(root.parent, room).mounted(monkeypatch):
            if full(lambda: judged(root)) is None:  # noqa: B023
                break
        assert not list(root.parent.rglob("*.tmp"))
    assert room >= 5


TINY = """
set -e
mount -t tmpfs -o size={size} none {place}
cd {repository}
{python} -m mirage_formal.search {file} --config tiny --keep 1 --workers 1 \
    --engine tests.kit.runs.fake_engine:FakeEngine --out {place}/run && exit 9
test $? -eq 2
mount -o remount,size=4m {place}
if test -f {place}/run/run.json; then resume=--resume; fi
{python} -m mirage_formal.search {file} --config tiny --keep 1 --workers 1 \
    --engine tests.kit.runs.fake_engine:FakeEngine --out {place}/run $resume
{python} -m mirage_formal.check {place}/run --jobs 1
"""

PROGRAM = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16)
W = graph.new_input(dims=(8, 8), dtype=mf.float16)
graph.mark_output(graph.exp(graph.matmul(X, W)))
"""


def can_mount() -> bool:
    """Whether this process may have mounts of its own."""
    script = "mount -t tmpfs none /mnt"
    try:
        return subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted")
@pytest.mark.parametrize("pages", share([8, 2, 24], 3, 0))
def test_a_disk_that_is_really_full(tmp_path: Path, pages: int) -> None:
    """In a mount namespace of its own, so that nothing has to be unmounted."""
    place, file = tmp_path / "disk", tmp_path / "one.py"
    place.mkdir()
    file.write_text(PROGRAM)
    script = TINY.format(size=4096 * pages, place=place, repository=REPOSITORY, python=sys.executable, file=file)
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "No space left on device" in done.stderr
    assert "make room there" in done.stderr
    assert "Traceback" not in done.stderr

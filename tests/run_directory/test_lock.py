"""One writer for an output directory: the second one is told who the first one is, and nothing else happens."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from mirage_formal.cache import lock as module
from mirage_formal.cache.lock import LockWarning, lock_directory
from mirage_formal.check.__main__ import main as check
from mirage_formal.support.errors import RunError
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S
from tests.kit.sampling import number

PROGRAM = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16)
W = graph.new_input(dims=(8, 8), dtype=mf.float16)
graph.mark_output(graph.exp(graph.matmul(X, W)))
"""
FAKE = ("--engine", "tests.kit.runs.fake_engine:FakeEngine", "--config", "tiny", "--keep", "2", "--workers", "1")
#: Holds a directory until its input ends.
HOLD = """
import sys
from pathlib import Path
from mirage_formal.cache.lock import lock_directory
with lock_directory(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_writes(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with holder(root) as process:
        with pytest.raises(RunError) as caught, lock_directory(root):
            raise AssertionError("two writers")
        said = str(caught.value)
        assert f"process {process.pid} on " in said
        assert "since 20" in said
        assert "hint: wait" in said
        process.communicate("")
    with lock_directory(root):
        pass
    assert list(tmp_path.iterdir()) == []  # neither the lock nor a directory is left


def test_a_killed_writer_is_no_obstacle(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with holder(root) as process:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (tmp_path / ".run.lock").is_file()
    with lock_directory(root):
        assert json.loads((tmp_path / ".run.lock").read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def refused_in_a_thread(root: Path) -> str:
    """What another thread of this process is told that wants to write to a directory."""
    said: list[str] = []

    def second() -> None:
        with pytest.raises(RunError) as error, lock_directory(root):
            pass
        said.append(error.value.what)

    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    assert len(said) == 1
    return said[0]


def test_who_has_a_directory_has_what_is_below_and_other_threads_do_not(tmp_path: Path) -> None:
    with (
        lock_directory(tmp_path / "run"),
        lock_directory(tmp_path / "run" / "parts" / "01"),
        lock_directory(tmp_path / "run"),
    ):
        assert f"process {os.getpid()} on" in refused_in_a_thread(tmp_path / "run")


def test_another_path_to_the_same_directory_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with holder(tmp_path / "real") as process:
        with pytest.raises(RunError, match=f"process {process.pid}"), lock_directory(tmp_path / "link"):
            raise AssertionError("two writers")
        process.communicate("")


@pytest.mark.parametrize("content", [b"all I have\n", b'{"pid": 1}\n'])
def test_a_file_of_the_users_is_no_lock(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ".run.lock"
    path.write_bytes(content)
    with pytest.raises(RunError, match="expected a lock of an earlier search"), lock_directory(tmp_path / "run"):
        raise AssertionError("locked")
    assert path.read_bytes() == content
    path.unlink()
    path.symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(RunError, match="expected a lock of an earlier search"), lock_directory(tmp_path / "run"):
        raise AssertionError("locked")
    assert path.is_symlink()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EROFS])
def test_without_locks_this_machine_is_kept_out_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()

    class NoLocks(FileLock):
        def acquire(self, *arguments: Any, **options: Any) -> Any:
            if Path(self.lock_file).parent != tmp_path / "tmp":
                raise OSError(number, os.strerror(number))
            return super().acquire(*arguments, **options)

    monkeypatch.setattr(module, "FileLock", NoLocks)
    first = lock_directory(tmp_path / "run")
    with pytest.warns(LockWarning, match="only searches of this user on this machine"):
        first.__enter__()
    said = refused_in_a_thread(tmp_path / "run")
    first.__exit__(None, None, None)
    assert "so does process" in said
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_long_name_has_a_lock(tmp_path: Path) -> None:
    with lock_directory(tmp_path / ("x" * 250)), pytest.raises(RunError), holder_fails(tmp_path / ("x" * 250)):
        raise AssertionError("two writers")


def holder_fails(root: Path) -> Any:
    """``lock_directory`` in a thread's place: a context of its own."""
    import contextvars

    return contextvars.Context().run(lambda: _entered(root))


def _entered(root: Path) -> Any:
    context = lock_directory(root)
    context.__enter__()
    return context


def race(root: Path) -> None:
    """Two searches at once into one directory: one wins, the other says why, and what is there holds."""
    file = root.parent / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mirage_formal.search", str(file), *FAKE, "--out", str(root)]
    both = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=HUNG_S) for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 2], said
    errors = said[codes.index(2)][1]
    winner = both[codes.index(0)]
    if "a finished run" not in errors:  # the second came while the first was there
        assert f"so does process {winner.pid} on" in errors
    assert check([str(root), "--jobs", "1"]) == 0
    assert not (root.parent / f".{root.name}.lock").exists()


@pytest.mark.slow
def test_of_two_searches_into_one_directory_one_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at in range(int(os.environ.get("MIRAGE_RACES", number(1, 3)))):
        (tmp_path / str(at)).mkdir()
        race(tmp_path / str(at) / "run")
    capsys.readouterr()


def test_a_lock_that_is_written_meanwhile_is_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts has an empty file first, which is not foreign because it is written a moment later."""
    path, opened = tmp_path / ".run.lock", Path.open
    path.touch()

    def read_then_written(self: Path, mode: str = "r", *given: Any, **named: Any) -> Any:
        if self != path or mode != "rb":
            return opened(self, mode, *given, **named)
        with opened(path, "rb") as file:
            data = file.read()
        with opened(path, "wb") as file:
            file.write(b'{"mirage_formal":"lock"')
        return io.BytesIO(data)

    monkeypatch.setattr(Path, "open", read_then_written)
    module._refuse_foreign(path)
    assert path.stat().st_size > 0

"""Every command ends in order, whatever happens: no traceback, an exit code, and what is finished is kept."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mirage_formal.check.__main__ import main as check
from mirage_formal.support import guard
from mirage_formal.support.errors import RunError
from mirage_formal.support.guard import StopSignal, keep_results_on_stop, run_main
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
FAKE = ("--engine", "tests.kit.runs.fake_engine:FakeEngine", "--config", "tiny", "--keep", "1", "--workers", "1")

# --- what went wrong, in this process ---------------------------------------------------------------------------------


def ended(main: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as caught:
        run_main(main)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 20
    return caught.value.code, said


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def main() -> NoReturn:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 2, ("runs/x", "No space", "--resume")),
        (OSError(errno.EROFS, "Read-only file system", "runs/x"), 2, ("runs/x", "Read-only", "another place")),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, ("Permission denied", "permissions")),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, ("xxx", "shorter name")),
        (OSError(errno.ENOENT, "No such file or directory", b"/proc/\xff"), 2, ("/proc/\\udcff", "check the path")),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 2, ("the system", "fewer --workers")),
        (MemoryError(), 2, ("enough memory", "--workers")),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"), 2, ("a\\udcff", "rename")),
        (RunError("expected a, got b", where="x", hint="do c"), 2, ("error: x: expected a, got b", "hint: do c")),
        (KeyboardInterrupt(), 130, ("interrupted",)),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ()),
        (TypeError("bad\noperand"), 70, ("bug of mirage_formal: TypeError: bad at", "MIRAGE_FORMAL_DEBUG=1")),
        (AssertionError(), 70, ("AssertionError",)),
        (SystemExit(3), 3, ()),
        (SystemExit("words"), 1, ("words",)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_goes_wrong_is_one_screen(
    error: BaseException, code: int, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    got, said = ended(raising(error), capsys)
    assert got == code
    assert all(word in said for word in words), said
    assert bool(said) is bool(words)


def test_a_debug_variable_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(guard.DEBUG, "1")
    with pytest.raises(SystemExit):
        run_main(raising(OSError(errno.EIO, "Input/output error", "x")))
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_ctrl_c_with_a_code_of_their_own(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    met: list[KeyboardInterrupt] = []

    def main() -> int:
        try:
            with keep_results_on_stop("--resume continues"):
                signal.raise_signal(number)
                time.sleep(60)
        except KeyboardInterrupt as interrupt:
            met.append(interrupt)
            return 130  # what a search that has written what it found returns
        return 0

    before = signal.getsignal(number)
    assert ended(main, capsys) == (128 + number, "")
    assert [(type(one), one.args) for one in met] == [(StopSignal, (number,))]
    assert ended(lambda: signal.raise_signal(number), capsys)[0] == 128 + number
    assert signal.getsignal(number) is before


def test_an_interrupt_in_a_destructor_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    class Slow:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0)

    def main() -> int:
        with keep_results_on_stop():
            thing = Slow()
            del thing
            time.sleep(60)
        return 0

    assert ended(main, capsys) == (130, "interrupted\n")


def test_an_exception_that_an_interrupt_has_become_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("numpy.core.multiarray failed to import") from None

    assert ended(main, capsys) == (143, "interrupted\n")


def test_ignored_signals_stay_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ended(lambda: signal.raise_signal(signal.SIGHUP), capsys) == (0, "")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_warnings_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning("mind this", UserWarning, "x.py", 1)

    assert ended(main, capsys) == (0, "warning: mind this\n")


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a program that the engine of tests finds candidates for."""
    root = tmp_path_factory.mktemp("guard")
    (root / "one.py").write_text(PROGRAM)
    done = command("mirage_formal.search", "one.py", *FAKE, "--out", "run", cwd=root)
    assert done.returncode == 0, done.stderr
    return root / "run"


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}


def command(module: str, *arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[Any]:
    options = {"env": environment(), "capture_output": True, "text": True, "timeout": 300, **options}
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=cwd, **options)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("x" * 300, ("File name too long", "shorter name")),
        ("/proc/runs", ("/proc/", "error: ")),
        ("/proc/self/fd/runs", ("error: ",)),
        ("/dev/null/runs", ("/dev/null", "a file is where a directory has to be")),
        ("one.py/runs", ("one.py", "a file is where a directory has to be")),
    ],
)
def test_places_that_cannot_be_written(out: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(PROGRAM)
    done = command("mirage_formal.search", "one.py", *FAKE, "--out", out, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in (*words, "hint: "))


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    done = command("mirage_formal.search", f"{name}.py", *FAKE, cwd=tmp_path, text=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert b"caf\\udce9" in done.stdout
    again = command("mirage_formal.search", f"{name}.py", *FAKE, cwd=tmp_path, text=False)
    assert (again.returncode, b"Traceback" in again.stderr) == (2, False)
    held = command("mirage_formal.check", f"runs/{name}", cwd=tmp_path, text=False)
    assert (held.returncode, b"Traceback" in held.stderr) == (0, False), held.stderr


def test_a_reader_that_leaves_is_no_error(finished: Path) -> None:
    script = f"{sys.executable} -m mirage_formal.check {finished} --jobs 1 | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment(), timeout=HUNG_S)
    assert (done.stdout.strip(), done.stderr) == ("141", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_output_that_is_full_is_said(finished: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = command(
            "mirage_formal.check",
            str(finished),
            "--jobs",
            "1",
            cwd=finished,
            stdout=full,
            stderr=-1,
            capture_output=False,
        )
    assert done.returncode == 2
    assert "output: expected to " in done.stderr
    assert "got: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


# Ctrl-C at any moment: a profile function counts calls in the command's own process, and at one of them the whole
# process group gets the signal, as from a terminal.

COUNTER = """
import os, signal, sys
if "MOMENT" in os.environ and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("mirage_formal"):
    left = [int(os.environ["MOMENT"]), 0, False]
    def count(frame, event, argument):
        left[1] += 1
        left[2] = left[2] or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        if left[0] >= 0 and left[2]:  # before that Python starts, and reads the first lines of the package
            left[0] -= 1
            if left[0] < 0:
                os.killpg(0, int(os.environ["SIGNAL"]))
    if left[0] < 0:
        import atexit
        atexit.register(lambda: print(f"calls {left[1]}", file=sys.stderr))
    sys.setprofile(count)
"""


def stopped(place: Path, arguments: list[str], cwd: Path, moment: int, number: signal.Signals) -> tuple[int, str]:
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(COUNTER)
    path = os.pathsep.join([str(place), str(REPOSITORY)])
    env = environment(PYTHONPATH=path, MOMENT=str(moment), SIGNAL=str(int(number)))
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        _, errors = process.communicate(timeout=HUNG_S)
    return process.returncode, errors


COMMANDS = {
    "search": ["mirage_formal.search", "one.py", *FAKE],
    "check": ["mirage_formal.check", "run", "--jobs", "2"],
    "build": ["mirage_formal.kernel_build", "run", "--count", "1", "--arch", "none"],
    "verify": ["mirage_formal.verify", "one.py", "graph.json"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_moment(name: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "one.py").write_text(PROGRAM)
    shutil.copy(next((finished / "candidates").glob("001-*")) / "mugraph.json", tmp_path / "graph.json")
    code, errors = stopped(tmp_path / "site", COMMANDS[name], tmp_path, -1, signal.SIGINT)
    calls = int(errors.split("calls ")[-1])
    assert calls > 10_000
    moments = int(os.environ.get("MIRAGE_MOMENTS", number(3, 6)))  # each of three signals
    seen = set()
    for part in range(moments):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        sent = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[part % 3]
        moment = calls * part // moments
        code, errors = stopped(tmp_path / "site", COMMANDS[name], tmp_path, moment, sent)
        assert "Traceback" not in errors, (moment, errors)
        assert "Exception ignored" not in errors, (moment, errors)
        assert code in (128 + sent, 0), (moment, code, errors)
        seen.add(code == 0)
        if name == "search" and (tmp_path / "runs" / "one" / "run.json").is_file():
            again = command("mirage_formal.search", "one.py", *FAKE, "--resume", cwd=tmp_path)
            assert again.returncode == 0, (moment, again.stderr)
    assert False in seen
    assert check([str(tmp_path / "run"), "--jobs", "1"]) == 0


def alive(group: int) -> list[int]:
    """Processes of a group, but for those that have ended and nobody has asked about."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, owner = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(owner) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_command_alone_ends_its_workers_too(number: signal.Signals, tmp_path: Path) -> None:
    """As ``kill`` and a batch system send it: what was found is written, and nobody is left behind."""
    name = f"G{os.getpid()}{number.name}"
    (tmp_path / "one.py").write_text(PROGRAM.replace("X = ", f"{name} = ").replace("X, W", f"{name}, W"))
    arguments = ["one.py", "--engine", "tests.kit.runs.fake_engine:Slow", *FAKE[2:]]
    with subprocess.Popen(
        [sys.executable, "-m", "mirage_formal.search", *arguments],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        journaled = tmp_path / "runs" / "one" / "search.jsonl"
        while process.poll() is None and not (journaled.is_file() and journaled.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        assert len(alive(process.pid)) > 1
        process.send_signal(number)
        output, errors = process.communicate(timeout=HUNG_S)
    assert process.returncode == 128 + number, errors
    assert "Interrupted; --resume continues" in output
    assert "Traceback" not in errors
    for _ in range(3000):  # the server of the workers ends when it sees that nobody needs it
        if not alive(process.pid):
            break
        time.sleep(0.02)
    assert alive(process.pid) == []
    assert check([str(tmp_path / "runs" / "one"), "--jobs", "1"]) == 0


def test_a_command_that_ends_quickly_flushes_calls_exit_functions_and_takes_nothing_apart() -> None:
    script = """
import atexit, sys
from mirage_formal.support.guard import end_quickly

class Value:
    def __del__(self):
        print("taken apart")

kept = Value()
atexit.register(lambda: print("exit function"))

def main():
    print("main")
    sys.exit(3)

end_quickly(main)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY)
    assert (done.returncode, done.stdout.split("\n"), done.stderr) == (3, ["main", "exit function", ""], "")

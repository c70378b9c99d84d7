"""Client of the solver processes: separate processes that may crash, hang or use up memory without harm to this one.

Every thread that asks has one such process, started when it first asks and replaced after a failure. The process has
its own POSIX session, so that an interrupt from the terminal does not reach it. It ends when the process that started
it has ended and its question is answered. A request is a list of questions, as JSON with its length before it; the
replies come one by one. A late or malformed reply is an unknown answer with the reason, and the process is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, Literal, TypeVar

import msgspec

from mirage_formal.logic.script import Script
from mirage_formal.support.limits import CHILD_CPU_S, CHILD_MEMORY, GRACE_S, START_S

Solver = Literal["z3", "cvc5"]
T = TypeVar("T")

_PACKAGES: Final[Mapping[str, str]] = {"z3": "z3-solver", "cvc5": "cvc5"}
#: Search paths of the dynamic linker; nothing else of our environment goes to the process.
_LINKER: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
#: The program that the process runs. It does not execute this package's __init__, which loads modules it does not need.
_BOOT: Final = """import json, sys, types
sys.path[:] = json.loads(sys.argv[3])
package = sys.modules["mirage_formal"] = types.ModuleType("mirage_formal")
package.__path__ = [sys.argv[4]]
from mirage_formal.logic.solver_subprocess import main
main()"""
_HEADER: Final = struct.Struct("<Q")
_MAX_REPLY: Final = 1 << 20
_PACKAGE: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class SolverQuery:
    """A script for one solver.

    Attributes:
        solver: The solver to ask.
        script: The script.
        timeout_ms: The solver's own limit.
        tactics: Of z3, in order; none for its default.
        values: Constants whose values are wanted where it is satisfiable, of z3.
    """

    solver: Solver
    script: Script
    timeout_ms: int
    tactics: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


class SolverReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reply of a solver process; the answer is ``unknown``, with a reason, also if the solver failed in any way.

    ``processor_ms`` is processor time; if the process died before it could report that, it is wall time.
    """

    answer: Literal["sat", "unsat", "unknown"]
    reason: str
    milliseconds: float
    processor_ms: float
    version: str = ""
    model: dict[str, int] = {}
    worn: bool = False


class _ProcessGone(Exception):
    """Error of a process that does not answer any more, with the reason."""


class SolverProcess:
    """Client of the solver process of one thread.

    Sound: it takes scripts only, which are text that this project printed; whatever happens to the process, an answer
    that it did not give is unknown.

    Args:
        boot: The Python program that the process runs.
        memory: Bytes of its address space.
        cpu_s: Seconds of processor time of its life.
        grace_s: Seconds beyond a question's own limit after which it is killed.
    """

    def __init__(
        self, boot: str = _BOOT, memory: int = CHILD_MEMORY, cpu_s: int = CHILD_CPU_S, grace_s: float = GRACE_S
    ) -> None:
        self._boot = boot
        self._bounds = memory, cpu_s
        self._grace_s = grace_s
        self._child: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., SolverProcess] | None = None
        self._versions: dict[str, str] = {}
        self._buffer = bytearray()

    def ask(self, questions: Sequence[SolverQuery]) -> list[SolverReply]:
        """Return one answer to each question, in order."""
        said: list[SolverReply] = []
        while len(said) < len(questions):
            said += self._some(questions[len(said) :])
        return said

    def start(self) -> None:
        """Start the process, if it is not running, without waiting until it has loaded the solvers.

        If it cannot be started, the next question says so.
        """
        with suppress(_ProcessGone):
            self._launch()

    @property
    def pid(self) -> int | None:
        """Return the process id, if there is a process."""
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self._end is not None:
            self._end()
        self._child, self._end = None, None
        self._buffer.clear()

    def _some(self, questions: Sequence[SolverQuery]) -> list[SolverReply]:
        """Return answers to the first questions, at least one, until the process fails or is worn out."""
        said: list[SolverReply] = []
        begin = monotonic()
        try:
            self._start()
            begin = monotonic()
            self._send(questions)
            for question in questions:
                begin = monotonic()
                until = begin + question.timeout_ms / 1e3 + self._grace_s
                said.append(_decode_reply(self._receive(until), SolverReply))
                if said[-1].worn:
                    self.close()
                    break
        except _ProcessGone as gone:
            self.close()
            solver = questions[len(said)].solver
            reason = f"{solver}: {gone}"[:300]
            passed = 1e3 * (monotonic() - begin)
            said.append(SolverReply("unknown", reason, passed, passed))
        except BaseException:  # an interrupt: what the process says next would be taken for another question's answer
            self.close()
            raise
        known = self._versions
        return [
            one if one.version else msgspec.structs.replace(one, version=known.get(asked.solver) or _version(asked))
            for one, asked in zip(said, questions, strict=False)
        ]

    # --- the process -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._launch()
        if not self._versions:
            self._versions = _decode_reply(self._receive(monotonic() + START_S), dict[str, str])

    def _launch(self) -> None:
        if self._child is not None and self._child.poll() is None:
            return
        self.close()
        self._versions = {}
        path = [entry for entry in sys.path if os.path.isabs(entry)]
        bounds = (str(bound) for bound in self._bounds)
        arguments = [*bounds, json.dumps(path), str(_PACKAGE)]
        environment = {name: os.environ[name] for name in _LINKER if name in os.environ}
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", self._boot, *arguments],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environment, "LC_ALL": "C", "MALLOC_ARENA_MAX": "2"},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _ProcessGone(f"its process cannot be started: {error}") from None
        self._end = weakref.finalize(self, _end_process, self._child, os.getpid())
        assert self._child.stdin is not None
        os.set_blocking(self._child.stdin.fileno(), False)

    def _send(self, questions: Sequence[SolverQuery]) -> None:
        assert self._child is not None and self._child.stdin is not None
        data = json.dumps(
            [
                {
                    "solver": one.solver,
                    "text": one.script.text,
                    "assertions": one.script.assertions,
                    "timeout_ms": one.timeout_ms,
                    "tactics": one.tactics,
                    "values": one.values,
                }
                for one in questions
            ]
        ).encode()
        left = memoryview(_HEADER.pack(len(data)) + data)
        until = monotonic() + START_S
        target = self._child.stdin.fileno()
        while left:
            self._wait(target, select.POLLOUT, until)
            try:
                left = left[os.write(target, left) :]
            except BlockingIOError:
                continue
            except OSError:
                raise _ProcessGone(self._why()) from None

    def _receive(self, until: float) -> bytes:
        size = _HEADER.unpack(self._exactly(_HEADER.size, until))[0]
        if size > _MAX_REPLY:
            raise _ProcessGone("its process sent what is no reply")
        return self._exactly(size, until)

    def _exactly(self, count: int, until: float) -> bytes:
        assert self._child is not None and self._child.stdout is not None
        source = self._child.stdout.fileno()
        while len(self._buffer) < count:
            self._wait(source, select.POLLIN, until)
            more = os.read(source, 1 << 16)
            if not more:
                raise _ProcessGone(self._why())
            self._buffer += more
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _wait(self, descriptor: int, event: int, until: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, 1e3 * (until - monotonic()))):
            raise _ProcessGone("it did not answer in time, and its process was killed")

    def _why(self) -> str:
        """Return a message about how the solver process ended."""
        assert self._child is not None
        try:
            code = self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            return "its process does not answer any more"
        if code == -signal.SIGXCPU:
            return "its process used up its processor time"
        if code < 0:
            return f"its process crashed ({signal.Signals(-code).name})"
        return f"its process ended with exit code {code}"


def _decode_reply(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _ProcessGone("its process sent what is no reply") from None


def _version(question: SolverQuery) -> str:
    """Return the installed version of a solver whose process did not report it."""
    from importlib import metadata  # loads much, and few processes need it

    try:
        return metadata.version(_PACKAGES[question.solver])
    except metadata.PackageNotFoundError:
        return "none"


def _end_process(child: subprocess.Popen[bytes], owner: int) -> None:
    """Close the pipes of a process, and kill it if this process started it; after a fork, a copy only has the pipes."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    if os.getpid() == owner:
        child.kill()
        child.wait()
    else:
        child.returncode = 0


class _ThreadSolvers(threading.local):
    """Thread-local solver process, and the id of the process that started it."""

    solvers: SolverProcess | None = None
    owner: int = 0


_HERE: Final = _ThreadSolvers()


def thread_solvers() -> SolverProcess:
    """Return the solver process of this thread; after a fork, a new one."""
    if _HERE.solvers is None or _HERE.owner != os.getpid():
        if _HERE.solvers is not None:
            _HERE.solvers.close()
        _HERE.solvers, _HERE.owner = SolverProcess(), os.getpid()
    return _HERE.solvers

"""Run of all problems, each in a process of its own with a time limit, and their table."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.records import write_atomic
from mirage_formal.torch.integrations.kernelbench.markdown_table import markdown
from mirage_formal.torch.integrations.kernelbench.outcome import OutcomeTable, ProblemOutcome, SolveRequest
from mirage_formal.torch.integrations.kernelbench.problems import ProblemFile

#: Files written to the output directory.
TABLE_FILE: Final = "table.json"
TEXT_FILE: Final = "table.markdown"
EVIDENCE: Final = "evidence"
WRITTEN: Final = "ModelNew"
#: Share of a problem's time for its searches; the rest is for the import and the trials.
_SEARCH_SHARE: Final = 0.6
_COMMAND: Final = (sys.executable, "-m", "mirage_formal.torch.integrations.kernelbench.problem_subprocess")
_SAID: Final = 300


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run, as the user asks for them.

    Attributes:
        out: The directory to write.
        largest: Bound of the problems' numbers; 0 leaves them as they are.
        elements: Most elements of a problem that is computed.
        trials: Trials of correctness.
        limit_s: Seconds for one problem.
        jobs: Problems at a time.
        target: The GPU to rank for.
        cache: Whether searches are recalled from the user's cache.
    """

    out: Path
    largest: int = 64
    elements: int = 1 << 24
    trials: int = 5
    limit_s: float = 180.0
    jobs: int = 1
    target: str = "h200"
    cache: bool = True


def run_problems(
    problems: Sequence[ProblemFile],
    asked: RunOptions,
    watch: Callable[[ProblemOutcome, int], None] = lambda one, count: None,
) -> tuple[ProblemOutcome, ...]:
    """Solve problems, in their order; a problem that fails, hangs or crashes is reported as an outcome too.

    Args:
        problems: The problems.
        asked: Options of the run.
        watch: Callback with each outcome, and the number of outcomes so far.
    """
    found: list[ProblemOutcome] = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        running: set[subprocess.Popen[bytes]] = set()
        try:
            for outcome in pool.map(lambda problem: _solve_problem(problem, asked, running), problems):
                found.append(outcome)
                watch(outcome, len(found))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                _kill(process)
            raise
    return tuple(found)


def _solve_problem(problem: ProblemFile, asked: RunOptions, running: set[subprocess.Popen[bytes]]) -> ProblemOutcome:
    place = (asked.out / EVIDENCE / problem.name).resolve()
    place.mkdir(parents=True, exist_ok=True)
    answer = place / "answer.json"
    answer.unlink(missing_ok=True)
    job = SolveRequest(
        problem=problem.name,
        file=str(problem.path.resolve()),
        place=str(place),
        written=str((asked.out / WRITTEN / f"{problem.name}.py").resolve()),
        answer=str(answer),
        largest=asked.largest,
        elements=asked.elements,
        trials=asked.trials,
        search_s=asked.limit_s * _SEARCH_SHARE,
        target=asked.target,
        cache=asked.cache,
    )
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # a problem file may print anything
        stderr=subprocess.PIPE,
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )
    running.add(process)
    try:
        _, said = process.communicate(msgspec.json.encode(job), timeout=asked.limit_s)
        ended = "" if process.returncode == 0 else f"its process ended with {process.returncode}: {_last_line(said)}"
    except subprocess.TimeoutExpired:
        ended = f"not finished after {asked.limit_s:g} seconds"
    finally:
        _kill(process)
        running.discard(process)
    return _read_outcome(answer, problem, ended)


def _read_outcome(answer: Path, problem: ProblemFile, ended: str) -> ProblemOutcome:
    """Read the outcome that a process wrote before it ended; ``ended`` becomes its error unless it is empty."""
    found = ProblemOutcome(problem=problem.name, imported="error")
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode(answer.read_bytes(), type=ProblemOutcome)
    answer.unlink(missing_ok=True)
    return msgspec.structs.replace(found, error=ended) if ended else found


def _last_line(said: bytes) -> str:
    return (said.decode(errors="replace").strip().splitlines() or [""])[-1][:_SAID]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, which form a session of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def write_table(table: OutcomeTable, out: Path) -> None:
    """Write the table, as JSON and as text."""
    write_atomic(out / TABLE_FILE, msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")
    write_atomic(out / TEXT_FILE, markdown(table).encode())


__all__ = ["EVIDENCE", "TABLE_FILE", "TEXT_FILE", "WRITTEN", "RunOptions", "run_problems", "write_table"]

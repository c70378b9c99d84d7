"""Emulation of one candidate, at reduced or its own extents, in a process with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from mirage_formal.codegen.numerics.result_comparison import SCALES
from mirage_formal.codegen.numerics.shrink import ShrunkPair, shrink
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import EmulationFault
from mirage_formal.emulate.cases import EmulationCase
from mirage_formal.emulate.runner import amount_of_work, compare_on_emulator
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels, KernelRejected
from mirage_formal.records import NumericsRecord
from mirage_formal.workers.dispatch import TaskDone, TaskFailed
from mirage_formal.workers.pool import Pool

_T = TypeVar("_T")
#: Time limit in seconds for the start of a process.
_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Emulation:
    """Result of emulating the generated kernels of one candidate.

    Attributes:
        case: The candidate.
        kernels: Its generated kernels, as (name, blocks).
        extents: Extents that were reduced.
        record: Comparison of its results with float64, if it completed.
        failure: Reason why it did not complete, or "".
        note: Remark if its kernels have no running maximum, or "".
    """

    case: EmulationCase
    kernels: tuple[tuple[str, tuple[int, int, int]], ...] = ()
    extents: Mapping[int, int] | None = None
    record: NumericsRecord | None = None
    failure: str = ""
    note: str = ""

    @property
    def inside(self) -> bool:
        """Return whether every result is within its tolerance."""
        return self.record is not None and self.record.answer == "within"


@dataclass(frozen=True, slots=True)
class _Task:
    case: EmulationCase
    seed: int
    real: bool


class Emulator:
    """Emulator of candidates, one after another.

    Args:
        seed: Seed of the inputs.
        real: Whether at the candidates' own extents.
        limit_s: Seconds for each candidate.
    """

    def __init__(self, seed: int, real: bool, limit_s: float) -> None:
        self._seed = seed
        self._real = real
        self._limit_s = limit_s
        self._pool = Pool(1, ("mirage_formal.emulate.emulation_process",))

    def __enter__(self) -> Self:
        for _ in self._pool.run(_do_nothing, [None], limit_s=_START_S):  # its start is no part of a limit
            pass
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.close()

    def seconds(self, case: EmulationCase) -> float | str:
        """Estimate the seconds that a candidate takes at its own extents, or return why that is not known.

        The estimate is the time at reduced extents with the same tiles, scaled by the number of statements that threads
        execute; the time of float64 grows about alike.
        """
        return self._run_in_worker(_seconds, _Task(case, self._seed, True))

    def run(self, case: EmulationCase) -> Emulation:
        """Run a candidate and compare its results.

        Raises:
            EmulatorError: There is no compiler.
        """
        found = self._run_in_worker(_emulated, _Task(case, self._seed, self._real))
        return Emulation(case, failure=found) if isinstance(found, str) else found

    def _run_in_worker(self, function: Callable[[_Task], _T], task: _Task) -> _T | str:
        """Run a function in the worker process; return its value, or a message that says why it has none."""
        try:
            for outcome in self._pool.run(function, [task], limit_s=self._limit_s, tries=1, once=True):
                match outcome:
                    case TaskDone(value=value):
                        return value
                    case TaskFailed(overdue=True):
                        return f"time limit of {self._limit_s:g} s"
                    case TaskFailed(reason=reason):
                        return (reason.strip().splitlines() or ["its process died"])[-1]
                    case _:
                        pass
        except (EmulationFault, KernelRejected) as error:
            return str(error)
        raise AssertionError("the task had no outcome")


def _do_nothing(_: Any) -> None:
    """Do nothing; as the first task of a fresh process, it keeps the start out of the time limit."""


def _build_case(task: _Task, *, real: bool) -> tuple[ShrunkPair, BuiltKernels]:
    case = task.case
    found = ShrunkPair(case.program, case.graph, {}) if real else shrink(case.program, case.graph)
    return found, build(found.candidate, found.program, load_target(case.target))


def _seconds(task: _Task) -> float:
    """Estimate the seconds that the emulation takes at the candidate's own extents; see ``Emulator.seconds``."""
    _, small = _build_case(task, real=False)
    _, large = _build_case(task, real=True)
    begin = 0.0
    for _ in range(2):  # the first call compiles
        begin = time.perf_counter()
        compare_on_emulator(small, seed=task.seed, scales=SCALES[:1], optimised=True)
    return (time.perf_counter() - begin) * len(SCALES) * amount_of_work(large) / max(1.0, amount_of_work(small))


def _emulated(task: _Task) -> Emulation:
    found, made = _build_case(task, real=task.real)
    record = compare_on_emulator(made, seed=task.seed)
    kernels = tuple((name, program.grid) for name, program in made.programs.items())
    return Emulation(task.case, kernels, found.extents, record, note=made.stable.note)

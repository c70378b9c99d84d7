"""Queries to z3 and cvc5 during a check, with a time budget for each directory and for the whole check.

Bounds: limits.py. The budget is processor time of the queries. So neither many nor hard queries make a check endless,
and a busy machine gets the same answers as an idle one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from mirage_formal.logic.script import Script, parse_script
from mirage_formal.logic.session import discharge
from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import CHECK_S, DIRECTORY_S, QUESTION_MS

#: Answers of the solvers to an obligation that holds.
UNSAT: Final = {"z3": "unsat", "cvc5": "unsat"}


@dataclass(frozen=True, slots=True)
class SolverAnswers:
    """Answers of both solvers to one query, with a reason where one gave none.

    Attributes:
        said: "sat", "unsat" or "unknown", by the solver's name.
        why: The reasons for "unknown"; "" if there is none.
        asked: Whether there was time to ask.
    """

    said: dict[str, str]
    why: str = ""
    asked: bool = True


class _SolverBudget:
    """Remaining processor seconds of solvers: of the current directory, and of the whole check, which processes share.

    Attributes:
        directory: Seconds left for the current directory.
        inside: Whether a directory's budget is running, so that a nested ``directory_budget`` starts none.
        total: Seconds left for the whole check, as this process knows them.
        shared: The same in memory that processes share; None in a check of one process.
    """

    def __init__(self) -> None:
        self.directory = DIRECTORY_S
        self.inside = False
        self.total = CHECK_S
        self.shared: Any = None

    def left(self) -> tuple[float, str]:
        """Return the seconds left, and a description of the budget that they belong to."""
        total = self.total if self.shared is None else self.shared.value
        if total < self.directory:
            return total, f"the {CHECK_S:g} s that solvers have for everything that is checked"
        return self.directory, f"the {DIRECTORY_S:g} s that solvers have for one directory"

    def spend(self, seconds: float) -> None:
        self.directory -= seconds
        self.total -= seconds
        if self.shared is not None:
            with self.shared.get_lock():
                self.shared.value -= seconds


_BUDGET: Final = _SolverBudget()


def reset_solver_budget() -> None:
    """Reset the seconds that solvers may spend: those of the whole check and those of the current directory.

    Only processor time of the solvers counts.
    """
    _BUDGET.directory, _BUDGET.total, _BUDGET.shared = DIRECTORY_S, CHECK_S, None


@contextmanager
def directory_budget() -> Iterator[None]:
    """Start the time budget of a directory; a nested use shares the outer budget."""
    outermost, _BUDGET.inside = not _BUDGET.inside, True
    if outermost:
        _BUDGET.directory = DIRECTORY_S
    try:
        yield
    finally:
        _BUDGET.inside = not outermost


@contextmanager
def shared_budget() -> Iterator[Any]:
    """Yield the budget of the whole check as a shared value, for processes that call ``join_budget`` with it."""
    value = get_context("spawn").Value("d", _BUDGET.total)
    join_budget(value)
    try:
        yield value
    finally:
        _BUDGET.total, _BUDGET.shared = value.value, None


def join_budget(value: Any) -> None:
    """Use the shared time budget of the parent process."""
    _BUDGET.shared = value


def query_solvers(script: Script) -> SolverAnswers:
    """Ask z3 and cvc5 a query; decided answers are cached by query.

    Sound: it is never a guess: what was not asked, for want of time, is unknown.
    """
    known = _KNOWN.get(script)
    if known is None:
        known = _ask_both(script)
        if "unknown" not in known.said.values():  # more time may decide it
            if len(_KNOWN) >= _MOST:
                _KNOWN.clear()
            _KNOWN[script] = known
    return known


_KNOWN: Final[dict[Script, SolverAnswers]] = {}
_MOST: Final = 4096


def _ask_both(script: Script) -> SolverAnswers:
    left, whose = _BUDGET.left()
    if left <= 0:
        return SolverAnswers(dict.fromkeys(UNSAT, "unknown"), f"no time is left of {whose}", asked=False)
    # Each solver gets half of the time.
    results = discharge(script, max(1, min(QUESTION_MS, int(1e3 * left / 2))))
    _BUDGET.spend(sum(result.processor_ms for result in results) / 1e3)
    why = "; ".join(result.reason for result in results if result.reason)
    return SolverAnswers({result.solver: result.answer.value for result in results}, why)


def expect_unsat(what: str, text: str) -> None:
    """Raise a FormatError unless both solvers refute a query text in this check."""
    found = query_solvers(parse_script(text))
    if found.said != UNSAT:
        raise FormatError(f"{what}: expected {UNSAT}, got {found.said}{f': {found.why}' if found.why else ''}")

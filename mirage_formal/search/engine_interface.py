"""Interface of a search engine: deterministic units of work, each run independently, with candidates and counts.

An engine is a function of (program, space, options): the same three give the same units, in the same order, and each
unit the same candidates and counts, in whatever process and order the units run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Candidate, Verdict
from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice
from mirage_formal.logic.terms import Expr
from mirage_formal.prove.abstract.pruning_audit import DecisionSample
from mirage_formal.records import LEVELS, LevelName
from mirage_formal.search.space import SearchSpace
from mirage_formal.support.options import SearchMethod

#: Kinds of graphs of a space that an engine leaves out; docs/search.md says what each is.
LEFT_OUT: Final = {
    "guided": (
        *("only_copies", "recomputes", "cancels"),  # the reasons of known_incompleteness
        "extents not preferred",
        "folds to one width",
        "quotients taken apart",
        "grid axis through two axes",
        "rereads across parts",
        "more than four parts",
        "norms in several kernels",
        "outputs in several kernels",
        "folded tiles",
        "operators not proposed",
        "other constants",
    ),
    "exhaustive": ("operators not proposed", "other constants"),
}


#: Statement about engines of users.
NOT_STATED: Final = ("not stated by this engine",)


def list_incompleteness(engine: str) -> tuple[str, ...]:
    """Return the kinds of graphs that an engine leaves out, by its name in a run's identity.

    Where the graphs of a file took the place of a search, all others are left out; of an engine of a user's own nothing
    is known.
    """
    kind, _, digest = engine.partition(":")
    if kind == "file" and digest:
        return (f"no space was searched: graphs come from the file with sha256 {digest}",)
    return LEFT_OUT.get(engine, NOT_STATED)


#: Verdict function for a complete candidate; the pipeline passes a fingerprint, because search may not import verify.
Accept = Callable[[Candidate], Verdict]
#: Cost model: estimated microseconds of a complete graph.
Cost = Callable[[KernelGraph], float]


class SearchOptions(SearchMethod, frozen=True):
    """Options of a search, apart from the space; those of users are ``SearchMethod``'s.

    Attributes:
        oracle_ms: Time limit of one Z3 query in milliseconds.
        max_kernel_ops: Replaces the space's limit if given.
        max_block_ops: Replaces the space's limit if given.
        off: Names of the reuse techniques and filters of the guided engine that are switched off, for on/off tests.
        accept: Decides about complete candidates; only Probable ones are reported. Without it every complete graph
            that passes the engine's own tests is.
        max_states: Number of states after which a unit of the exhaustive engine ends; a unit of the guided engine ends
            after the space's number.
        deadline: Value of time.monotonic() at which units of the exhaustive engine end. The results of a unit then
            depend on the machine, so this is for measurements of searches that would not end.
        cost: Estimated microseconds of a complete graph, passed by the pipeline; the engine for several outputs keeps
            the candidates of least cost. Without it, bytes read are the cost.
        choice: The axioms of abstract expressions.
        sample: Draws some of the engine's pruning decisions, passed by the pipeline, which has them audited.
    """

    oracle_ms: int = 100
    max_kernel_ops: int | None = None
    max_block_ops: int | None = None
    off: frozenset[str] = frozenset()
    accept: Accept | None = None
    max_states: int | None = None
    deadline: float | None = None
    cost: Cost | None = None
    choice: AxiomChoice = USUAL_AXIOMS
    sample: DecisionSample | None = None

    def bounded(self, space: SearchSpace) -> SearchSpace:
        """Return the space with this run's own operator limits in place."""
        return space.with_overrides(max_kernel_ops=self.max_kernel_ops, max_block_ops=self.max_block_ops)


class Unit(msgspec.Struct, frozen=True):
    """A share of the search that one worker runs.

    Attributes:
        index: Position in the engine's list of units.
        label: Description of the share, for progress and journals.
        payload: The engine's own parameters of the unit, as text.
    """

    index: int
    label: str
    payload: str


class Stats(msgspec.Struct, frozen=True):
    """Counts of a unit or of a whole search; they add up.

    Attributes:
        states: Operator applications (and kernel configurations) tried.
        pruned_at: Number of states that each test rejected, by the level of the µGraph and the name of the test.
            Thread graphs are built by a rule when a candidate is complete, so nothing is rejected at their level.
        oracle_calls: Subexpression queries asked.
        oracle_unknown: Queries without an answer; their branches were kept.
        cache_hits: Queries answered from a memo.
        configurations: Combinations of operands, grid, maps and loop range opened as a kernel.
        block_graphs: Block graphs closed.
        classes: Classes of tensors built (guided).
        structures: Structures visited (guided).
        complete: Kernel graphs that passed every structural test.
        rejected: Complete graphs that ``accept`` did not confirm.
        candidates: Candidates reported.
        cut: Units that ended at ``max_states`` or ``deadline`` before they had seen all.
    """

    states: int = 0
    pruned_at: dict[LevelName, dict[str, int]] = {}
    oracle_calls: int = 0
    oracle_unknown: int = 0
    cache_hits: int = 0
    configurations: int = 0
    block_graphs: int = 0
    classes: int = 0
    structures: int = 0
    complete: int = 0
    rejected: int = 0
    candidates: int = 0
    cut: int = 0

    def __add__(self, other: Stats) -> Stats:
        totals = {
            name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__ if name != "pruned_at"
        }
        return Stats(pruned_at=add_counts(self.pruned_at, other.pruned_at), **totals)

    @property
    def pruned(self) -> dict[str, int]:
        """Return the number of states that each test rejected at any level, by the name of the test."""
        return counts_by_reason(self.pruned_at)


def counts_by_reason(counts: Mapping[LevelName, Mapping[str, int]]) -> dict[str, int]:
    """Return the counts of all levels together, by reason in alphabetical order."""
    found: Counter[str] = Counter()
    for reasons in counts.values():
        found.update(reasons)
    return dict(sorted(found.items()))


def add_counts(*counts: Mapping[LevelName, Mapping[str, int]]) -> dict[LevelName, dict[str, int]]:
    """Return the sums of counts by level and reason."""
    found: dict[LevelName, Counter[str]] = {}
    for one in counts:
        for level, reasons in one.items():
            found.setdefault(level, Counter()).update(reasons)
    return {level: dict(sorted(found[level].items())) for level in LEVELS if level in found}


class LimitReached(Exception):
    """Signal that a unit has reached its limit; raised through its enumeration, and caught by its engine."""


class SearchCounters:
    """Mutable counts while a unit runs; ``stats`` freezes them.

    Args:
        max_states: See ``SearchOptions``.
        deadline: See ``SearchOptions``.
        shown: Whether ``watch_counts`` shows them.
    """

    def __init__(self, max_states: int | None = None, deadline: float | None = None, *, shown: bool = True) -> None:
        self._counts: Counter[str] = Counter()
        self._pruned: dict[LevelName, Counter[str]] = {level: Counter() for level in LEVELS}
        self._max_states = max_states
        self._deadline = deadline
        if shown and (watched := _watched.get()) is not None:
            watched.append(self)

    def step(self, name: str) -> None:
        """Count one state or configuration that is about to be entered.

        Raises:
            LimitReached: The unit's limit is reached; nothing is counted.
        """
        self.check()
        self._counts[name] += 1

    def check(self) -> None:
        """Raise an error if the unit has reached a limit.

        Raises:
            LimitReached: The unit has reached its number of states or its deadline.
        """
        if self._max_states is not None and self._counts["states"] >= self._max_states:
            raise LimitReached
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise LimitReached

    def add(self, name: str, amount: int = 1) -> None:
        """Add to the field of Stats called ``name``."""
        self._counts[name] += amount

    def prune(self, reason: str, level: LevelName, count: int = 1) -> None:
        """Count states that the named test rejected at a level of the µGraph."""
        self._pruned[level][reason] += count

    def stats(self) -> Stats:
        """Return the counts so far, as a value."""
        pruned = {level: dict(sorted(counts.items())) for level, counts in self._pruned.items() if counts}
        return Stats(pruned_at=pruned, **self._counts)


#: The tallies of the unit that is being searched, collected inside ``watch_counts`` only.
_watched: ContextVar[list[SearchCounters] | None] = ContextVar("watched", default=None)


@contextmanager
def watch_counts() -> Iterator[Callable[[], Stats]]:
    """Yield a function that returns the current counts of all tallies created within this context.

    No additional counting takes place, so a search is as fast inside as outside.
    """
    tallies: list[SearchCounters] = []
    token = _watched.set(tallies)
    try:
        yield lambda: sum((tally.stats() for tally in tuple(tallies)), Stats())
    finally:
        _watched.reset(token)


class UnitResult(Struct, frozen=True):
    """Results of one unit: canonical candidates, each once, in a deterministic order, and the counts.

    Attributes:
        candidates: The candidates.
        stats: The counts.
        queries: The distinct expressions that the oracle was asked about, in the order asked; the guided engine asks
            about index-aware terms and has none.
        classes: A key for each normal form among the expressions that are known to be part of the program's.
    """

    candidates: tuple[Candidate, ...]
    stats: Stats
    queries: tuple[Expr, ...] = ()
    classes: frozenset[bytes] = frozenset()


class Engine(Protocol):
    """A search engine."""

    @property
    def name(self) -> str:
        """Return the engine's name, as written into candidates."""
        ...

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """Split the search into units; together they cover the space.

        Raises:
            UnsupportedError: The program is outside what this engine handles.
        """
        ...

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        """Run one unit."""
        ...

"""Arms of the experiment: search variants, and the search of one arm as a row of the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from msgspec import structs

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Candidate, Verdict
from mirage_formal.records.reproduction import Row
from mirage_formal.reproduce.structural_equality import reference_operands, structure
from mirage_formal.run.tasks import FingerprintFilter
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import Engine, SearchOptions, Stats, Unit
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.workers.dispatch import TaskDone, TaskFailed
from mirage_formal.workers.pool import Pool

#: Modules that workers load before anything is timed.
PRELOAD: Final = ("mirage_formal.reproduce.search_variants",)
#: Seconds beyond its arm's limit after which the worker of a unit counts as hung.
_PATIENCE_S: Final = 60.0
#: Memory limit of a worker in bytes: z3 has exceeded it on a query with a limit of 100 ms.
_MEMORY: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class SearchVariant:
    """Search variant that an experiment compares with others.

    Attributes:
        name: Name for --arms.
        title: Name in tables.
        options: Search options, without limits.
        tested: Whether complete graphs are fingerprinted.
        parallel: Whether all workers take part.
    """

    name: str
    title: str
    options: SearchOptions
    tested: bool = True
    parallel: bool = True


def _exhaustive(*, z3: bool = False, prune: bool = True) -> SearchOptions:
    return SearchOptions("exhaustive", "z3" if z3 else "normal-form", prune, oracle_ms=100)


#: All arms, in the order of the table.
ARMS: Final = {
    arm.name: arm
    for arm in (
        SearchVariant("guided", "guided", SearchOptions(), parallel=False),
        SearchVariant("exhaustive", "exhaustive, pruned", _exhaustive()),
        SearchVariant("exhaustive-1", "exhaustive, pruned, one worker", _exhaustive(), parallel=False),
        SearchVariant("z3", "exhaustive, quantified z3 as oracle", _exhaustive(z3=True)),
        SearchVariant("unpruned", "exhaustive, no expressions", _exhaustive(prune=False), tested=False),
    )
}


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits of one row's search: seconds of a row, states of a unit, worker processes."""

    seconds: float
    states: int
    workers: int = 1


@dataclass(frozen=True, slots=True)
class RowTask:
    """Task of a worker: search one unit of one row."""

    row: str
    program: KernelGraph
    space: SearchSpace
    options: SearchOptions
    tested: bool
    unit: Unit


@dataclass(frozen=True, slots=True)
class UnitOutcome:
    """Result of searching one unit; ``graphs`` maps digests to graphs."""

    stats: Stats
    tests: int
    classes: frozenset[bytes]
    graphs: dict[str, KernelGraph]
    cpu_s: float


def engine(options: SearchOptions) -> Engine:
    """Return the engine of the options; the guided one instantiates every candidate, not only the best."""
    return ExhaustiveEngine() if options.engine == "exhaustive" else GuidedEngine(best=None)


@lru_cache(maxsize=1)
def _fingerprint_filter(row: str, program: KernelGraph, seed: int) -> FingerprintFilter:
    """Return the pipeline's fingerprint filter; units of one row in one process share it."""
    return FingerprintFilter(program, seed)


@dataclass(slots=True)
class _CountingGate:
    gate: FingerprintFilter
    calls: int = 0

    def __call__(self, candidate: Candidate) -> Verdict:
        self.calls += 1
        return self.gate(candidate)


def search_row_unit(task: RowTask) -> UnitOutcome:
    """Search one unit, in a worker process."""
    begin = time.process_time()
    options, counting = task.options, None
    if task.tested:
        counting = _CountingGate(_fingerprint_filter(task.row, task.program, options.seed))
        options = structs.replace(options, accept=counting)
    result = engine(options).run(task.program, task.space, options, task.unit)
    graphs = {digest(c.graph): c.graph for c in result.candidates} if task.tested else {}
    tests = 0 if counting is None else counting.calls
    return UnitOutcome(result.stats, tests, result.classes, graphs, time.process_time() - begin)


def load_modules(_: int) -> None:
    """Do nothing; a worker runs this before a row is timed, so that every import is done."""


@dataclass(slots=True)
class _OutcomeSum:
    stats: Stats = field(default_factory=Stats)
    tests: int = 0
    classes: set[bytes] = field(default_factory=set)
    graphs: dict[str, KernelGraph] = field(default_factory=dict)
    cpu_s: float = 0.0
    lost: int = 0
    workers: int = 0
    wall_s: float = 0.0

    def add(self, one: UnitOutcome) -> None:
        self.stats += one.stats
        self.tests += one.tests
        self.classes |= one.classes
        self.graphs |= one.graphs
        self.cpu_s += one.cpu_s


#: Callback with the numbers of finished units and of all units.
Show = Callable[[int, int], None]


def run_row(
    key: str,
    arm: SearchVariant,
    program: KernelGraph,
    space: SearchSpace,
    limits: RowLimits,
    show: Show = lambda done, total: None,
) -> Row:
    """Search with one arm, and return its row; the space limits the block operators."""
    count = limits.workers if arm.parallel else 1
    with Pool(count, PRELOAD, memory=_MEMORY, slow_after_s=float("inf")) as pool:
        for _ in pool.run(load_modules, range(count), limit_s=_PATIENCE_S):
            pass
        begin = time.monotonic()
        units = engine(arm.options).units(program, space, arm.options)
        options = structs.replace(arm.options, max_states=limits.states, deadline=begin + limits.seconds)
        tasks = [RowTask(key, program, space, options, arm.tested, unit) for unit in units]
        total = _run(pool, tasks, limits, show)
        wall = time.monotonic() - begin
    return _row(key, arm, space, len(program.inputs), replace(total, workers=count, wall_s=wall))


def _run(pool: Pool, tasks: Sequence[RowTask], limits: RowLimits, show: Show) -> _OutcomeSum:
    """Run all units and add up their outcomes in unit order; a unit retried after the deadline ends at once."""
    lost = 0
    outcomes: dict[int, UnitOutcome] = {}
    show(0, len(tasks))
    for outcome in pool.run(search_row_unit, tasks, limit_s=limits.seconds + _PATIENCE_S):
        match outcome:
            case TaskDone(index, value):
                outcomes[index] = value
                show(len(outcomes), len(tasks))
            case TaskFailed():
                lost += 1
            case _:
                pass
    total = _OutcomeSum(lost=lost)
    for index in sorted(outcomes):
        total.add(outcomes[index])
    return total


def _row(key: str, arm: SearchVariant, space: SearchSpace, inputs: int, total: _OutcomeSum) -> Row:
    stats, guided = total.stats, arm.options.engine == "guided"
    graphs = [total.graphs[name] for name in sorted(total.graphs)]
    return Row(
        key=key,
        arm=arm.name,
        block_ops=space.max_block_ops,
        paper_ops=space.max_block_ops + inputs,
        workers=total.workers,
        complete=stats.cut == 0 and total.lost == 0,
        wall_s=round(total.wall_s, 3),
        cpu_s=round(total.cpu_s, 3),
        states=stats.states,
        pruned=stats.pruned,
        configurations=stats.configurations,
        expressions=len(total.classes) if not guided and arm.options.prune else None,
        classes=stats.classes if guided else None,
        oracle_calls=stats.oracle_calls,
        cache_hits=stats.cache_hits,
        oracle_unknown=stats.oracle_unknown,
        complete_graphs=stats.complete,
        fingerprint_tests=total.tests if arm.tested else None,
        candidates=len(graphs) if arm.tested else None,
        structures=len({structure(graph) for graph in graphs}),
        reference=sum(reference_operands(graph) for graph in graphs),
        lost=total.lost,
        graphs=tuple(encode(graph) for graph in graphs),
    )

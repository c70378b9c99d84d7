"""Model of a search in a report; a part of ``model``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of a unit, in seconds of searching: the search's clock stops between its sessions.

    Attributes:
        begin, end: Times of dispatch to a worker and of the answer.
        worker: Number of the worker.
        samples: Samples of seconds, visited states and built classes.
    """

    begin: float
    end: float
    worker: int
    samples: tuple[tuple[float, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """One finished unit of the search, in the order of the journal.

    Attributes:
        number, label, status, states, classes, pruned, candidates, milliseconds: Fields of the journal.
        span: Its time span; None where it was not recorded.
    """

    number: int
    label: str
    status: str
    states: int
    classes: int
    pruned: int
    candidates: int
    milliseconds: float
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class PartSearch:
    """The search for a subgraph of a whole program.

    Attributes:
        run: Its directory, relative to the whole's.
        operators: Numbers of its operators in the program; empty where no reported cover has it.
        part: Number from 1 of the best cover's subgraph that one of its candidates replaces; 0 for none.
        units_done, units: Numbers of finished and of all units.
        kept: Number of candidates that it reports.
        search: Statistics of the search.
    """

    run: str
    operators: tuple[int, ...]
    part: int
    units_done: int
    units: int
    kept: int
    search: Search


@dataclass(frozen=True, slots=True)
class Search:
    """Statistics and course of a search.

    Attributes:
        engine, oracle, space, seed, target: Options of the search.
        status: complete, interrupted or time-limit.
        wall_s, workers, recalled: Figures of the session that ended it.
        stats: Counters by name.
        pruned: Pruned branches, by reason.
        pruned_at: Pruned branches by level of the µGraph and reason, of units that record levels.
        units: Units in the order of the journal.
        allowed: The bounds of the space, as recorded.
        course: Samples of seconds of searching, and states and classes of all units together, for units with recorded
            times.
    """

    engine: str
    oracle: str
    space: str
    seed: int
    target: str
    status: str
    wall_s: float
    workers: int
    recalled: bool
    found: int
    stats: tuple[tuple[str, int], ...]
    pruned: tuple[tuple[str, int], ...]
    units: tuple[Unit, ...]
    allowed: tuple[tuple[str, str], ...]
    course: tuple[tuple[float, int, int], ...] = ()
    pruned_at: tuple[tuple[str, str, int], ...] = ()

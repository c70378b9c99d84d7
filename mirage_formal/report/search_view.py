"""Model of a search in a report; a part of ``model``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """When a unit was searched, in seconds of searching: the search's clock stands still between its sessions.

    Attributes:
        begin, end: When it was given to a worker, and when the answer came.
        worker: Which one.
        samples: Seconds, and the states that it had visited and the classes that it had built by then.
    """

    begin: float
    end: float
    worker: int
    samples: tuple[tuple[float, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """One finished unit of the search, in the order in which the journal has them.

    Attributes:
        number, label, status, states, classes, pruned, candidates, milliseconds: As the journal has them.
        span: When it was searched; None where that was not recorded.
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
    """The search for a part of a whole program.

    Attributes:
        run: Its directory, relative to the whole's.
        operators: Numbers of its operators in the program; empty where no reported cover has it.
        part: Number of the part of the best cover whose place one of its candidates takes, from 1; 0 for none.
        units_done, units: Of the search.
        kept: Candidates that it reports.
        search: How it went.
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
        engine, oracle, space, seed, target: What was asked for.
        status: complete, interrupted or time-limit.
        wall_s, workers, recalled: Of the session that ended it.
        stats: Counters by name.
        pruned: Branches cut, by reason.
        pruned_at: The same by level of the µGraph and reason, of units that say at which level.
        units: In the order of the journal.
        allowed: The bounds of the space, as it was written.
        course: Seconds of searching, and the states that all units together had visited and the classes that they had
            built by then; of units whose times were recorded.
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

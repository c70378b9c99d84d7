"""What is to be seen of a search; a part of ``model``."""

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
class Search:
    """How the search went.

    Attributes:
        engine, oracle, space, seed, target: What was asked for.
        status: complete, interrupted or time-limit.
        wall_s, workers, recalled: Of the session that ended it.
        stats: Counters by name.
        pruned: Branches cut, by reason; a reason names its level where the engine counts by level.
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

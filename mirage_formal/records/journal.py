"""The journal of a search: what each of its units found, and when it was searched."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec

from mirage_formal.records.run import (
    AuditRecord,
    Count,
    Figure,
    Positive,
    Record,
    Sha256,
    Title,
    VersionedRecord,
)

#: Samples that a unit has at most.
SAMPLES: Final = 32
#: Seconds of searching; no search takes thirty years.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


#: A level of the µGraph.
LevelName = Literal["kernel", "block", "thread"]
LEVELS: Final[tuple[LevelName, ...]] = get_args(LevelName)


class FoundRecord(Record, frozen=True, kw_only=True):
    """A candidate as a unit found it.

    Attributes:
        digest: Digest of the graph.
        graph: Compact encoding of the graph, in base64.
        kernels: Kernels launched.
        estimated_us: The cost model's estimate for the run's target, in microseconds.
    """

    digest: Sha256
    graph: bytes
    kernels: Count
    estimated_us: Figure


class TimesRecord(Record, frozen=True, kw_only=True):
    """When a unit was searched, for information: nothing is decided by it.

    Seconds are of the search's own clock, in the process that hands out units. It begins when the first one may be
    handed out and stands still between sessions: a resumed run goes on at the largest ``end`` of its journal.

    Attributes:
        begin: When the unit was given to its worker; of several tries, in the last one.
        end: When the answer came.
        worker: Where it was computed, from 0; one that takes the place of a worker that died has its number.
        samples: Seconds, states visited and classes of tensors built by then, as the worker told while it searched.
    """

    begin: Seconds
    end: Seconds
    worker: Count
    samples: Annotated[tuple[tuple[Seconds, Count, Count], ...], msgspec.Meta(max_length=SAMPLES)] = ()


class UnitRecord(VersionedRecord, frozen=True, kw_only=True):
    """One line of search.jsonl: one finished unit of work.

    Attributes:
        key: The run's key, so that a line never counts for another run.
        unit: Index of the unit.
        label: What the unit is about, readable.
        status: "done", or "failed" after its worker died or hung in every try.
        attempts: Tries that it took.
        stats: Counters by name (states, oracle_calls, ...).
        pruned: Branches cut, by reason.
        pruned_at: The same by the level of the µGraph at which they were cut, then by reason, for information; empty in
            journals of earlier versions.
        fingerprint_tests: Search-time fingerprints computed; what they did not confirm is counted in ``stats``.
        candidates: What it found, in the engine's order.
        milliseconds: Time the worker took.
        error: Why it failed, or empty.
        times: When it was searched; null in journals of earlier versions.
        audit: What z3 says of a sample of its pruning decisions; null if it was not asked.
    """

    key: Sha256
    unit: Count
    label: Title
    status: Literal["done", "failed"]
    attempts: Positive
    stats: dict[str, Count]
    pruned: dict[str, Count]
    pruned_at: dict[LevelName, dict[str, Count]] = msgspec.field(default_factory=dict)
    fingerprint_tests: Count
    candidates: tuple[FoundRecord, ...]
    milliseconds: Figure
    error: str = ""
    times: TimesRecord | None = None
    audit: AuditRecord | None = None

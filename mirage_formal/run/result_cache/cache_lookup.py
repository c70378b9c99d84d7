"""Cache lookup of a job in the store, with replay of its evidence, and storage of a finished job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from mirage_formal.cache.cache_directory import expect_key, key_difference
from mirage_formal.cache.lock import lock_directory
from mirage_formal.cache.search_store import SearchCache, StoredSearch, evidence_files
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import Target
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.records import KERNELS
from mirage_formal.records.store_entry import EVIDENCE, EntryKey, SearchOutcome
from mirage_formal.run.result_cache.keys import Kind, entry_key
from mirage_formal.run.results.result import Result
from mirage_formal.run.settings import Job, Settings, versions
from mirage_formal.support.errors import FormatError, MirageError, RunError

if TYPE_CHECKING:
    from mirage_formal.revalidate.evidence_replay import ReplayResult

#: Of a time limit the share that a search must have had whose result, cut short, is taken for one with that limit.
_AS_LONG: Final = 0.9
#: An estimate is a sum of floats.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class RecalledEntry:
    """Entry of the store whose evidence was replayed.

    Attributes:
        entry: The entry.
        replayed: The replayed evidence.
    """

    entry: StoredSearch
    replayed: ReplayResult


@dataclass(frozen=True, slots=True)
class EntryClaim:
    """Cache lookup of a job: the found entry, or the lock under which it is made.

    Attributes:
        limit_s: Time limit of the job.
        key: Key of the entry; None if nothing is kept.
        found: The found entry; None if it is to be made.
    """

    limit_s: float | None
    key: EntryKey | None
    found: RecalledEntry | None

    def keep(self, evidence: Path, results: Sequence[Result], status: Literal["complete", "time-limit"]) -> None:
        """Write a finished run to the store; do nothing if the store cannot be written or a result is not proved.

        Args:
            evidence: Directory of the finished run or whole program.
            results: Its reported results.
            status: Whether it is complete, or ended at its time limit.
        """
        if self.key is None or not all(isinstance(one.verdict, Equivalent) for one in results):
            return
        limit = None if status == "complete" else self.limit_s
        outcome = SearchOutcome(status=status, limit_s=limit, candidates=len(results), versions=versions())
        with suppress(OSError):
            SearchCache().put(self.key, outcome, evidence_files(evidence))


@contextmanager
def claim_entry(kind: Kind, job: Job, settings: Settings) -> Iterator[EntryClaim]:
    """Yield the store's entry for a job; if there is none, hold its lock so that no other process makes it.

    Other processes that ask for the entry wait for it, but not longer than their time limit; then they make it as well.

    Args:
        kind: Kind of the entry.
        job: The job.
        settings: Settings of the job. A resumed run is not looked up.
    """
    limit = settings.time_limit
    key = entry_key(kind, job, settings)
    if key is None:
        yield EntryClaim(limit, None, None)
        return
    if settings.resume:
        yield EntryClaim(limit, key, None)
        return
    if (found := find_entry(key, job, limit)) is not None:
        yield EntryClaim(limit, key, found)
        return
    with ExitStack() as stack:
        # It is not held if others need longer, or if there can be no lock. Who held it may have written the entry.
        with suppress(RunError, OSError, NotImplementedError):
            stack.enter_context(lock_directory(SearchCache().path(key), limit, fallback=False))
        yield EntryClaim(limit, key, find_entry(key, job, limit, last=True))


def is_stored(kind: Kind, job: Job, settings: Settings) -> bool:
    """Return whether the store has an entry for a job, without a look into the entry; see ``claim_entry``."""
    key = entry_key(kind, job, settings)
    return key is not None and os.path.isdir(SearchCache().path(key))


def find_entry(
    key: EntryKey, job: Job, limit_s: float | None, *, last: bool = False, most: int | None = None
) -> RecalledEntry | None:
    """Return the entry of a key with its evidence replayed; None if there is none or it is not valid.

    Sound: every file is as it was written; the program is the one that is asked for; the checker has replayed the proof
    of every candidate that is returned in this process. An entry that violates this is never used.

    Args:
        key: The key.
        job: The job of that key.
        limit_s: Its time limit; an entry that ended at a shorter time limit does not count.
        last: Whether a refused entry is removed, with a warning, because it is made again next.
        most: Number of a run's first candidates that are replayed and returned; None for all.
    """
    place = SearchCache()
    path = place.path(key)
    if not os.path.isdir(path):
        return None
    try:
        entry = place.read(path)
        found = _replayed.get(entry.record.seal)
        if found is None or (found.left and (most is None or most > len(found.shown))):
            found = _replayed[entry.record.seal] = _expect_requested_entry(entry, key, job, most)
        expect_key(path, entry.record, key)
    except (MirageError, OSError) as error:
        if last and os.path.isdir(path):  # otherwise another process has removed it
            place.refuse(path, error)
        return None
    if not _long_enough(entry.record.value, limit_s):
        return None
    place.record_use(path)
    return RecalledEntry(entry, found)


#: What entries show that this process has established, by their seals.
_replayed: Final[dict[str, ReplayResult]] = {}


def _expect_requested_entry(entry: StoredSearch, key: EntryKey, job: Job, most: int | None) -> ReplayResult:
    """Replay the evidence of an entry, and check that it has the expected key and program; see ``find_entry``."""
    expect_key(entry.path, entry.record, key)
    found = replay_evidence(entry, job.target, most)
    if found.program != job.program:
        raise FormatError("expected the program that is asked for, got another", where=str(entry.path / EVIDENCE))
    return found


def replay_evidence(entry: StoredSearch, target: Target, most: int | None = None) -> ReplayResult:
    """Replay the evidence of an entry, and check that its record says the same.

    Sound: the checker has replayed the proof of every returned candidate, and nothing in it is a kernel. Estimates make
    no candidate equal, but they order them: they must be those that the cost model makes here.

    Args:
        entry: The entry.
        target: Target of its key.
        most: Number of a run's first candidates that are replayed and returned; None for all.

    Raises:
        MirageError: Something in the evidence does not hold, or it is not the evidence of this entry.
    """
    from mirage_formal.revalidate.evidence_replay import replay_directory  # loads numerical packages

    found, where = replay_directory(entry.path / EVIDENCE, most), str(entry.path / EVIDENCE)
    if kernels := [name for name in entry.record.files if f"/{KERNELS}/" in name]:
        raise FormatError(f"expected no kernels, which are made where they run, got {kernels[0]}", where=where)
    if found.record is None:
        raise FormatError("expected a run or a whole program, got a candidate", where=where)
    key, got = entry.record.key, found.record.identity
    own = key.kind == "answer" and not key.narrowed
    wanted = msgspec.structs.replace(key.identity, space=got.space) if own else key.identity
    if (other := key_difference(wanted, got)) is not None:
        raise FormatError(f"expected the evidence of the entry's key, got {other}", where=where)
    for one in found.shown:
        if not isinstance(one.verdict, Equivalent):
            raise FormatError(f"expected a proof of {one.digest[:12]}, got none", where=where)
        us = estimate(one.graph, target).us
        if one.us is None or abs(one.us - us) > _ROUNDING * us:
            raise FormatError(f"expected the cost model's estimate of {us} us, got {one.us}", where=where)
    if (number := len(found.shown) + found.left) != entry.record.value.candidates:
        what = f"expected {entry.record.value.candidates} candidates, got {number}"
        raise FormatError(what, where=where)
    return found


def _long_enough(found: SearchOutcome, limit_s: float | None) -> bool:
    if found.status == "complete":
        return True
    return limit_s is not None and found.limit_s is not None and found.limit_s >= _AS_LONG * limit_s


__all__ = ["EntryClaim", "RecalledEntry", "claim_entry", "find_entry", "is_stored", "replay_evidence"]

"""Cache lookup of a job in the store, with replay of its evidence, and storage of a finished job."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import Target
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.records import KERNELS
from mirage_formal.records.store_entry import EntryKey, EntryRecord
from mirage_formal.run.result_cache.keys import Kind, entry_key
from mirage_formal.run.results.result import Result
from mirage_formal.run.settings import Job, Settings, versions
from mirage_formal.store.entry import Entry, entry_sizes, expect_key, key_difference, read_entry, write_entry
from mirage_formal.store.location import StoreDirectory
from mirage_formal.support.errors import FormatError, MirageError

if TYPE_CHECKING:
    from mirage_formal.store.replay import ReplayResult

#: Of a time limit the share that a search must have had whose result, cut short, is taken for one with that limit.
_AS_LONG: Final = 0.9
#: An estimate is a sum of floats.
_ROUNDING: Final = 1e-9


class StoreWarning(UserWarning):
    """Warning: an entry of the store was refused; its contents are searched again."""


@dataclass(frozen=True, slots=True)
class RecalledEntry:
    """Entry of the store whose evidence was replayed.

    Attributes:
        entry: The entry.
        replayed: The replayed evidence.
    """

    entry: Entry
    replayed: ReplayResult


@dataclass(frozen=True, slots=True)
class EntryClaim:
    """Cache lookup of a job: the found entry, or the lock under which it is made.

    Attributes:
        job: The job.
        limit_s: Time limit of the job.
        key: Key of the entry; None if nothing is kept.
        found: The found entry; None if it is to be made.
    """

    job: Job
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
        record = EntryRecord(
            key=self.key,
            status=status,
            limit_s=None if status == "complete" else self.limit_s,
            candidates=len(results),
            versions=versions(),
            files={},
            bytes=0,
        )
        with suppress(OSError):
            place = StoreDirectory()
            write_entry(place, record, evidence)
            place.shrink(entry_sizes(place))


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
        yield EntryClaim(job, limit, None, None)
        return
    if settings.resume:
        yield EntryClaim(job, limit, key, None)
        return
    if (found := find_entry(key, job, limit)) is not None:
        yield EntryClaim(job, limit, key, found)
        return
    with StoreDirectory().making(key, limit):  # the previous holder may have written the entry
        yield EntryClaim(job, limit, key, find_entry(key, job, limit, last=True))


def find_entry(key: EntryKey, job: Job, limit_s: float | None, *, last: bool = False) -> RecalledEntry | None:
    """Return the entry of a key with its evidence replayed; None if there is none or it is not valid.

    Sound: every file is as it was written; the program is the one that is asked for; the checker has replayed the proof
    of every candidate in this process. An entry of which this is not so is never used.

    Args:
        key: The key.
        job: The job of that key.
        limit_s: Its time limit; an entry that ended at a shorter time limit does not count.
        last: Whether a refused entry is removed, with a warning, because it is made again next.
    """
    try:
        place = StoreDirectory()
        path = place.path(key)
        if not path.is_dir():
            return None
    except OSError:
        return None
    from mirage_formal.check.report import CheckFailed  # loads numerical packages

    try:
        entry = read_entry(path)
        if entry.record.seal not in _replayed:
            _replayed[entry.record.seal] = _expect_requested_entry(entry, key, job)
        expect_key(path, entry.record, key)
    except FileNotFoundError:  # another process is removing it
        return None
    except (CheckFailed, MirageError, OSError) as error:
        if last:
            text = f"{path}: refused, and made again: {error_line(error)}"
            warnings.warn(text, StoreWarning, stacklevel=2)
            with suppress(OSError):
                place.drop(path)
        return None
    if not _long_enough(entry.record, limit_s):
        return None
    place.used(path)
    return RecalledEntry(entry, _replayed[entry.record.seal])


#: What entries show that this process has established, by their seals.
_replayed: Final[dict[str, ReplayResult]] = {}


def _expect_requested_entry(entry: Entry, key: EntryKey, job: Job) -> ReplayResult:
    """Replay the evidence of an entry, and check that it has the expected key and program; see ``find_entry``."""
    expect_key(entry.path, entry.record, key)
    found = replay_evidence(entry, job.target)
    if found.program != job.program:
        raise FormatError("expected the program that is asked for, got another", where=str(entry.evidence))
    return found


def replay_evidence(entry: Entry, target: Target) -> ReplayResult:
    """Replay the evidence of an entry, and check that its record says the same.

    Sound: the checker has replayed the proof of every candidate, and nothing in it is a kernel. Estimates make no
    candidate equal, but they order them: they must be those that the cost model makes here.

    Args:
        entry: The entry.
        target: Target of its key.

    Raises:
        CheckFailed: Something in the evidence does not hold.
        FormatError: It is not the evidence of this entry.
    """
    from mirage_formal.store.replay import replay  # loads numerical packages

    found, where = replay(entry.evidence), str(entry.evidence)
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
    if len(found.shown) != entry.record.candidates:
        what = f"expected {entry.record.candidates} candidates, got {len(found.shown)}"
        raise FormatError(what, where=where)
    return found


def _long_enough(record: EntryRecord, limit_s: float | None) -> bool:
    if record.status == "complete":
        return True
    return limit_s is not None and record.limit_s is not None and record.limit_s >= _AS_LONG * limit_s


def error_line(error: Exception) -> str:
    """Return the reason of an error as one line."""
    from mirage_formal.check.report import CheckFailed

    if isinstance(error, CheckFailed):
        return f"{error.file}: {error.step}: {error.what}"
    if isinstance(error, MirageError):
        return f"{error.where}: {error.what}" if error.where else error.what
    return str(error)


__all__ = ["EntryClaim", "RecalledEntry", "StoreWarning", "claim_entry", "error_line", "find_entry", "replay_evidence"]

"""Records of cache entries (docs/store.md): the key, the value, and the digest of every file beside them."""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec

from mirage_formal.records.run import NO_SEAL, Count, Figure, Identity, Installed, Positive, Record, Sha256, Title, Word

#: Version of the layout of an entry; the evidence of a search has the version of a run's files.
FORMAT: Final = 2
ENTRY_FILE: Final = "entry.json"
#: The directory of a run or a whole program, below that of the entry of a search.
EVIDENCE: Final = "evidence"

Package = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9A-Za-z]{1,12}){1,5}([-+][0-9A-Za-z.]{1,40})?(?!\n)$")]
K = TypeVar("K")
V = TypeVar("V")


class CacheEntry(Record, Generic[K, V], frozen=True, kw_only=True):
    """entry.json of any kind: the value of a key.

    Attributes:
        format: 2.
        kind: Name of the cache that the entry is of.
        key: Everything that decides the value; entries with equal keys take each other's place.
        value: The value.
        files: Path below the entry's directory to sha256 of every other file.
        bytes: Of these together.
        seal: Sha256 of this file's bytes with the seal's 64 digits written as zeros.
    """

    format: Literal[2] = 2
    kind: Word
    key: K
    value: V
    files: dict[str, Sha256]
    bytes: Count
    seal: Sha256 = NO_SEAL


class EntryKey(Record, frozen=True, kw_only=True):
    """Everything that decides what the entry of a search answers.

    Attributes:
        kind: "answer": what ``superoptimize`` returns for a program; "search": what one search of a program, or of a
            part of a larger one, has found.
        identity: Program, target, space and options of the search.
        written: Sha256 of the program's JSON text: conditions name operators by their numbers, which equal digests of
            programs leave open.
        bucket: Range of extents that the program stands for, as in "kv=1..128"; empty for its own extents alone.
        config: Search space that the user named; null if it follows from the program.
        narrowed: Whether the user said in which space to search, or how.
        longer: Whether kernels may be put together beyond the space's limits for one.
        part: Whether it was searched as a part of a larger program.
        keep: Candidates to report, if the user said.
        package: Version of mirage_formal.
        code: Sha256 over its code and data files: all that can change a candidate or a kernel.
    """

    kind: Literal["answer", "search"]
    identity: Identity
    written: Sha256
    bucket: Title
    config: Title | None
    narrowed: bool
    longer: bool
    part: bool
    keep: Positive | None
    package: Package
    code: Sha256


class SearchOutcome(Record, frozen=True, kw_only=True):
    """How a search ended whose evidence an entry has.

    Attributes:
        status: "complete"; or "time-limit": the clock ended the search, and more time may find more.
        limit_s: Seconds that the search had; null if it had no limit.
        candidates: Number of candidates or covers; 0 only of a search that found none.
        versions: Of the packages with which it was made.
    """

    status: Literal["complete", "time-limit"]
    limit_s: Figure | None
    candidates: Count
    versions: dict[Title, Installed]


class SearchEntry(CacheEntry[EntryKey, SearchOutcome], frozen=True, kw_only=True):
    """entry.json of a search."""


class EarlierSearchEntry(SearchOutcome, frozen=True, kw_only=True):
    """entry.json of a search in format 1, which had the fields of the outcome beside the key."""

    format: Literal[1] = 1
    key: EntryKey
    files: dict[str, Sha256]
    bytes: Count
    seal: Sha256 = NO_SEAL


__all__ = [
    "ENTRY_FILE",
    "EVIDENCE",
    "FORMAT",
    "CacheEntry",
    "EarlierSearchEntry",
    "EntryKey",
    "SearchEntry",
    "SearchOutcome",
]

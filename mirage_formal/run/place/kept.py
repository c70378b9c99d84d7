"""Finished searches in the user's cache directory: the same program is not searched twice.

An entry is what a run has found, and the evidence that it wrote. It is found by everything that decides these: the
program with the names of its inputs, the identity of the run, and the versions and digests of packages, code and data.
Runs of engines of the user's own are not kept, nor is a run that was cut short by the clock or lost a worker.

Sound: what is recalled was accepted by this code for this program and is written as it was then; ``check`` judges it as
any other run's. An entry that is not as it was written is no entry.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.device.cache import cache_dir, replace_file
from mirage_formal.graph.formats.json import to_json
from mirage_formal.records import RejectedRecord, UnitRecord, key_of, sha256
from mirage_formal.run.evidence import Verified
from mirage_formal.run.settings import ENGINES, Job, environment, identity

#: Set, it turns the cache off for this process and those that it starts.
SWITCH: Final = "MIRAGE_FORMAL_NO_CACHE"
#: Bytes of all entries together; the ones that were not used for the longest time go first.
MOST_BYTES: Final = 1 << 30
#: Bytes of an entry that is read, unpacked.
_MOST_UNPACKED: Final = 1 << 28
_SEAL: Final = 32
_NAME: Final = re.compile("[0-9a-f]{64}")


class Kept(msgspec.Struct, frozen=True):
    """What a finished run has found.

    Attributes:
        planned: Units of the search.
        units: Their records.
        verified: The candidates with their evidence.
        rejected: Those that were not accepted, in the order of their ranks.
        tests: Final fingerprints computed.
    """

    planned: int
    units: tuple[UnitRecord, ...]
    verified: tuple[Verified, ...]
    rejected: tuple[RejectedRecord, ...]
    tests: int


def recalled(job: Job) -> Kept | None:
    """What an earlier run of the same job has found; None if there is none."""
    if not _kept_at_all(job):
        return None
    with suppress(OSError):
        path = _path(job)
        if not path.is_file():
            return None
        found = _read(path)
        if found is None or any(unit.key != key_of(identity(job)) for unit in found.units):
            path.unlink()
            return None
        os.utime(path)
        return found
    return None


def keep(job: Job, found: Kept) -> None:
    """Keep what a finished run has found; a cache that cannot be written is left as it is."""
    if not _kept_at_all(job):
        return
    data = gzip.compress(msgspec.msgpack.encode(found), compresslevel=3, mtime=0)
    with suppress(OSError):
        path = _path(job)
        replace_file(path, hashlib.sha256(data).digest() + data)
        _shrink(path.parent)


def _kept_at_all(job: Job) -> bool:
    return job.engine in ENGINES and not os.environ.get(SWITCH)


def _path(job: Job) -> Path:
    asked = (key_of(identity(job)), job.config, job.options.longer)
    decides = (to_json(job.program), asked, _installed())
    return cache_dir("searches") / sha256(msgspec.json.encode(decides))


@lru_cache(maxsize=1)
def _installed() -> list[tuple[str, str]]:
    return sorted(environment().items())


def _read(path: Path) -> Kept | None:
    data = path.read_bytes()
    if hashlib.sha256(data[_SEAL:]).digest() != data[:_SEAL]:
        return None
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacker.decompress(data[_SEAL:], _MOST_UNPACKED)
        return None if unpacker.unconsumed_tail else msgspec.msgpack.decode(unpacked, type=Kept)
    except (zlib.error, msgspec.DecodeError):
        return None


def _shrink(root: Path) -> None:
    """Remove the entries that were not used for the longest time, until all are within the bound."""
    ours = (entry for entry in os.scandir(root) if _NAME.fullmatch(entry.name))
    entries = sorted(((entry.stat(), entry.path) for entry in ours), key=lambda one: one[0].st_mtime)
    total = sum(stat.st_size for stat, _ in entries)
    for stat, path in entries[:-1]:
        if total <= MOST_BYTES:
            return
        Path(path).unlink(missing_ok=True)
        total -= stat.st_size


__all__ = ["MOST_BYTES", "SWITCH", "Kept", "keep", "recalled"]

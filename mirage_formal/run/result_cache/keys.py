"""Keys of store entries."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from mirage_formal.cache.search_store import is_store_disabled
from mirage_formal.graph.formats.json import to_json
from mirage_formal.records import sha256
from mirage_formal.records.store_entry import EntryKey
from mirage_formal.run.settings import ENGINES, Job, Settings, environment, escape_undecodable, identity

Kind = Literal["answer", "search"]


def entry_key(kind: Kind, job: Job, settings: Settings) -> EntryKey | None:
    """Return the store key of a job; None where nothing is kept: ``cache`` is off, or the engine is a user's own.

    Args:
        kind: Kind of the entry.
        job: The job.
        settings: Settings of the job.
    """
    if not settings.cache or is_store_disabled() or job.engine not in ENGINES:
        return None
    package, code = installed_code()
    return EntryKey(
        kind=kind,
        identity=identity(job),
        written=sha256(to_json(job.program).encode()),
        bucket=escape_undecodable(settings.bucket or ""),
        config=settings.config and escape_undecodable(settings.config),
        narrowed=settings.narrowed,
        longer=settings.longer,
        part=settings.part,
        keep=settings.keep,
        package=package,
        code=code,
    )


@lru_cache(maxsize=1)
def installed_code() -> tuple[str, str]:
    """Return the version of this package, and a digest of its code and data that can change a candidate or kernel.

    Other packages are not part of it. Solvers decide whether a proof is accepted, and accepted proofs are replayed.
    """
    found = environment()
    names = ("code of mirage_formal", "data files")
    return found["mirage_formal"], sha256("\n".join(found[name] for name in names).encode())


__all__ = ["Kind", "entry_key", "installed_code"]

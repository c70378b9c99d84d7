"""Default directories of a search from Python: below runs/, or in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from mirage_formal.cache.lock import lock_directory
from mirage_formal.cache.search_store import SearchCache
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.partition.search_strategy import needs_partitioning
from mirage_formal.partition.whole_report import KEEP
from mirage_formal.records import Identity, key_of
from mirage_formal.run.result_cache.keys import entry_key
from mirage_formal.run.settings import Settings, identity, make_job
from mirage_formal.run_directory.directory_layout import RUN, list_contents
from mirage_formal.run_directory.overwrite import same_search
from mirage_formal.support.errors import RunError

RUNS: Final = Path("runs")


def choose_default_directory(program: KernelGraph, settings: Settings, name: str) -> tuple[Path, Settings]:
    """Return the directory of a search that names none, and the settings with which it is opened.

    It is runs/<name>. If that holds a search of another program or with other options, the first digits of the key are
    appended to the name, and nothing there is changed. A search of the same program and options is resumed, so that
    running a script twice searches once.
    """
    root = RUNS / name
    if settings.resume or settings.force:
        return root, settings
    known = _identities(program, settings)
    for place in (root, root.with_name(f"{name}-{key_of(known[0])[:12]}")):
        if not list_contents(place, RUN).names:
            return place, settings
        if any(same_search(place, settings.config, who) for who in known):
            return place, replace(settings, resume=True)
    return root, settings


@contextmanager
def run_directory_in_store(program: KernelGraph, settings: Settings) -> Iterator[tuple[Path | None, Settings]]:
    """Yield the directory of a run whose evidence goes to the store, and the settings with which it is opened.

    A search of the same program and options that its time limit has ended is continued there. Another process that
    searches the same is waited for, but not longer than the time limit. The directory is None where nothing is kept,
    where the store cannot be written, and where that process needs longer.
    """
    key = entry_key("answer", make_job(program, settings), settings)
    if key is None or settings.resume:
        yield None, settings
        return
    place = SearchCache().unfinished(key)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_directory(place, settings.time_limit, fallback=False))
            known = any(same_search(place, settings.config, who) for who in _identities(program, settings))
            if not known:
                SearchCache().remove_unfinished(key)
        except (RunError, OSError, NotImplementedError):
            yield None, settings
            return
        yield place, replace(settings, resume=known)


def _identities(program: KernelGraph, settings: Settings) -> list[Identity]:
    """Return the identities of the searches that continue each other: as one program, or by a cover."""
    known = [identity(make_job(program, replace(settings, keep=settings.keep or KEEP)))]
    if not needs_partitioning(program, settings):
        known.insert(0, identity(make_job(program, settings)))
    return known


__all__ = ["choose_default_directory", "run_directory_in_store"]

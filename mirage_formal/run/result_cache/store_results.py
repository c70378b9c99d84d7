"""Results with evidence in the store, for callers that name no directory of their own."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirage_formal.cache.searches import SearchCache, is_store_disabled
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records.store_entry import EVIDENCE
from mirage_formal.run.result_cache.cache_lookup import find_entry
from mirage_formal.run.result_cache.keys import entry_key
from mirage_formal.run.result_cache.stored_reports import results_of
from mirage_formal.run.results.result import Result
from mirage_formal.run.settings import Settings, make_job

_RUN: Final = "run"
#: Where evidence goes that the store cannot keep.
_RUNS: Final = Path("runs")


def stored_results_of(program: KernelGraph, settings: Settings) -> list[Result] | None:
    """Return the store's results for a call of ``superoptimize``, without a search; None if it has none that is valid.

    Sound: see ``recall.find_entry``.

    Args:
        program: The program.
        settings: Settings of the user.

    Raises:
        MirageError: The program or the settings are at fault.
    """
    job = make_job(program, settings)
    key = None if settings.resume else entry_key("answer", job, settings)
    found = None if key is None else find_entry(key, job, settings.time_limit)
    return None if found is None else list(results_of(found.replayed, job.target))


@contextmanager
def temporary_run_directory(settings: Settings | None) -> Iterator[Path | None]:
    """Yield a temporary directory for a run whose evidence goes to the store; None where there is no writable store."""
    with ExitStack() as stack:
        place = None
        if settings is not None and settings.cache and not settings.resume and not is_store_disabled():
            try:
                place = stack.enter_context(SearchCache().building()) / _RUN
            except OSError:
                place = None
        yield place


def results_in_store(program: KernelGraph, settings: Settings, results: Sequence[Result], place: Path) -> list[Result]:
    """Return the results of a run in a temporary directory, with the evidence directories that remain.

    Args:
        program: The program.
        settings: Settings of the user.
        results: Results of the run.
        place: Its directory.
    """
    if (key := entry_key("answer", make_job(program, settings), settings)) is not None:
        evidence = SearchCache().path(key) / EVIDENCE
        kept = [replace(one, directory=evidence / one.directory.relative_to(place)) for one in results]
        if all(one.directory.is_dir() for one in kept):
            return kept
    where = _RUNS / f"program-{digest(program)[:12]}-{secrets.token_hex(4)}"
    where.parent.mkdir(exist_ok=True)
    shutil.move(place, where)
    return [replace(result, directory=where / result.directory.relative_to(place)) for result in results]


__all__ = ["results_in_store", "stored_results_of", "temporary_run_directory"]

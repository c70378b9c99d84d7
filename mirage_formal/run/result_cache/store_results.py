"""Results with evidence in the store, for callers that name no directory of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mirage_formal.cache.search_store import SearchCache
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records.store_entry import EVIDENCE
from mirage_formal.run.result_cache.cache_lookup import find_entry
from mirage_formal.run.result_cache.keys import entry_key
from mirage_formal.run.result_cache.stored_reports import results_of
from mirage_formal.run.results.result import Results
from mirage_formal.run.settings import Settings, make_job


def stored_results_of(program: KernelGraph, settings: Settings, most: int | None = None) -> Results | None:
    """Return the store's results for a call of ``superoptimize``, without a search; None if it has none that is valid.

    Sound: see ``recall.find_entry``.

    Args:
        program: The program.
        settings: Settings of the user.
        most: Number of a run's first candidates whose proofs are replayed, and which are the results; None for all.

    Raises:
        MirageError: The program or the settings are at fault.
    """
    job = make_job(program, settings)
    key = None if settings.resume else entry_key("answer", job, settings)
    found = None if key is None else find_entry(key, job, settings.time_limit, most=most)
    if found is None:
        return None
    cut = found.entry.record.value.status == "time-limit"
    extent = f"its time limit of {found.entry.record.value.limit_s:g} s ended the search" if cut else ""
    return Results(results_of(found.replayed, job.target), extent, cut=cut)


def results_in_store(program: KernelGraph, settings: Settings, results: Results, place: Path) -> Results:
    """Return the results of a run, with the evidence directories that remain.

    A run that was cut by its time limit stays where it is, for a later call to continue it.

    Args:
        program: The program.
        settings: Settings of the user.
        results: Results of the run.
        place: Its directory, from ``api.default_directory.run_directory_in_store``.
    """
    key = entry_key("answer", make_job(program, settings), settings)
    assert key is not None
    evidence = SearchCache().path(key) / EVIDENCE
    kept = [replace(one, directory=evidence / one.directory.relative_to(place)) for one in results]
    if not all(one.directory.is_dir() for one in kept):
        return results
    if not results.cut:
        SearchCache().remove_unfinished(key)
    return Results(kept, results.extent, cut=results.cut)


__all__ = ["results_in_store", "stored_results_of"]

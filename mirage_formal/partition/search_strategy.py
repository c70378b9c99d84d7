"""Choice between one search of a whole program and a cover by subgraphs, so that every program gets a result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Unpack

from msgspec.structs import replace

from mirage_formal.cache.lock import lock_directory
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.partition.partition import is_single_kernel_best
from mirage_formal.partition.spaces import is_searchable
from mirage_formal.partition.stored_covers import store_answer, write_stored_answer
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.records import KERNELS
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.run.driver import RunArguments, open_executor, search_program
from mirage_formal.run.result_cache.cache_lookup import claim_entry
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, make_job, remaining_time
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_fusible
from mirage_formal.search.preprocess import preprocess
from mirage_formal.support.guard import keep_results_on_stop

#: Ratio to the unfused estimate below which a candidate is clearly better.
_CLEARLY: Final = 0.75
#: Most states of a unit with several kernels, where these are expected to be no better than subgraphs.
_BESIDE: Final = 200_000
#: Share of a time limit for one search of the whole program; the rest is for covers, if its result is poor. A limit of
#: fewer than these seconds leaves covers no share, because several searches do not fit into it.
_AS_ONE: Final = 2 / 3
_COVERED_S: Final = 6.0


def needs_partitioning(program: KernelGraph, settings: Settings) -> bool:
    """Return whether a program has more operators than any candidate of its space, so that it is searched in subgraphs.

    If the user named no space, a program without products may still be one kernel, and is then searched as one. Where
    the graphs of a file are the candidates, they stand for the whole program.

    Raises:
        MirageError: The program or the settings are at fault.
    """
    job = make_job(program, settings)
    large = len(program.ops) > job.space.most_operators and not job.graphs
    return large and (settings.narrowed or not is_fusible(preprocess(program).program))


def search_or_cover(
    program: KernelGraph, settings: Settings, out: Path, **about: Unpack[RunArguments]
) -> RunReport | WholeReport:
    """Search a program as one or cover it by subgraphs; on a cache hit, return the stored result.

    A program that is larger than its space is searched in subgraphs. Any other is searched as one. If the user named no
    space and no limits, there is always a result. In that case these programs are covered by subgraphs: one that no
    search takes as one; one with several outputs, unless a kernel can have all of its operators; one for which nothing
    was found; one whose best candidate is estimated above the unfused program.

    Raises:
        MirageError: A mistake in the program, the settings or the directory.
    """
    job = make_job(program, settings)
    with keep_results_on_stop(), lock_directory(out), claim_entry("answer", job, settings) as claim:
        if claim.found is not None:
            return write_stored_answer(claim.found, job, settings, out, **about)
        report = _search_or_cover_uncached(program, settings, out, **about)
        store_answer(claim, report)
        return report


def _search_or_cover_uncached(
    program: KernelGraph, settings: Settings, out: Path, **about: Unpack[RunArguments]
) -> RunReport | WholeReport:
    """Search a program as one or by parts, without recalling it from the store; see ``search_or_cover``."""
    begin = time.monotonic()
    if needs_partitioning(program, settings):
        rest = replace(settings, time_limit=remaining_time(settings.time_limit, begin))
        return _search_covers(program, rest, out, **about)
    if settings.narrowed:
        return search_program(program, settings, out, **about)
    settings = replace(settings, longer=True)
    job = make_job(program, settings)
    with keep_results_on_stop(), lock_directory(out), open_executor(settings, about, out) as workers:
        about = {**about, "executor": workers}
        plain = preprocess(program).program
        products = not is_fusible(plain)
        whole = len(program.outputs) > 1 and products
        whole = whole or (settings.resume and (out / WHOLE_FILE).is_file())
        # One kernel does not read so many tensors: if several for all of it are promising, the whole is a part.
        whole = whole or (products and len(plain.inputs) > job.space.max_block_inputs)
        if whole or not is_searchable(program, job, settings):
            rest = replace(settings, time_limit=remaining_time(settings.time_limit, begin))
            return _search_covers(program, rest, out, **about)
        limit = settings.time_limit
        share = 1.0 if limit is None or limit < _COVERED_S else _AS_ONE
        alone = replace(settings, time_limit=remaining_time(None if limit is None else share * limit, begin))
        if products and settings.max_states is None and is_single_kernel_best(plain, job.target):
            alone = replace(alone, max_states=_BESIDE)
        report = search_program(program, alone, out, **about)
        # Views and maxima in between are where a cover may cut better.
        good = _is_good_enough(report, 1.0 if plain == program else _CLEARLY)
        if report.summary.status == "interrupted" or good or (out / KERNELS).exists():
            return report  # kernels of a resumed run are not removed without a request
        # What lies there is the run that was just made. If it was of some use, the program may be a part of its cover.
        settings = replace(settings, resume=False, force=True, time_limit=remaining_time(settings.time_limit, begin))
        done = report.summary.status == "complete" or not report.summary.found  # candidates may be left to verify
        tried = done and not _is_good_enough(report, 1.0)
        return _search_covers(program, settings, out, tried=tried, **about)


def _search_covers(
    program: KernelGraph, settings: Settings, out: Path, *, tried: bool = False, **about: Unpack[RunArguments]
) -> WholeReport:
    """Call ``cover_search.search_covers``, whose imports a search of the whole does without."""
    from mirage_formal.partition.cover_search import search_covers

    return search_covers(program, settings, out, tried=tried, **about)


def _is_good_enough(report: RunReport, share: float) -> bool:
    """Return whether to report a search: a unit failed, or a result costs at most ``share`` of the unfused program."""
    return bool(report.failed) or any(result.cost <= share * report.unfused_us for result in report.results)


def describe_extent(report: RunReport | WholeReport) -> str:
    """Return how much of its space a search has visited, as a sentence for the user."""
    runs = (report,) if isinstance(report, RunReport) else report.searches
    done, units = sum(run.summary.units_done for run in runs), sum(run.summary.units for run in runs)
    if report.summary.status != "time-limit":
        return f"the whole space was searched: {done} units"
    if done < units or not units:
        return f"its time limit ended the search after {done} of {units or 'an unknown number of'} units"
    return f"its time limit ended the verification of candidates after a search of {units} units"


__all__ = ["describe_extent", "needs_partitioning", "search_or_cover"]

"""Python entry point of a search: its options, and the call that searches, proves, ranks and measures."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import msgspec

from mirage_formal.run.preload import start_workers
from mirage_formal.run.progress import Watch, ignore_progress
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.options import (
    MEASURED,
    CallOptions,
    Overrides,
    Settings,
    check_name,
    check_options,
    options_of,
)

if TYPE_CHECKING:
    from mirage_formal.autotune.timing import TimingProcess
    from mirage_formal.graph.graph import KernelGraph
    from mirage_formal.run.results.result import Results


class Options(Overrides, total=False):
    """Optional keyword arguments of ``superoptimize``."""

    config: str | PathLike[str] | None
    checkpoint: str | PathLike[str] | None
    target: str | PathLike[str]
    engine: str
    oracle: str
    prune: bool
    seed: int
    axioms: Sequence[str | PathLike[str]] | None
    without_axioms: Sequence[str] | None
    accept: str
    workers: int | None
    worker_memory: float | None
    cluster: str | None
    time_limit: float | None
    proof_limit: float
    audit: int
    out: str | PathLike[str] | None
    name: str
    resume: bool
    force: bool
    cache: bool
    measure: int
    watch: Watch
    backend: str
    accept_kernels: str


_ENTRIES: Final = "".join(f"\n        {one.name}: {one.text}" for one in options_of(CallOptions, Settings))
Options.__doc__ = f"{Options.__doc__}\n\n    Attributes:{_ENTRIES}\n    "
#: Share of a time limit for measurements, which the search leaves to them.
_TUNING: Final = 0.25


def superoptimize(program: object, **given: Unpack[Options]) -> Results:
    """Search a program, verify every candidate, and return the reported ones, best first.

    On a machine with a GPU and CuPy, the cost model's best are built, compared with float64 and timed, and only those
    within tolerance are returned, fastest first. Elsewhere all are, in the cost model's order; and there too with a
    KernelWarning, if none is within tolerance (a program whose own operators overflow) and ``measure`` was left out.

    A program of more operators than a candidate of its space can have, or with several outputs, is cut into parts;
    the results are covers, put together from candidates of the parts (docs/whole-models.md).

    Args:
        program: A graph of the front end, or a graph.graph.KernelGraph, with at least one marked output.
        given: See ``Options``.

    Raises:
        NothingFoundError: There is nothing to return; says why, and what to try.
        MirageError: A mistake in the program, the settings or the directory; or ``measure`` was given, candidates were
            found, and none of them runs within tolerance on this GPU.
        KeyboardInterrupt: Ctrl-C; what was found is in ``out``, and ``resume`` continues.
    """
    begin = time.monotonic()
    settings, call = _split(given)
    if not _may_be_stored(program, settings):
        start_workers(settings.workers, settings.cluster)
    return _search_and_measure(program, settings, call, Path(call.out) if call.out else None, begin)


def stored_results(
    program: object,
    given: Options,
    bucket: str | None = None,
    left: float | None = None,
    most: int | None = None,
) -> Results | None:
    """Return the store's results for a call of ``superoptimize`` without ``out``; None if it has no valid ones.

    Nothing is searched. On a machine with a GPU candidates are chosen by their times, which the store does not have.
    There the stored candidates are measured, unless ``measure`` is 0, within the rest of the time limit, or a quarter
    of it.

    Args:
        program: The program.
        given: See ``Options``.
        bucket: Range of extents that the program stands for in the store; None for its own.
        left: Seconds for measurements, where less is left than the time limit of the search; None for that limit.
        most: Number of candidates that are replayed, at least, and returned where none is measured; None for all. Each
            has only these as alternatives.

    Raises:
        MirageError: A mistake in the program or the options.
    """
    from mirage_formal.run.result_cache.store_results import stored_results_of
    from mirage_formal.run.settings import as_program, check_limits

    settings, call = _split(given, bucket)
    check_limits(settings)
    if call.out is not None:
        return None
    settings, timed = _leave_time_to_measure(settings, call)
    found = stored_results_of(as_program(program), settings, most)
    if found is None:
        return None
    if not timed:
        return _apply_options(found, call)
    return search_into_store(program, given if left is None else {**given, "time_limit": left}, bucket)


def search_into_store(program: object, given: Options, bucket: str | None = None) -> Results:
    """Return the results of ``superoptimize``; if no directory is named, the evidence is kept in the store alone.

    A search that a time limit has ended is continued by a call with a longer one. If the store cannot be written, the
    evidence lies where that of ``superoptimize`` does.

    Args:
        program: The program.
        given: See ``Options``.
        bucket: See ``stored_results``.

    Raises:
        MirageError: See ``superoptimize``.
    """
    begin = time.monotonic()
    from mirage_formal.api.default_directory import run_directory_in_store
    from mirage_formal.run.result_cache.store_results import results_in_store
    from mirage_formal.run.settings import as_program

    settings, call = _split(given, bucket)
    if call.out is not None:
        return superoptimize(program, **given)
    frozen = as_program(program)
    with run_directory_in_store(frozen, settings) as (place, opened):
        if place is None:
            return superoptimize(program, **given)
        if not _may_be_stored(program, settings):
            start_workers(settings.workers, settings.cluster)
        results = _search_and_measure(program, opened, call, place, begin)
        return results_in_store(frozen, settings, results, place)


def _split(given: Options, bucket: str | None = None) -> tuple[Settings, CallOptions]:
    """Return the options of the search, and the others, which are checked.

    The back end is the one that calls have: a warning says so where it is not the given one.
    """
    settings: dict[str, Any] = {**given}
    others = {name: settings.pop(name) for name in CallOptions.__struct_fields__ if name in given}
    check_name("name", others.get("name", "program"))
    check_options(call := CallOptions(**others))
    if call.backend != "cuda":  # the others load numerical packages
        from mirage_formal.kernel_build.build import KernelWarning
        from mirage_formal.kernel_build.built_kernels import Acceptance
        from mirage_formal.kernel_build.triton.triton_acceptance import accepted_backend

        backend, instead = accepted_backend(call.backend, Acceptance(call.accept_kernels))
        if instead:
            warnings.warn(instead, KernelWarning, stacklevel=4)
        call = msgspec.structs.replace(call, backend=backend)
    return Settings(**settings, bucket=bucket), call


def _may_be_stored(program: object, settings: Settings) -> bool:
    """Return whether the store has an entry for a program, so that a search may be unnecessary; cheap to call."""
    from mirage_formal.cache.search_store import SearchCache, is_store_disabled
    from mirage_formal.graph.canonical import digest
    from mirage_formal.graph.graph import KernelGraph

    if not settings.cache or settings.resume or is_store_disabled():
        return False
    freeze = getattr(program, "freeze", None)
    frozen = program if isinstance(program, KernelGraph) else freeze() if callable(freeze) else None
    return isinstance(frozen, KernelGraph) and SearchCache().knows(digest(frozen))


def _leave_time_to_measure(settings: Settings, call: CallOptions) -> tuple[Settings, bool]:
    """Return the settings of a search, and whether its candidates are then measured, in their share of the time."""
    from mirage_formal.device import runtime

    timed = call.measure != 0 and runtime.device_count() > 0
    if timed and settings.time_limit is not None:
        settings = msgspec.structs.replace(settings, time_limit=(1 - _TUNING) * settings.time_limit)
    return settings, timed


def _search_and_measure(
    program: object, settings: Settings, call: CallOptions, place: Path | None, begin: float
) -> Results:
    """Check the options, search the program and return the results; see ``superoptimize``.

    The time limit counts from ``begin``, a value of time.monotonic(): the imports of a process's first call are in it.
    """
    name = call.name
    from mirage_formal.api.default_directory import choose_default_directory
    from mirage_formal.api.no_result_diagnosis import add_source_lines, find_reasons_for_no_result
    from mirage_formal.cache.lock import lock_directory
    from mirage_formal.frontend.origins import origins_of
    from mirage_formal.graph.canonical import digest
    from mirage_formal.partition.search_strategy import describe_extent, search_or_cover
    from mirage_formal.run.results.result import Results
    from mirage_formal.run.settings import as_program, check_limits, remaining_time

    frozen = as_program(program)
    default = name if name != "program" else f"program-{digest(frozen)[:12]}"
    check_limits(settings)
    limit = settings.time_limit
    settings, timed = _leave_time_to_measure(settings, call)
    where, settings = choose_default_directory(frozen, settings, default) if place is None else (place, settings)
    origins = origins_of(program, frozen)
    with lock_directory(where), ExitStack() as stack:
        device = stack.enter_context(_timing_process(frozen)) if timed else None
        rest = msgspec.structs.replace(settings, time_limit=remaining_time(settings.time_limit, begin))
        with add_source_lines(frozen, origins):
            report = search_or_cover(frozen, rest, where, name=name, watch=call.watch or ignore_progress)
        if report.summary.status == "interrupted":
            raise KeyboardInterrupt
        if (nothing := find_reasons_for_no_result(report, frozen, settings, origins)) is not None:
            raise nothing
        cut, extent = report.summary.status == "time-limit", describe_extent(report)
        results = Results(report.results, extent, cut=cut)
        if device is None:
            return _apply_options(results, call)
        from mirage_formal.autotune.measured_order import MeasurementLimits, order_by_measurement
        from mirage_formal.kernel_build.build import KernelWarning
        from mirage_formal.kernel_build.built_kernels import Acceptance

        measure = MEASURED if call.measure is None else call.measure
        left = None if limit is None else max(0.0, limit - (time.monotonic() - begin))
        try:
            limits = MeasurementLimits(measure, left, call.backend, Acceptance(call.accept_kernels))
            found = order_by_measurement(results, report.directory, limits, device)
            return _apply_options(Results(found, extent, cut=cut), call)
        except UnsupportedError as error:
            # No comparison was requested, so its failure must not lose the proved results.
            if call.measure is not None:
                raise
            said = f"{error}; all candidates are returned, in the order of estimates, compared with nothing"
            warnings.warn(said, KernelWarning, stacklevel=3)
            return _apply_options(results, call)


def _timing_process(program: KernelGraph) -> TimingProcess:
    """Return a process that times kernels on the GPU, which starts while the program is searched."""
    from mirage_formal.autotune.timing import TimingProcess
    from mirage_formal.graph.formats.json import to_json

    process = TimingProcess(program=to_json(program))
    process.launch()
    return process


def _apply_options(results: Results, call: CallOptions) -> Results:
    """Return the results with the kernels that their calls may run; for back end "triton", with their Triton files."""
    from mirage_formal.kernel_build.built_kernels import Acceptance
    from mirage_formal.run.results.result import Results

    found = [one.accepting(Acceptance(call.accept_kernels)) for one in results]
    if call.backend == "triton":
        found = [replace(one, backend="triton") for one in found]
    return Results(found, results.extent, cut=results.cut)

"""Python entry point of a search: its options, and the call that searches, proves, ranks and measures."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from mirage_formal.run.preload import start_workers
from mirage_formal.run.progress import Watch, ignore_progress
from mirage_formal.support import options
from mirage_formal.support.errors import UnsupportedError

if TYPE_CHECKING:
    from mirage_formal.run.results.result import Result
    from mirage_formal.run.settings import Settings
    from mirage_formal.search.bounds import IntTriples


class Options(TypedDict, total=False):
    """Optional keyword arguments of ``superoptimize``.

    Attributes:
        config: Preset ("attention", "mlp", ...) or path of a search space; None chooses by the program's operators.
        griddims: Grids, as triples; like the following lists, None leaves the space's own.
        blockdims: Threads of a block, as triples.
        imaps: Grid axis to data dim of inputs, as triples; -1 is replicated.
        omaps: Grid axis to data dim of outputs, as triples; -1 is unmapped.
        fmaps: Dims that the loop may split; -1 is none.
        franges: Ranges of the loop.
        extents: "free" or "paper".
        max_kernel_ops: Most kernel-level operators, inputs not counted.
        max_block_ops: Most block-level operators, inputs not counted.
        keep: Number of candidates to report.
        max_states: States after which a unit of the search ends with its results so far.
        target: Name or path of the target to rank for.
        engine: "guided" or "exhaustive".
        oracle: "normal-form" or "z3".
        prune: Whether abstract expressions prune.
        seed: Seed of the fingerprints.
        accept: "equivalent" returns only candidates that are proved equal to the program over the reals; "probable"
            also those that fingerprints did not refute, with that verdict.
        workers: Worker processes; None is every available processor.
        worker_memory: GiB that a task may use; None is no bound.
        cluster: Address of a dask scheduler whose workers search and prove, or "local:N" (docs/scaling.md).
        time_limit: Seconds for the whole call: the search stops after three quarters of it, and its results are
            verified and returned.
        proof_limit: Seconds for the proof of one candidate.
        out: Directory for the evidence. None is runs/<name>, with the program's digest for an unnamed one. A search
            there of the same program and options is continued (a finished one is not searched again); if it is another
            search, the first digits of this one's key are appended to the directory's name.
        name: Name of the program: one component of a path.
        resume: Continue the run in ``out``.
        force: Replace the run in ``out``; without either, an existing run is left alone.
        cache: Whether a finished search of the same program and options is read from the store (docs/store.md), and
            this one is written to it.
        measure: Number of candidates that are compared and timed where there is a GPU, within the rest of
            ``time_limit``, or a quarter of it; 0 returns all of them, unchecked.
        watch: Callback for progress.
        backend: Back end of the results' calls. "cuda": CUDA kernels. "auto": CUDA kernels, or for the first result its
            Triton file, if that was measured to be at least 2 % faster than all CUDA kernels and is within tolerance.
            "triton": Triton files, where there is a GPU those that were measured. Triton functions are tested, not
            proved safe. Where nothing is measured "auto" is "cuda", and results with "triton" are in the order of
            estimates.
    """

    config: str | PathLike[str] | None
    griddims: IntTriples | None
    blockdims: IntTriples | None
    imaps: IntTriples | None
    omaps: IntTriples | None
    fmaps: Sequence[int] | None
    franges: Sequence[int] | None
    extents: str | None
    max_kernel_ops: int | None
    max_block_ops: int | None
    keep: int | None
    max_states: int | None
    target: str | PathLike[str]
    engine: str
    oracle: str
    prune: bool
    seed: int
    accept: str
    workers: int | None
    worker_memory: float | None
    cluster: str | None
    time_limit: float | None
    proof_limit: float
    out: str | PathLike[str] | None
    name: str
    resume: bool
    force: bool
    cache: bool
    measure: int
    watch: Watch
    backend: str


#: Back ends that run results; "auto" is the faster by measurement, "cuda" where nothing was measured.
BACKENDS: Final = ("cuda", "triton", "auto")
#: Smallest share of a time limit for measurements; a search may use up to three quarters.
_TUNING: Final = 0.25
#: Options of a call that are not settings of the search.
_BESIDE: Final = frozenset({"out", "name", "measure", "watch", "backend"})


def superoptimize(program: object, **given: Unpack[Options]) -> list[Result]:
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
    place = None if given.get("out") is None else Path(options.text("out", given["out"], "a directory"))
    if not _may_be_stored(program, given):
        start_workers(given.get("workers"), given.get("cluster"))
    return _search_and_measure(program, given, _settings(given), place)


def stored_results(program: object, given: Options, bucket: str | None = None) -> list[Result] | None:
    """Return the store's results for a call of ``superoptimize`` without ``out``; None if it has no valid ones.

    Nothing is searched. On a machine with a GPU candidates are chosen by their times, which the store does not have.
    There the stored candidates are measured, unless ``measure`` is 0, within the rest of the time limit, or a quarter
    of it.

    Args:
        program: The program.
        given: See ``Options``.
        bucket: Range of extents that the program stands for in the store; None for its own.

    Raises:
        MirageError: A mistake in the program or the options.
    """
    from mirage_formal.device import runtime
    from mirage_formal.run.result_cache.store_results import stored_results_of
    from mirage_formal.run.settings import as_program, check_limits

    settings = _settings(given, bucket)
    check_limits(settings)
    if given.get("out") is not None:
        return None
    found = stored_results_of(as_program(program), settings)
    if found is None:
        return None
    if not given.get("measure", options.MEASURED) or not runtime.device_count():
        return _apply_back_end(found, given.get("backend", BACKENDS[0]))
    return search_into_store(program, given, bucket)


def search_into_store(program: object, given: Options, bucket: str | None = None) -> list[Result]:
    """Return the results of ``superoptimize``; if no directory is named, the evidence is kept in the store alone.

    If the store cannot keep it, it lies where that of ``superoptimize`` does.

    Args:
        program: The program.
        given: See ``Options``.
        bucket: See ``stored_results``.

    Raises:
        MirageError: See ``superoptimize``.
    """
    from mirage_formal.run.result_cache.store_results import results_in_store, temporary_run_directory
    from mirage_formal.run.settings import as_program

    settings = _settings(given, bucket)
    with temporary_run_directory(settings if given.get("out") is None else None) as place:
        if place is None:
            return superoptimize(program, **given)
        if not _may_be_stored(program, given):
            start_workers(given.get("workers"), given.get("cluster"))
        results = _search_and_measure(program, given, settings, place)
        return results_in_store(as_program(program), settings, results, place)


def _settings(given: Options, bucket: str | None = None) -> Settings:
    from mirage_formal.run.settings import FIELDS, Settings

    asked: dict[str, Any] = {FIELDS.get(key, key): value for key, value in given.items() if key not in _BESIDE}
    return Settings(**asked, bucket=bucket)


def _may_be_stored(program: object, given: Options) -> bool:
    """Return whether the store has an entry for a program, so that a search may be unnecessary; cheap to call."""
    from mirage_formal.cache.searches import SearchCache, is_switched_off
    from mirage_formal.graph.canonical import digest
    from mirage_formal.graph.graph import KernelGraph

    if not given.get("cache", True) or given.get("resume") or is_switched_off():
        return False
    freeze = getattr(program, "freeze", None)
    frozen = program if isinstance(program, KernelGraph) else freeze() if callable(freeze) else None
    return isinstance(frozen, KernelGraph) and SearchCache().knows(digest(frozen))


def _search_and_measure(program: object, given: Options, settings: Settings, place: Path | None) -> list[Result]:
    """Check the options, search the program and return the results; see ``superoptimize``."""
    name, measure = given.get("name", "program"), given.get("measure", options.MEASURED)
    options.plain_name("name", name)
    options.whole_number("measure", measure)
    options.allowed_word("backend", given.get("backend", BACKENDS[0]), BACKENDS)
    from mirage_formal.api.default_directory import choose_default_directory
    from mirage_formal.api.no_result_diagnosis import add_source_lines, find_reasons_for_no_result
    from mirage_formal.cache.lock import lock_directory
    from mirage_formal.device import runtime
    from mirage_formal.frontend.origins import origins_of
    from mirage_formal.graph.canonical import digest
    from mirage_formal.partition.answer import search_or_cover
    from mirage_formal.run.results.listing import Results
    from mirage_formal.run.settings import as_program, check_limits

    frozen = as_program(program)
    default = name if name != "program" else f"program-{digest(frozen)[:12]}"
    check_limits(settings)
    begin = time.monotonic()
    where, settings = choose_default_directory(frozen, settings, default) if place is None else (place, settings)
    origins = origins_of(program, frozen)
    with lock_directory(where):
        with add_source_lines(frozen, origins):
            report = search_or_cover(frozen, settings, where, name=name, watch=given.get("watch", ignore_progress))
        if report.summary.status == "interrupted":
            raise KeyboardInterrupt
        if (nothing := find_reasons_for_no_result(report, frozen, settings, origins)) is not None:
            raise nothing
        results = Results(report.results)
        backend = given.get("backend", BACKENDS[0])
        if not measure or not runtime.device_count():
            return Results(_apply_back_end(results, backend))
        from mirage_formal.autotune.measured_order import MeasurementLimits, order_by_measurement
        from mirage_formal.autotune.timing import TimingProcess
        from mirage_formal.kernel_build.build import KernelWarning

        limit = settings.time_limit_s
        left = None if limit is None else max(limit - (time.monotonic() - begin), _TUNING * limit)
        try:
            with TimingProcess() as device:
                found = order_by_measurement(
                    results, report.directory, MeasurementLimits(measure, left, backend), device
                )
                return Results(_apply_back_end(found, backend))
        except UnsupportedError as error:
            # No comparison was requested, so its failure must not lose the proved results.
            if "measure" in given:
                raise
            said = f"{error}; all candidates are returned, in the order of estimates, compared with nothing"
            warnings.warn(said, KernelWarning, stacklevel=3)
            return Results(_apply_back_end(results, backend))


def _apply_back_end(results: Sequence[Result], backend: str) -> list[Result]:
    """Return the results; for back end "triton", each one runs its Triton file."""
    return [replace(one, backend="triton") if backend == "triton" else one for one in results]

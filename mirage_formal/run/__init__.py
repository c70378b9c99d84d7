"""A program in, verified candidates and their evidence out."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirage_formal import options
from mirage_formal.run.preload import DEFAULT_TARGET, MEASURED, start_workers
from mirage_formal.run.progress import Phase, Progress, Watch, silent

if TYPE_CHECKING:
    from mirage_formal.run.driver import Report, Result, rank, run
    from mirage_formal.run.nothing import located, nothing_found
    from mirage_formal.run.settings import ENGINES, ORACLES, POLICIES, Settings, as_program
    from mirage_formal.run.whole.whole import WholeReport, run_any
    from mirage_formal.search.bounds import IntTriples

__all__ = [
    "DEFAULT_TARGET",
    "ENGINES",
    "ORACLES",
    "POLICIES",
    "Phase",
    "Progress",
    "Report",
    "Result",
    "Settings",
    "Watch",
    "WholeReport",
    "as_program",
    "located",
    "nothing_found",
    "rank",
    "run",
    "run_any",
    "silent",
    "superoptimize",
]

#: Where names are that are loaded when they are first used: whoever starts workers early has time to load the rest.
_LATER: Final = {
    **dict.fromkeys(("Report", "Result", "rank", "run"), "mirage_formal.run.driver"),
    **dict.fromkeys(("located", "nothing_found"), "mirage_formal.run.nothing"),
    **dict.fromkeys(("ENGINES", "ORACLES", "POLICIES", "Settings", "as_program"), "mirage_formal.run.settings"),
    **dict.fromkeys(("WholeReport", "run_any"), "mirage_formal.run.whole.whole"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def superoptimize(
    program: Any,
    *,
    config: str | PathLike[str] | None = None,
    griddims: IntTriples | None = None,
    blockdims: IntTriples | None = None,
    imaps: IntTriples | None = None,
    omaps: IntTriples | None = None,
    fmaps: Sequence[int] | None = None,
    franges: Sequence[int] | None = None,
    extents: str | None = None,
    max_kernel_ops: int | None = None,
    max_block_ops: int | None = None,
    keep: int | None = None,
    target: str | PathLike[str] = DEFAULT_TARGET,
    engine: str = "guided",
    oracle: str = "normal-form",
    prune: bool = True,
    seed: int = 0,
    accept: str = "equivalent",
    workers: int | None = None,
    cluster: str | None = None,
    time_limit: float | None = None,
    out: str | PathLike[str] | None = None,
    name: str = "program",
    resume: bool = False,
    force: bool = False,
    measure: int = MEASURED,
    watch: Watch = silent,
) -> list[Result]:
    """Search a program, verify every candidate, and return the reported ones, best first.

    On a machine with a GPU and CuPy, the cost model's best are built, compared with float64 and timed, and only those
    within tolerance are returned, fastest first. Elsewhere all are, in the cost model's order.

    A program of more operators than a candidate of its space can have is cut into parts; the best candidates of the
    parts are put together to one result (docs/whole-models.md), which is not measured.

    Args:
        program: A graph of the front end, or an graph.graph.KernelGraph, with at least one marked output.
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
        target: Name or path of the target to rank for.
        engine: "guided" or "exhaustive".
        oracle: "normal-form" or "z3".
        prune: Whether abstract expressions prune.
        seed: Seed of the fingerprints.
        accept: "equivalent" returns only candidates that are proved equal to the program over the reals; "probable"
            also those that fingerprints did not refute, with that verdict.
        workers: Worker processes; None is every available processor.
        cluster: Address of a dask scheduler whose workers search and prove, or "local:N" (docs/scaling.md).
        time_limit: Seconds for the search; what was found by then is verified and returned.
        out: Directory for the evidence. None is runs/<name>, with the program's digest for an unnamed one: a search
            that is there is continued if it is of the same program and options (a finished one is not searched again),
            and if not, the directory has the first digits of this one's key behind its name.
        name: Name of the program: one component of a path.
        resume: Continue the run in ``out``.
        force: Replace the run in ``out``; without either, one that is there is left alone.
        measure: How many candidates are compared and timed where there is a GPU; 0 returns all of them, unchecked.
        watch: Receives progress.

    Raises:
        NothingFoundError: There is nothing to return; says why, and what to try.
        MirageError: A mistake in the program, the settings or the directory; or candidates were found, and none of them
            runs within tolerance on this GPU.
        KeyboardInterrupt: Ctrl-C; what was found is in ``out``, and ``resume`` continues.
    """
    options.plain_name("name", name)
    options.whole("measure", measure)
    given = None if out is None else Path(options.text("out", out, "a directory"))
    start_workers(workers, cluster)
    from mirage_formal.frontend.origins import origins_of
    from mirage_formal.graph.canonical import digest
    from mirage_formal.run.nothing import located, nothing_found
    from mirage_formal.run.place.default_place import default_place
    from mirage_formal.run.place.lock import writing
    from mirage_formal.run.settings import Settings, as_program, check_limits
    from mirage_formal.run.whole.whole import WholeReport, run_any

    frozen = as_program(program)
    settings = Settings(
        config=fspath(config) if isinstance(config, PathLike) else config,
        target=fspath(target) if isinstance(target, PathLike) else target,
        engine=engine,
        oracle=oracle,
        prune=prune,
        seed=seed,
        accept=accept,
        workers=workers,
        cluster=cluster,
        time_limit_s=time_limit,
        resume=resume,
        force=force,
        extents=extents,
        griddims=griddims,
        blockdims=blockdims,
        imaps=imaps,
        omaps=omaps,
        fmaps=fmaps,
        franges=franges,
        max_kernel_ops=max_kernel_ops,
        max_block_ops=max_block_ops,
        keep=keep,
    )
    default = name if name != "program" else f"program-{digest(frozen)[:12]}"
    check_limits(settings)
    where, settings = default_place(frozen, settings, default) if given is None else (given, settings)
    origins = origins_of(program, frozen)
    with writing(where):
        with located(frozen, origins):
            report = run_any(frozen, settings, where, name=name, watch=watch)
        if report.summary.status == "interrupted":
            raise KeyboardInterrupt
        if (nothing := nothing_found(report, frozen, settings, origins)) is not None:
            raise nothing
        if isinstance(report, WholeReport):
            assert report.result is not None  # only an interrupted one has none
            return [report.result]
        results = list(report.results)
        if not measure or not import_module("mirage_formal.device.runtime").device_count():
            return results
        fastest = import_module("mirage_formal.run.built.fastest").fastest
        order: list[Result] = fastest(results, report.directory, measure)
        return order

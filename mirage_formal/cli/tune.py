"""Command ``tune``: autotuning of a run's kernels for one GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from mirage_formal.cli.utilities import (
    Json,
    ProgressMode,
    amount_option,
    answer,
    choice_option,
    count_option,
    option,
    run_command,
    single_command,
)
from mirage_formal.support.guard import print_mistake
from mirage_formal.support.terminal import escape_line

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN_DIR", help="Directories that searches have written.")]
_PlaceDir = Annotated[
    Path | None, option("--place", "DIR", "Where kernels and times are kept between calls.", "the user's cache")
]
_Kernels = Annotated[int | None, count_option("--kernels", "Kernels of a run that are made and timed", "128")]
_Finalists = Annotated[int | None, count_option("--finalists", "Candidates that are built and compared", "8")]
_Limit = Annotated[float | None, amount_option("--time-limit", "SECONDS", "For each run", "no limit")]
_Arch = Annotated[str | None, option("--arch", "ARCH", "Architecture, as in sm_90a.", "this GPU's, or sm_90a")]
_Times = Annotated[
    str | None, option("--device", "NAME", "Take the times of this GPU from DIR instead of one here.", "the GPU here")
]
_Backend = Annotated[
    str,
    choice_option(
        "--backend",
        ("cuda", "triton", "auto"),
        "Kernels of CUDA C++; with triton or auto, Triton files of the fastest candidates are timed beside them.",
    ),
]
_CLAIM = "Kernels that may be written: those proved to compute their µGraph, or tested ones too."
_Accept = Annotated[str, choice_option("--accept", ("proved", "tested"), _CLAIM)]
_Workers = Annotated[int | None, count_option("--workers", "Worker processes", "one for each processor")]

#: What the phases are called on the screen.
_PHASES: Final = {
    "forms": "candidates described",
    "kernels": "kernels made",
    "timed": "kernels timed",
    "again": "timed again",
    "built": "candidates built",
    "measured": "candidates measured",
    "triton": "Triton files timed",
}


def tune_command(
    runs: _Runs,
    place: _PlaceDir = None,
    kernels: _Kernels = None,
    finalists: _Finalists = None,
    time_limit: _Limit = None,
    arch: _Arch = None,
    device: _Times = None,
    backend: _Backend = "cuda",
    accept: _Accept = "proved",
    workers: _Workers = None,
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Find the fastest kernels of a run's candidates on this GPU; without one, make what is to be timed elsewhere.

    Kernels are timed, not candidates: each block graph with each schedule once. Every kernel is proved safe before it
    runs. The best candidates are proved to compute their µGraphs, and compared with float64, before they are reported.
    What was made and timed is kept, so the same command goes on where it was stopped.

    With --backend auto the answer is a Triton file where one is at least 2 % faster than all CUDA kernels and within
    tolerance. Functions of Triton are tested, not proved safe or to compute their µGraph. So this needs --accept
    tested; without it auto is CUDA C++. The CUDA kernels and their proofs stay in the run.
    """
    from mirage_formal.autotune.kernel_preparation import PRELOAD
    from mirage_formal.autotune.plans import TuningDirectory
    from mirage_formal.autotune.timing import TimingProcess
    from mirage_formal.autotune.tune import NoTimesError, tune_run
    from mirage_formal.autotune.tuning_result import FINALISTS, MOST_KERNELS, TuningLimits, TuningResources
    from mirage_formal.device.runtime import device_count
    from mirage_formal.kernel_build.built_kernels import Acceptance
    from mirage_formal.kernel_build.triton.triton_output import exclude_triton_outputs
    from mirage_formal.run.progress.display_choice import display
    from mirage_formal.support.resources import worker_count
    from mirage_formal.workers.pool import Pool

    where = TuningDirectory(place)
    gpu: Any = device if device is not None else TimingProcess() if device_count() else None
    wanted = arch or (gpu.machine.arch if isinstance(gpu, TimingProcess) else "sm_90a")
    limits = TuningLimits(kernels or MOST_KERNELS, finalists or FINALISTS, time_limit)
    found: list[tuple[Path, Any]] = []
    failed: dict[Path, NoTimesError] = {}
    every = exclude_triton_outputs(runs)
    closing = gpu if isinstance(gpu, TimingProcess) else contextlib.nullcontext()
    with closing, Pool(worker_count(workers), PRELOAD) as executor:
        for root in every:
            try:
                with display(progress, "tune") as shown:
                    step = _named(shown.steps(root.name))
                    bench = TuningResources(where, gpu, executor, step, wanted, limits, backend, Acceptance(accept))
                    tuned = tune_run(root, bench)
            except NoTimesError as error:  # of this run alone
                if len(every) == 1:
                    raise
                failed[root] = error
                print_mistake(error)
                continue
            found.append((root, tuned))
            if not json:
                _print(root, tuned, where, Console())
    code = 0 if not failed and all(tuned.left or _answered(tuned, backend) for _, tuned in found) else 1
    if json:
        rows: list[dict[str, Any]] = [{"run": str(root), **_fields(tuned)} for root, tuned in found]
        answer("tune", code, rows + [{"run": str(root), "failed": str(error)} for root, error in failed.items()])
    raise typer.Exit(code)


def _answered(tuned: Any, backend: str) -> bool:
    """Return whether tuning produced the requested result."""
    return any(row.us for row in tuned.rows) and (backend != "triton" or tuned.triton.backend == "triton")


def _named(step: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
    """Return the callback with the phases renamed for display."""
    return lambda phase, done, total: step(_PHASES[phase], done, total)


def _fields(tuned: Any) -> dict[str, Any]:
    """Return the result of tuning as plain values."""
    import msgspec

    names = ("kernels", "added", "ready", "timed", "rows", "left")
    found = {name: msgspec.to_builtins(getattr(tuned, name)) for name in names}
    if tuned.triton is not None:
        parts = ("backend", "said", "rows", "cuda_us")
        found["triton"] = {name: msgspec.to_builtins(getattr(tuned.triton, name)) for name in parts}
    return found


def _print(root: Path, tuned: Any, place: Any, console: Console) -> None:
    from mirage_formal.support.result_tables import result_table  # for this command alone, as the progress

    head = f"{root}: {tuned.kernels} kernels considered, {tuned.ready} may run, {tuned.timed} timed"
    if tuned.added:
        head += f"; {tuned.added} more than asked for, without which no whole candidate could be compared"
    console.print(escape_line(head), markup=False, highlight=False, soft_wrap=True)
    if tuned.rows:
        rows = []
        for row in tuned.rows:
            name = row.name if not row.form else f"{row.name} {row.form}"
            us = "failed" if row.said else "-" if row.us is None else f"{row.us:.2f}"
            rows.append((name, us, f"{row.composed_us:.2f}", f"{row.estimated_us:.2f}", str(row.model_rank)))
        for file in _shown(tuned.triton):
            us = "failed" if file.us is None else f"{file.us:.2f}"
            rows.append((f"{file.name} in Triton, {file.options}", us, "-", "-", "-"))
        columns = (("candidate", True), *((name, False) for name in ("us", "sum", "estimate", "by model")))
        console.print(result_table("", columns, rows, console.width))
        for row in tuned.rows:
            for said in filter(None, (row.said, *row.tested)):
                console.print(escape_line(f"{row.name}: {said}"), markup=False, highlight=False, soft_wrap=True)
    if tuned.triton is not None:
        text = f"{tuned.triton.said}{_written(root, tuned.triton)}"
        console.print(escape_line(text, 4000), markup=False, highlight=False, soft_wrap=True)
    if tuned.left:
        hint = f"next: {tuned.left}: python -m mirage_formal.gpu tune --place {place.root} {root}"
        console.print(escape_line(hint, 4000), markup=False, highlight=False, soft_wrap=True)


def _written(root: Path, triton: Any) -> str:
    """Write the chosen Triton file and its log beside the run, as ``build --backend triton`` does; return a remark."""
    from mirage_formal.kernel_build.triton.triton_output import default_triton_directory, save_file
    from mirage_formal.records import to_indented_json
    from mirage_formal.support.errors import RunError

    if triton.backend != "triton":
        return ""
    name, text = next(iter(triton.texts.items()))
    path = default_triton_directory(root) / f"{name}.py"
    try:
        save_file(text, path, force=False)
        if name in triton.logs:
            save_file(to_indented_json(triton.logs[name]).decode(), path.with_suffix(".json"), force=False)
    except RunError as error:
        return f"; not written: {error}"
    return f"; written to {path}"


def _shown(triton: Any) -> list[Any]:
    """Return the fastest Triton file of each candidate."""
    found: dict[str, Any] = {}
    for file in () if triton is None else triton.rows:
        if file.name not in found or (file.chosen and not found[file.name].chosen):
            found[file.name] = file
    return list(found.values())


__all__ = ["tune_command"]

if __name__ == "__main__":
    run_command(single_command(tune_command), "tune")

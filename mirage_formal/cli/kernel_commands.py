"""Commands on kernels: ``build`` writes them, ``run`` computes with them, ``emulate`` and ``gpu`` test them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from mirage_formal.cli.utilities import (
    STYLE,
    Json,
    ProgressMode,
    amount_option,
    answer,
    choice_option,
    count_option,
    flag_option,
    invoke_command,
    option,
    reject_options,
    seed_option,
    single_command,
)
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.terminal import escape_line

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN_DIR", help="Directories that searches have written.")]
_Run = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory that a search has written.")]
_Count = Annotated[int, count_option("--count", "Candidates that get kernels")]
_ARCHS: Final = "sm_80, sm_90a"
_Archs = Annotated[
    list[str] | None, option("--arch", "ARCH", "Architecture to compile for, as in sm_90a; repeatable.", _ARCHS)
]
_Force = Annotated[bool, flag_option("--force", "Also replace kernels that have results of a device.")]
_BEST = "Of each candidate, build the form with the best estimate: factors behind products, loops split over blocks."
_Forms = Annotated[bool, flag_option("--forms", _BEST)]
_CLAIM = "Kernels that may be written: those proved to compute their µGraph, or tested ones too."
_Accept = Annotated[str, choice_option("--accept", ("proved", "tested"), _CLAIM)]
_KINDS = (
    "What is written: CUDA kernels with their obligations into RUN_DIR/kernels, or one Triton file for each, which "
    "needs --accept tested."
)
_Backend = Annotated[str, choice_option("--backend", ("cuda", "triton"), _KINDS)]
_WHERE_TRITON = "Of triton: where the files are written."
_Written = Annotated[Path | None, option("--out", "DIR", _WHERE_TRITON, "RUN_DIR-triton")]
_ThisOne = "The candidate of this rank, or the part of a whole program"
_Part = Annotated[int | None, count_option("--candidate", _ThisOne, "the best, or all parts")]
_OWN = "At the program's own extents, after an estimate of the time, not with fewer blocks and iterations."
_Real = Annotated[bool, flag_option("--real", _OWN)]
_Seed = Annotated[int, seed_option("Seed of the inputs")]
_EachLimit = Annotated[float, amount_option("--time-limit", "SECONDS", "For each candidate or part")]
_Kernels = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="A run, or the directory of one candidate's kernels.")
]
_Rank = Annotated[int | None, count_option("--candidate", "The candidate of this rank", "all")]
_Measure = Annotated[bool, flag_option("--measure", "Time it, and write measure.json.")]
_Numerics = Annotated[bool, flag_option("--numerics", "Compare with float64, and write numerics.json.")]
_HOST = (
    "Compute predefined products on the host instead of with cuBLAS, so that a tool that watches kernels sees the "
    "generated ones alone; neither --measure nor --numerics goes with it."
)
_NoLibrary = Annotated[bool, flag_option("--without-library", _HOST)]
_Compared = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN_DIR", help="Runs whose kernels are compared and timed as well.", show_default="none"),
]
_Place = Annotated[
    Path | None, option("--place", "DIR", "Where `mirage-formal tune --place DIR` has put them.", "the user's cache")
]
_Limit = Annotated[float | None, amount_option("--time-limit", "SECONDS", "For everything", "no limit")]

_Subject = Annotated[
    Path, typer.Argument(metavar="PATH", help="A run, a candidate, kernels, or a file with one graph or program.")
]
_NPZ = "NumPy archive (.npz) with an array for each input, by its name."
_Inputs = Annotated[Path | None, option("--inputs", "FILE.npz", _NPZ, "seeded random numbers")]
_Outputs = Annotated[
    Path | None, option("--out", "FILE.npz", "Where to write the outputs: output0, output1 ...", "nowhere")
]
_AnyRank = Annotated[int | None, count_option("--candidate", "The candidate, or cover, of this rank", "the best")]
_WHERE = "What computes; auto: a GPU where there is one."
_On = Annotated[str, choice_option("--on", ("auto", "gpu", "reference"), _WHERE)]


def build_command(
    run: _Runs,
    count: _Count = 4,
    arch: _Archs = None,
    force: _Force = False,
    forms: _Forms = False,
    accept: _Accept = "proved",
    backend: _Backend = "cuda",
    out: _Written = None,
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Write the kernels of a run's best candidates; exit code 1 if a run gets none."""
    from mirage_formal.device.compile import available, nvrtc_hint
    from mirage_formal.kernel_build.build import ARCHS, KernelChoice, build_run
    from mirage_formal.kernel_build.built_kernels import Acceptance
    from mirage_formal.kernel_build.triton.triton_acceptance import accepted_backend
    from mirage_formal.kernel_build.triton.triton_output import exclude_triton_outputs, write_run
    from mirage_formal.run.progress.display_choice import display

    triton = backend == "triton"
    reject_options(
        {"--arch": arch, "--forms": forms} if triton else {"--out": out},
        "--backend cuda" if triton else "--backend triton",
    )
    accepted_backend(backend, Acceptance(accept), "--backend", "--accept tested")
    if out is not None and len(run) > 1:
        raise SpaceError("expected one RUN_DIR with it, got several", where="--out", hint="leave it out")
    found = []
    with display(progress, "build") as shown:
        for root in exclude_triton_outputs(run):
            if triton:
                tried = write_run(root, count, out, force=force)
            else:
                steps = shown.steps(root.name)
                choice = KernelChoice(forms, Acceptance(accept))
                tried = build_run(root, count, arch or ARCHS, force=force, choice=choice, step=steps)
            found.append((root, tried))
    code = 0 if all(any(said.startswith("built") for _, said in tried) for _, tried in found) else 1
    if json:
        rows = [
            {"run": str(root), "candidates": [{"name": name, "outcome": said} for name, said in tried]}
            for root, tried in found
        ]
        raise typer.Exit(answer("build", code, {"runs": rows, "machine_code": available()}))
    for root, tried in found:
        for name, outcome in tried:
            print(escape_line(f"{root}: {name}: {outcome}", 4000))
    if not triton and not available():
        print(
            "No machine code was written: there is no NVRTC here, which compiles the kernels. They are compiled when "
            f"they are first loaded on a machine that has it. To have it here: {nvrtc_hint()}."
        )
    raise typer.Exit(code)


def emulate_command(
    run: _Run,
    candidate: _Part = None,
    real: _Real = False,
    seed: _Seed = 0,
    time_limit: _EachLimit = 600.0,
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Run a candidate's kernels on the CPU emulator, and compare their results with float64."""
    from mirage_formal.emulate.emulator_command import as_values, emulate, print_table
    from mirage_formal.run.progress.display_choice import display

    with display(progress, "emulate") as shown:
        steps = shown.steps(run.name)
        found = emulate(run, candidate, real=real, seed=seed, limit_s=time_limit, step=steps)
    code = 0 if all(one.inside for one in found) else 1
    if json:
        raise typer.Exit(answer("emulate", code, as_values(found)))
    print_table(run, found, real=real)
    raise typer.Exit(code)


gpu_app = typer.Typer(
    **STYLE,
    no_args_is_help=True,
    help="Run, compare and time the kernels of a run where there is a GPU; or say what this machine has.",
)


@gpu_app.command("run")
def gpu_run_command(
    directory: _Kernels,
    candidate: _Rank = None,
    measure: _Measure = False,
    numerics: _Numerics = False,
    seed: _Seed = 0,
    without_library: _NoLibrary = False,
    json: Json = False,
) -> None:
    """Run kernels on seeded inputs."""
    from mirage_formal import gpu

    how = {"measure": measure, "numerics": numerics, "library": not without_library}
    raise typer.Exit(gpu.print_reports(gpu.run_all(directory, candidate, seed, **how), as_json=json))


@gpu_app.command("tune")
def gpu_tune_command(
    directory: _Compared = None,
    place: _Place = None,
    time_limit: _Limit = None,
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Time the kernels that `mirage-formal tune` has made elsewhere."""
    from mirage_formal import gpu
    from mirage_formal.run.progress.display_choice import display

    with display(progress, "gpu tune") as shown:
        found = gpu.tune(place, directory or [], time_limit, shown.steps(""))
    raise typer.Exit(gpu.print_tuned(found, as_json=json))


@gpu_app.command("info")
def gpu_info_command(json: Json = False) -> None:
    """Say what this machine has."""
    from mirage_formal import gpu

    raise typer.Exit(gpu.print_machine(gpu.machine(), as_json=json))


def execute_command(
    path: _Subject,
    inputs: _Inputs = None,
    out: _Outputs = None,
    candidate: _AnyRank = None,
    on: _On = "auto",
    seed: _Seed = 0,
    json: Json = False,
) -> None:
    """Compute a graph's outputs from arrays: by its kernels where there is a GPU, else by the reference semantics.

    What computed them is said. The reference semantics are those of the graph, in float64, rounded to the element types
    of the outputs.
    """
    from mirage_formal.cli.graphs.arrays import array_summary, compute_outputs, read_arrays, write_arrays
    from mirage_formal.cli.graphs.subject import read_graph

    one = read_graph(path, candidate)
    arrays = read_arrays(one.graph, inputs, seed)
    by, results = compute_outputs(one, arrays, on)
    if out is not None:
        write_arrays(out, results)
    rows = [array_summary(array) for array in results]
    if json:
        values = {"name": one.name, "computed_by": by, "outputs": rows, "out": None if out is None else str(out)}
        raise typer.Exit(answer("run", 0, values))
    print(escape_line(f"{one.name}: computed by {by}", 4000))
    for number, row in enumerate(rows):
        print(
            escape_line(f"  output{number}: {row['dtype']}{row['shape']}, {row['least']:.6g} to {row['most']:.6g}", 400)
        )
    if out is not None:
        print(escape_line(f"written to {out}", 4000))


def build_main(arguments: Sequence[str]) -> int:
    """Run ``python -m mirage_formal.kernel_build``."""
    return invoke_command(single_command(build_command), arguments, "build", "python -m mirage_formal.kernel_build")


def emulate_main(arguments: Sequence[str]) -> int:
    """Run ``python -m mirage_formal.emulate``."""
    return invoke_command(single_command(emulate_command), arguments, "emulate", "python -m mirage_formal.emulate")


__all__ = ["build_command", "build_main", "emulate_command", "emulate_main", "execute_command", "gpu_app"]

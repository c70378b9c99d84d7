"""Command line application: all commands, progress, tables, and one screen for every user mistake.

Exit codes: 0 done, 1 done but incomplete (a unit of the search failed, a search found nothing, a graph is not
equivalent), 2 a mistake in the arguments or input, and those of ``guard``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console

from mirage_formal.cli.check import check_command
from mirage_formal.cli.doctor import doctor_command
from mirage_formal.cli.export import export_command
from mirage_formal.cli.kernelbench import kernelbench_command
from mirage_formal.cli.kernels import build_command, emulate_command, execute_command, gpu_app
from mirage_formal.cli.kit import (
    STYLE,
    Json,
    ProgressMode,
    amount_option,
    answer,
    count_option,
    option,
    run_command,
    seed_option,
    switch,
)
from mirage_formal.cli.look import docs_command, explain_command, schema_command, show_command
from mirage_formal.cli.report import report_command
from mirage_formal.cli.reproduce import app as reproduce_app
from mirage_formal.cli.store import app as store_app
from mirage_formal.cli.tune import tune_command
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.terminal import escape_line

if TYPE_CHECKING:
    from mirage_formal.run.driver import RunArguments

app = typer.Typer(
    name="mirage-formal",
    help="Search µGraphs for a tensor program, with evidence for every candidate; check such evidence; verify graphs.",
    no_args_is_help=True,
    **{**STYLE, "add_completion": True},
)
_alone = typer.Typer(**STYLE)
_verify_alone = typer.Typer(**STYLE)
INTERRUPTED: Final = 130


_File = Annotated[Path, typer.Argument(metavar="FILE", help="Python file that defines kernel graphs at module level.")]
_Program = Annotated[str | None, option("--program", "NAME", "Name of the one graph to search.", "all")]
_Config = Annotated[
    str | None, option("--config", "PRESET|FILE.toml", "Search space, or a preset's name.", "by the program")
]
_Target = Annotated[str, option("--target", "NAME|FILE.toml", "GPU to rank for.")]
_Out = Annotated[Path | None, option("--out", "DIR", "Directory to write.", "runs/<file>")]
_Workers = Annotated[int | None, count_option("--workers", "Worker processes", "one for each processor")]
_Schedulers = "Dask scheduler whose workers compute, or N workers of dask here."
_Cluster = Annotated[str | None, option("--cluster", "tcp://HOST:PORT|local:N", _Schedulers, "none")]
_WorkerMemory = Annotated[
    float | None, amount_option("--worker-memory", "GIB", "Memory that one task may use", "no bound")
]
_Engine = Annotated[str, option("--engine", "guided|exhaustive|MODULE:CLASS", "Search engine, or one of your own.")]
_Oracle = Annotated[str, option("--oracle", "normal-form|z3", "Decides which abstract expressions are pruned.")]
_NoPrune = Annotated[bool, switch("--no-prune", "Do not prune by abstract expressions.")]
_KernelOps = Annotated[
    int | None, count_option("--max-kernel-ops", "Kernel-level operators, without inputs", "the space's")
]
_BlockOps = Annotated[
    int | None, count_option("--max-block-ops", "Block-level operators, without inputs", "the space's")
]
_Sources = "Where grids, maps and loop ranges come from: every divisor, or the paper's lists."
_Extents = Annotated[str | None, option("--extents", "free|paper", _Sources, "the space's")]
_Grids = Annotated[
    list[str] | None, option("--griddim", "X,Y,Z", "Search these grids only; repeatable.", "the space's")
]
_Keep = Annotated[int | None, count_option("--keep", "Candidates to report", "the space's")]
_Seed = Annotated[int, seed_option("Seed of the fingerprints")]
_Policies = "equivalent: report only what is proved; probable: what is not refuted, too."
_Accept = Annotated[str, option("--accept", "equivalent|probable", _Policies)]
_TimeLimit = Annotated[float | None, amount_option("--time-limit", "SECONDS", "For all of a run", "no limit")]
_ProofLimit = Annotated[float, amount_option("--proof-limit", "SECONDS", "For the proof of one candidate", "300")]
_Resume = Annotated[bool, switch("--resume", "Continue the run in the output directory.")]
_Force = Annotated[bool, switch("--force", "Replace the run in the output directory.")]
_NoCache = Annotated[bool, switch("--no-cache", "Search again what was searched before, and keep nothing.")]

_ProgramFile = Annotated[Path, typer.Argument(metavar="PROGRAM", help="Python file that defines the program.")]
_GraphFile = Annotated[
    Path, typer.Argument(metavar="GRAPH", help="JSON file of one or several graphs, in our format or Mirage's.")
]
_Wanted = Annotated[
    str | None, option("--program", "NAME", "Name of the program, if the file defines several.", "the only one")
]
_CounterSeed = Annotated[int, seed_option("Seed of the search for counterexamples")]
_VerdictsOut = Annotated[
    Path | None, option("--out", "DIR", "New directory for verdicts, graphs and proofs.", "none is written")
]
_Explain = Annotated[
    str | None, option("--explain", "text|latex", "Print every proof as formulas as well.", "no formulas")
]
_GraphLimit = Annotated[float, amount_option("--time-limit", "SECONDS", "For each graph, which then is unknown", "300")]


def _version(wanted: bool) -> None:
    if wanted:
        from mirage_formal import __version__

        print(f"mirage_formal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version.", show_default="off"),
    ] = False,
) -> None:
    """See the application's help."""


@app.command("search")
@_alone.command()
def search_command(
    file: _File,
    program: _Program = None,
    config: _Config = None,
    target: _Target = "h200",
    out: _Out = None,
    workers: _Workers = None,
    cluster: _Cluster = None,
    worker_memory: _WorkerMemory = None,
    engine: _Engine = "guided",
    oracle: _Oracle = "normal-form",
    no_prune: _NoPrune = False,
    max_kernel_ops: _KernelOps = None,
    max_block_ops: _BlockOps = None,
    extents: _Extents = None,
    griddim: _Grids = None,
    keep: _Keep = None,
    seed: _Seed = 0,
    accept: _Accept = "equivalent",
    time_limit: _TimeLimit = None,
    proof_limit: _ProofLimit = 300.0,
    resume: _Resume = False,
    force: _Force = False,
    no_cache: _NoCache = False,
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Search every module-level kernel graph of FILE that has a marked output."""
    from mirage_formal.run.preload import start_workers

    start_workers(workers, cluster)
    from mirage_formal.run.settings import Settings

    settings = Settings(
        config=config,
        target=target,
        engine=engine,
        oracle=oracle,
        prune=not no_prune,
        seed=seed,
        accept=accept,
        workers=workers,
        cluster=cluster,
        worker_memory_gib=worker_memory,
        time_limit_s=time_limit,
        proof_limit_s=proof_limit,
        resume=resume,
        force=force,
        cache=not no_cache,
        extents=extents,
        griddims=None if griddim is None else [_triple(text) for text in griddim],
        max_kernel_ops=max_kernel_ops,
        max_block_ops=max_block_ops,
        keep=keep,
    )
    raise typer.Exit(_search(file, program, (out, progress), settings, as_json=json))


@app.command("verify")
@_verify_alone.command()
def verify_command(
    program_file: _ProgramFile,
    graph_file: _GraphFile,
    program: _Wanted = None,
    seed: _CounterSeed = 0,
    out: _VerdictsOut = None,
    explain: _Explain = None,
    time_limit: _GraphLimit = 300.0,
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Prove or refute that every graph of GRAPH computes what PROGRAM does; exit code 0 only if all are proved."""
    if explain not in (None, "text", "latex") or (explain and json):
        what = "expected text or latex, and no --json" if json else f"expected text or latex, got {explain!r}"
        raise SpaceError(what, where="--explain", hint="leave it out for the table alone")
    from mirage_formal.cli.graphs.user_file import choose, load_programs
    from mirage_formal.graph.verdict import Equivalent
    from mirage_formal.run.progress.choice import display
    from mirage_formal.run.settings import display_path
    from mirage_formal.run.verify.verdicts import (
        ProgramVerdicts,
        explanations,
        judge_graphs,
        load_graphs,
        only_program,
        plain_verdict,
        print_verdicts,
        write_verdicts,
    )
    from mirage_formal.support.guard import stopped_by

    name, wanted = only_program(choose(load_programs(program_file), program, program_file), program_file)
    given = load_graphs(graph_file, wanted)
    judged = []
    try:
        with write_verdicts(out, name, wanted) as keep, display(progress, "verify") as shown:
            shown.step("verifying", 0, len(given), name)
            for one in judge_graphs(wanted, given, display_path(graph_file), seed=seed, time_limit=time_limit):
                judged.append(one)
                keep(one)
                shown.step("verifying", len(judged), len(given), name)
    finally:  # what was found when an interrupt comes is shown
        complete = len(judged) == len(given)
        code = 0 if complete and all(isinstance(one.verdict, Equivalent) for one in judged) else 1
        if json and (judged or not given):
            values = ProgramVerdicts(name, tuple(map(plain_verdict, judged)))
            answer("verify", code if complete else stopped_by() or code, values)
        elif judged or not given:
            print_verdicts(name, judged, Console())
    if explain is not None:
        for text in explanations(wanted, judged, latex=explain == "latex", time_limit=time_limit):
            print(text)
    raise typer.Exit(code)


app.command("check")(check_command)
app.command("build")(build_command)
app.command("tune")(tune_command)
app.command("run")(execute_command)
app.command("emulate")(emulate_command)
app.add_typer(gpu_app, name="gpu")
app.command("show")(show_command)
app.command("explain")(explain_command)
app.add_typer(reproduce_app, name="reproduce")
app.add_typer(store_app)
app.command("report")(report_command)
app.command("kernelbench")(kernelbench_command)
app.command("export")(export_command)
app.command("doctor")(doctor_command)
app.command("docs")(docs_command)
app.command("schema")(schema_command)


def main() -> NoReturn:
    """Run ``mirage-formal`` and ``python -m mirage_formal``."""
    run_command(app)


def search_main() -> NoReturn:
    """Run ``python -m mirage_formal.search``."""
    run_command(_alone, "search")


def verify_main() -> NoReturn:
    """Run ``python -m mirage_formal.verify``."""
    run_command(_verify_alone, "verify")


def _triple(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and part.isascii() for part in parts):
        raise SpaceError(
            f"expected three integers X,Y,Z, got {text!r}", where="--griddim", hint="as in --griddim 2,32,1"
        )
    x, y, z = (int(part) for part in parts)
    return (x, y, z)


def _search(file: Path, wanted: str | None, places: tuple[Path | None, str], settings: Any, *, as_json: bool) -> int:
    """Search the programs of a file; ``places`` are the directory of the evidence and the progress mode."""
    import dataclasses

    from mirage_formal.api.no_result_diagnosis import add_source_lines, find_reasons_for_no_result
    from mirage_formal.cli.graphs.user_file import choose, read_programs
    from mirage_formal.partition.answer import search_or_cover
    from mirage_formal.partition.show import print_any, reports_values
    from mirage_formal.run.executors import make_executor
    from mirage_formal.run.progress.choice import display
    from mirage_formal.support.guard import stopped_by

    out, progress = places
    programs = read_programs(file)
    root = Path("runs") / file.stem if out is None else out
    chosen = choose(programs, wanted, file)
    code = 0
    reports = []
    with make_executor(settings) as executor:
        for name, written in chosen.items():
            graph, origins = written.program, written.origins
            if written.unmarked:
                text = f"{name}: no output is marked; outputs are what nothing reads: {', '.join(written.unmarked)}"
                Console(stderr=True).print(escape_line(text), markup=False, highlight=False, soft_wrap=True)
            directory = root / name if len(programs) > 1 and (out is None or len(chosen) > 1) else root
            mine = settings
            if settings.resume and len(chosen) > 1 and not directory.exists():
                mine = dataclasses.replace(settings, resume=False)  # an interrupted run had not come to this program
            with display(progress, "search") as shown, add_source_lines(graph, origins):
                about: RunArguments = {
                    "name": name,
                    "source": str(file),
                    "watch": shown.watch(name),
                    "executor": executor,
                }
                report = search_or_cover(graph, mine, directory, **about)
            nothing = find_reasons_for_no_result(report, graph, mine, origins)
            reports.append((report, nothing))
            if not as_json:
                print_any(report, Console(), nothing)
            if report.summary.status == "interrupted":
                code = stopped_by() or INTERRUPTED
                break
            code = max(code, 1 if report.failed or nothing is not None else 0)
    return answer("search", code, reports_values(reports)) if as_json else code

"""Command line application: all commands, progress, tables, and one screen for every user mistake.

Exit codes: 0 done, 1 done but incomplete (a unit of the search failed, a search found nothing, a graph is not
equivalent), 2 a mistake in the arguments or input, and those of ``guard``.

The options of a search, with their types, defaults and help texts, are in support/options.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from mirage_formal.cli.check import check_command
from mirage_formal.cli.doctor import doctor_command
from mirage_formal.cli.export import export_command
from mirage_formal.cli.inspect_commands import (
    axioms_command,
    docs_command,
    explain_command,
    schema_command,
    show_command,
)
from mirage_formal.cli.kernel_commands import build_command, emulate_command, execute_command, gpu_app
from mirage_formal.cli.kernelbench import kernelbench_command
from mirage_formal.cli.report import report_command, watch_command
from mirage_formal.cli.reproduce import app as reproduce_app
from mirage_formal.cli.search.search_files import check_program, search_files
from mirage_formal.cli.store import app as store_app
from mirage_formal.cli.tune import tune_command
from mirage_formal.cli.utilities import (
    STYLE,
    Json,
    ProgressMode,
    add_options,
    amount_option,
    answer,
    moved_commands,
    option,
    run_command,
    seed_option,
    single_command,
)
from mirage_formal.run.preload import start_workers
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.options import CallOptions, Settings, given_options


class _Root(TyperGroup):
    """The commands; those of ``tools`` also by their own names, which they had before."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one that has moved says where to."""
        found = super().get_command(ctx, cmd_name)
        if found is None and (found := moved_commands(self).get(cmd_name)) is not None and not ctx.resilient_parsing:
            text = f"note: mirage-formal {cmd_name} is now mirage-formal tools {cmd_name}"
            print(text, file=sys.stderr)
        return found


app = typer.Typer(
    cls=_Root,
    name="mirage-formal",
    help="Search µGraphs for a tensor program, with evidence for every candidate; check such evidence; verify graphs.",
    no_args_is_help=True,
    **{**STYLE, "add_completion": True},
)
tools = typer.Typer(
    **STYLE,
    no_args_is_help=True,
    help="Build, run and time kernels; look at graphs, proofs and stored results; benchmarks; this machine.",
)


_Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="Python files that define kernel graphs at module level.")
]
_Program = Annotated[str | None, option("--program", "NAME", "Name of the one graph to search.", "all")]

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


def search_command(
    files: _Files, program: _Program = None, *, json: Json = False, progress: ProgressMode = "auto", **given: Any
) -> None:
    """Search every module-level kernel graph of each FILE that has a marked output."""
    start_workers(given["workers"], given["cluster"])  # while this process loads what follows
    settings = given_options(Settings, given)
    check_program(files, program)
    raise typer.Exit(search_files(files, program, (given["out"], progress), settings, as_json=json))


app.command("search")(add_options(search_command, CallOptions, Settings))


@app.command("verify")
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
    from mirage_formal.run.progress.display_choice import display
    from mirage_formal.run.settings import display_path
    from mirage_formal.run.verify.graph_file import load_graphs, read_graph_file
    from mirage_formal.run.verify.verdicts import (
        ProgramVerdicts,
        compute_verdicts,
        explanations,
        only_program,
        plain_verdict,
        print_verdicts,
        write_verdicts,
    )
    from mirage_formal.support.guard import stopped_by

    name, wanted = only_program(choose(load_programs(program_file), program, program_file), program_file)
    given = load_graphs(read_graph_file(graph_file, display_path(graph_file)), display_path(graph_file), wanted)
    judged = []
    try:
        with write_verdicts(out, name, wanted) as keep, display(progress, "verify") as shown:
            shown.step("verifying", 0, len(given), name)
            for one in compute_verdicts(wanted, given, display_path(graph_file), seed=seed, time_limit=time_limit):
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
app.command("tune")(tune_command)
app.command("run")(execute_command)
app.command("report")(report_command)
app.command("watch")(watch_command)
app.command("export")(export_command)
app.command("axioms")(axioms_command)
app.add_typer(tools, name="tools")
tools.command("build")(build_command)
tools.command("emulate")(emulate_command)
tools.command("show")(show_command)
tools.command("explain")(explain_command)
tools.command("kernelbench")(kernelbench_command)
tools.command("doctor")(doctor_command)
tools.command("docs")(docs_command)
tools.command("schema")(schema_command)
tools.add_typer(gpu_app, name="gpu")
tools.add_typer(reproduce_app, name="reproduce")
tools.add_typer(store_app)


def main() -> NoReturn:
    """Run ``mirage-formal`` and ``python -m mirage_formal``."""
    run_command(app)


def verify_main() -> NoReturn:
    """Run ``python -m mirage_formal.verify``."""
    run_command(single_command(verify_command), "verify")

"""Command ``mirage-formal tools kernelbench``: imports, searches, rewrites and compares KernelBench problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from mirage_formal.cache.lock import lock_directory
from mirage_formal.cli.utilities import (
    Json,
    amount_option,
    answer,
    count_option,
    flag_option,
    option,
    run_command,
    single_command,
    value_parser,
)
from mirage_formal.support.errors import SpaceError, UnsupportedError
from mirage_formal.support.options import Count, Natural
from mirage_formal.support.terminal import escape_line

if TYPE_CHECKING:
    from mirage_formal.torch.integrations.kernelbench.outcome import ProblemOutcome

_Root = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A checkout of KernelBench, or problem files of its kind. They are run: see below."
    ),
]
_Out = Annotated[Path, option("--out", "DIR", "Directory to write.")]
_Levels = Annotated[
    list[int] | None, option("--level", "N", "Levels; repeatable.", "all", parser=value_parser("--level", Count))
]
_Only = Annotated[str, option("--only", "PART-OF-NAME", "Problems whose file names contain this.", "all")]
_Largest = (
    "Numbers that a problem names are halved until the largest is at most this, or none is below 16; 0 leaves them."
)
_Bound = Annotated[int, option("--largest", "N", _Largest, parser=value_parser("--largest", Natural))]
_Most = "Most elements of all inputs and parameters of a problem for results to be compared"
_Elements = Annotated[int, count_option("--elements", _Most)]
_Trials = Annotated[int, count_option("--trials", "Trials of correctness")]
_Limit = Annotated[float, amount_option("--time-limit", "SECONDS", "For each problem")]
_Jobs = Annotated[int, count_option("--jobs", "Problems at a time", "1")]
_Target = Annotated[str, option("--target", "NAME|FILE.toml", "GPU to rank for.")]
_NoCache = Annotated[bool, flag_option("--no-cache", "Search again what was searched before, and keep nothing.")]


#: Columns of a table that is not read on a terminal.
_WIDE = 160


def kernelbench_command(
    directory: _Root,
    out: _Out = Path("runs/kernelbench"),
    level: _Levels = None,
    only: _Only = "",
    largest: _Bound = 64,
    elements: _Elements = 1 << 24,
    trials: _Trials = 5,
    time_limit: _Limit = 180.0,
    jobs: _Jobs = 1,
    target: _Target = "h200",
    no_cache: _NoCache = False,
    json: Json = False,
) -> None:
    """Import every problem of DIR, search it, write a ModelNew for it, and compare that with Model.

    A problem file is run as Python, with your rights: use files that you trust, or a machine where it does not matter.
    Each is run in a process of its own, which is killed when its time is up. Exit code 0 only if every ModelNew that
    was written is correct or was not compared, and no problem failed.
    """
    from importlib.util import find_spec

    from mirage_formal.support.resources import install_command

    if find_spec("torch") is None:
        hint = f"install it with: {install_command('torch')}"
        raise UnsupportedError("kernelbench: expected torch, got none", hint=hint)
    from mirage_formal.codegen.target import load_target
    from mirage_formal.torch.integrations.kernelbench.outcome import OutcomeTable
    from mirage_formal.torch.integrations.kernelbench.problem_runner import RunOptions, run_problems, write_table
    from mirage_formal.torch.integrations.kernelbench.problems import commit_of, find_problems

    load_target(target)  # a name that is wrong is said before anything is run
    problems = find_problems(directory, level or (), only)
    if out.exists() and not out.is_dir():
        raise SpaceError(f"expected a directory, got a file: {out}", where="--out", hint="give another place")
    asked = RunOptions(out, largest, elements, trials, time_limit, jobs, target, not no_cache)
    out.mkdir(parents=True, exist_ok=True)
    with lock_directory(out):
        found = run_problems(problems, asked, _watched(len(problems)))
        table = OutcomeTable(
            directory=str(directory),
            commit=commit_of(directory),
            versions=_versions(),
            options={
                "largest": largest,
                "elements": elements,
                "trials": trials,
                "time_limit": time_limit,
                "target": target,
            },
            problems=found,
        )
        write_table(table, out)
    wrong = any(one.error or one.correct.answer == "failed" for one in found)
    code = 1 if wrong else 0
    if json:
        raise typer.Exit(answer("kernelbench", code, msgspec.to_builtins(table)))
    _print(table, out)
    raise typer.Exit(code)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    from mirage_formal import __version__

    return {"mirage_formal": __version__, "torch": version("torch")}


def _watched(count: int) -> Any:
    """Return a callback that prints the outcome of each problem on standard error."""
    from mirage_formal.torch.integrations.kernelbench.markdown_table import format_row

    console = Console(stderr=True)

    def watch(outcome: ProblemOutcome, done: int) -> None:
        _, imported, _, kernels, verdict, *_, correct = format_row(outcome)
        said = outcome.error or f"{imported}, {kernels} kernels, {verdict}, {correct}"
        text = escape_line(f"{done} of {count}: {outcome.problem}: {said} ({outcome.seconds:.0f} s)", 400)
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return watch


def _print(table: Any, out: Path) -> None:
    from rich.table import Table as Printed

    from mirage_formal.torch.integrations.kernelbench.markdown_table import COLUMNS, format_row, reasons, stage_counts
    from mirage_formal.torch.integrations.kernelbench.problem_runner import TABLE_FILE, TEXT_FILE

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    printed = Printed(*COLUMNS)
    for one in table.problems:
        printed.add_row(*(escape_line(text, 60) for text in format_row(one)))
    console.print(printed)
    lines = [f"{escape_line(one.problem)}: {why}" for one in table.problems for why in reasons(one)]
    lines += stage_counts(table.problems)
    lines.append(f"written: {out / TABLE_FILE}, {out / TEXT_FILE}")
    for text in lines:
        console.print(escape_line(text, 400), markup=False, highlight=False, soft_wrap=True)


__all__ = ["kernelbench_command"]

if __name__ == "__main__":
    run_command(single_command(kernelbench_command))

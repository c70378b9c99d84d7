"""``python -m mirage_formal.reproduce``: search statistics of the paper, measured again on this machine.

table5: search effort by block operators and arm. workloads: every workload through the whole pipeline. oracle: what
three oracles answer to the questions that such searches ask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mirage_formal.cli import print_error
from mirage_formal.errors import MirageError, SpaceError
from mirage_formal.guard import guarded, orderly
from mirage_formal.pipeline.lock import writing

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

_Out = Annotated[Path, typer.Option("--out", help="Directory; finished rows in it are not run again.")]
_Workers = Annotated[int | None, typer.Option("--workers", help="Worker processes. [default: all processors]")]
_Arms = Annotated[str | None, typer.Option("--arms", help="Arms, separated by commas. [default: all]")]
_Ops = Annotated[
    str, typer.Option("--ops", help="Limits of block operators, separated by commas, counted as the paper counts.")
]
_Seconds = Annotated[float, typer.Option("--time-limit", help="Seconds after which a row is stopped.")]
_States = Annotated[int, typer.Option("--state-limit", help="States after which a unit of a row is stopped.")]
_Config = Annotated[str, typer.Option("--config", help="Search space: a preset or a .toml file.")]
_Names = Annotated[str | None, typer.Option("--names", help="Workloads, separated by commas. [default: all]")]
_Batches = Annotated[str, typer.Option("--batches", help="Batches, separated by commas.")]
_Sample = Annotated[int, typer.Option("--sample", help="Questions of each source that every arm is asked.")]
_Seed = Annotated[int, typer.Option("--seed", help="Seed of the sample.")]

#: Told what is going on, how much of it is done, and of how much.
_Show = Callable[[str, int, int], None]


@app.command("table5")
def table5_command(
    arms: _Arms = None,
    ops: _Ops = "5,6,7,8,9,10,11",
    time_limit: _Seconds = 60.0,
    state_limit: _States = 1_000_000,
    config: _Config = "paper",
    workers: _Workers = None,
    out: _Out = Path("runs/reproduce"),
) -> None:
    """Search effort for RMSNorm by the most block operators; exit code 1 if the engines differ without a reason."""
    from mirage_formal.reproduce.arms import ARMS, Limits
    from mirage_formal.reproduce.table5 import Plan, table5

    _positive("--time-limit", time_limit)
    _positive("--state-limit", state_limit)
    names = tuple(ARMS) if arms is None else tuple(_words(arms))
    plan = Plan(out, names, _numbers("--ops", ops), config, _count(workers), Limits(time_limit, state_limit))
    with writing(out), _shown() as show:
        result = table5(plan, show)
    _tell(out, "table5")
    raise typer.Exit(any(one.unexplained or one.guided_only for one in result.comparisons))


@app.command("workloads")
def workloads_command(
    names: _Names = None, batches: _Batches = "1,8,16", workers: _Workers = None, out: _Out = Path("runs/reproduce")
) -> None:
    """Every workload at every batch, searched, certified and proved by the pipeline."""
    from mirage_formal.reproduce.programs import WORKLOADS
    from mirage_formal.reproduce.workloads import workloads

    chosen = tuple(WORKLOADS) if names is None else tuple(_words(names))
    with writing(out), _shown() as show:
        workloads(out, chosen, _numbers("--batches", batches), _count(workers), show)
    _tell(out, "workloads")


@app.command("oracle")
def oracle_command(sample: _Sample = 60, seed: _Seed = 0, out: _Out = Path("runs/reproduce")) -> None:
    """What the oracles answer to questions met in searches; exit code 1 if the normal form prunes a valid one."""
    from mirage_formal.reproduce.oracle import NORMAL_FORM, oracle

    _positive("--sample", sample)
    with writing(out), _shown() as show:
        result = oracle(out, sample, seed, show)
    _tell(out, "oracle")
    raise typer.Exit(any(row.wrongly_pruned for row in result.rows if row.arm == NORMAL_FORM))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(where: str, text: str) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isdigit() and int(word) > 0 for word in words):
        raise SpaceError(f"expected positive numbers, got {text!r}", where=where, hint="separate them by commas")
    return tuple(dict.fromkeys(int(word) for word in words))


def _positive(where: str, value: float) -> None:
    if not value > 0:
        raise SpaceError(f"expected a positive number, got {value}", where=where, hint="leave it out for the default")


def _count(workers: int | None) -> int:
    from mirage_formal.search.parallel import default_workers

    if workers is None:
        return default_workers()
    _positive("--workers", workers)
    return workers


@contextmanager
def _shown() -> Iterator[_Show]:
    """A progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars: dict[str, int] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(progress.tasks[bars[name]].id, completed=done, total=total)

        yield show


def _tell(out: Path, name: str) -> None:
    print((out / f"{name}.md").read_text())
    print(f"written to {out}", file=sys.stderr)


def main() -> NoReturn:
    """Entry point."""

    def run() -> int:
        try:
            with orderly("the same command goes on where this one stopped"):
                app()
        except MirageError as error:
            print_error(error)
        return 2

    guarded(run)


if __name__ == "__main__":
    main()

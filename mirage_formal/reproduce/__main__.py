"""``python -m mirage_formal.reproduce``: search statistics of the paper, measured again on this machine.

table5: search effort by block operators and arm. workloads: every workload through the whole pipeline. oracle: what
three oracles answer to the questions that such searches ask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mirage_formal.cli.kit import amount, counted, option, run_command, whole
from mirage_formal.errors import SpaceError
from mirage_formal.guard import orderly
from mirage_formal.run.place.lock import writing

app = typer.Typer(
    help=__doc__,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in texts are brackets
)


_Out = Annotated[Path, option("--out", "DIR", "Directory; finished rows in it are not run again.")]
_Workers = Annotated[int | None, counted("--workers", "Worker processes", "one for each processor")]
_Arms = Annotated[str | None, option("--arms", "NAME,...", "Arms, separated by commas.", "all")]
_Ops = Annotated[
    str, option("--ops", "N,...", "Limits of block operators, separated by commas, counted as the paper counts.")
]
_Stopped = "Seconds after which a row is stopped; above 0."
_Seconds = Annotated[float, option("--time-limit", "SECONDS", _Stopped, parser=amount("--time-limit"))]
_Cut = "States after which a unit of a row is stopped; 1 or more."
_States = Annotated[int, option("--state-limit", "N", _Cut, parser=whole("--state-limit", 1))]
_Config = Annotated[str, option("--config", "PRESET|FILE.toml", "Search space, or a preset's name.")]
_Names = Annotated[str | None, option("--names", "NAME,...", "Workloads, separated by commas.", "all")]
_Batches = Annotated[str, option("--batches", "N,...", "Batches, separated by commas.")]
_Asked = "Questions of each source that every arm is asked; 1 or more."
_Sample = Annotated[int, option("--sample", "N", _Asked, parser=whole("--sample", 1))]
_Seed = Annotated[int, option("--seed", "N", "Seed of the sample; 0 or more.", parser=whole("--seed"))]

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
    from mirage_formal.reproduce.inputs import WORKLOADS
    from mirage_formal.reproduce.workloads import workloads

    chosen = tuple(WORKLOADS) if names is None else tuple(_words(names))
    with writing(out), _shown() as show:
        workloads(out, chosen, _numbers("--batches", batches), _count(workers), show)
    _tell(out, "workloads")


@app.command("oracle")
def oracle_command(sample: _Sample = 60, seed: _Seed = 0, out: _Out = Path("runs/reproduce")) -> None:
    """What the oracles answer to questions met in searches; exit code 1 if the normal form prunes a valid one."""
    from mirage_formal.reproduce.oracle import NORMAL_FORM, oracle

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


def _count(workers: int | None) -> int:
    from mirage_formal.workers.pool import default_workers

    return workers or default_workers()


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


def command(arguments: Sequence[str] | None = None, name: str | None = None) -> None:
    """Run the command called ``name`` on these arguments, or on those of the process."""
    with orderly("the same command goes on where this one stopped"):
        app(arguments, prog_name=name)


def main() -> NoReturn:
    """Entry point."""
    run_command(command)


if __name__ == "__main__":
    main()

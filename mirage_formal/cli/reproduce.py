"""The command ``reproduce``: search statistics of the paper, measured again on this machine.

table5: search effort by block operators and arm. workloads: every workload through the whole pipeline. oracle: what
three oracles answer to the questions that such searches ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mirage_formal.cli.utilities import (
    STYLE,
    Json,
    ProgressMode,
    amount_option,
    answer,
    count_option,
    option,
    seed_option,
)
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.guard import keep_results_on_stop
from mirage_formal.support.terminal import escape_line

app = typer.Typer(**STYLE, no_args_is_help=True, help="Measure the paper's search statistics again on this machine.")


_Out = Annotated[Path, option("--out", "DIR", "Directory; finished rows in it are not run again.")]
_Workers = Annotated[int | None, count_option("--workers", "Worker processes", "one for each processor")]
_Arms = Annotated[str | None, option("--arms", "NAME,...", "Arms, separated by commas.", "all")]
_Ops = Annotated[
    str, option("--ops", "N,...", "Limits of block operators, separated by commas, counted as the paper counts.")
]
_Seconds = Annotated[float, amount_option("--time-limit", "SECONDS", "Seconds after which a row is stopped")]
_States = Annotated[int, count_option("--state-limit", "States after which a unit of a row is stopped")]
_Config = Annotated[str, option("--config", "PRESET|FILE.toml", "Search space, or a preset's name.")]
_Names = Annotated[str | None, option("--names", "NAME,...", "Workloads, separated by commas.", "all")]
_Batches = Annotated[str, option("--batches", "N,...", "Batches, separated by commas.")]
_Sample = Annotated[int, count_option("--sample", "Questions of each source that every arm is asked")]
_Seed = Annotated[int, seed_option("Seed of the sample")]

#: Callback with the current task, its finished pieces, and all of its pieces.
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
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Search effort for RMSNorm by the most block operators; exit code 1 if the engines differ without a reason."""
    from mirage_formal.reproduce.search_variants import ARMS, RowLimits
    from mirage_formal.reproduce.table5 import TablePlan, table5
    from mirage_formal.support.resources import worker_count

    names = tuple(ARMS) if arms is None else tuple(_words(arms))
    plan = TablePlan(
        out, names, _numbers("--ops", ops), config, worker_count(workers), RowLimits(time_limit, state_limit)
    )
    with _show_progress(out, progress) as show:
        result = table5(plan, show)
    code = int(any(one.unexplained or one.guided_only for one in result.comparisons))
    raise _print_result(out, "table5", code, result, json=json)


@app.command("workloads")
def workloads_command(
    names: _Names = None,
    batches: _Batches = "1,8,16",
    workers: _Workers = None,
    out: _Out = Path("runs/reproduce"),
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Every workload at every batch, searched, certified and proved by the pipeline."""
    from mirage_formal.reproduce.inputs import WORKLOADS
    from mirage_formal.reproduce.workloads import workloads
    from mirage_formal.support.resources import worker_count

    chosen = tuple(WORKLOADS) if names is None else tuple(_words(names))
    with _show_progress(out, progress) as show:
        result = workloads(out, chosen, _numbers("--batches", batches), worker_count(workers), show)
    raise _print_result(out, "workloads", 0, result, json=json)


@app.command("oracle")
def oracle_command(
    sample: _Sample = 60,
    seed: _Seed = 0,
    out: _Out = Path("runs/reproduce"),
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """What the oracles answer to questions met in searches; exit code 1 if the normal form prunes a valid one."""
    from mirage_formal.reproduce.oracle_comparison import NORMAL_FORM, oracle

    with _show_progress(out, progress) as show:
        result = oracle(out, sample, seed, show)
    code = int(any(row.wrongly_pruned for row in result.rows if row.arm == NORMAL_FORM))
    raise _print_result(out, "oracle", code, result, json=json)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(where: str, text: str) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isdigit() and int(word) > 0 for word in words):
        raise SpaceError(f"expected positive numbers, got {text!r}", where=where, hint="separate them by commas")
    return tuple(dict.fromkeys(int(word) for word in words))


@contextmanager
def _show_progress(out: Path, mode: str) -> Iterator[_Show]:
    """Lock the output directory, and yield a callback that shows progress."""
    from mirage_formal.cache.lock import lock_directory
    from mirage_formal.run.progress.display_choice import display

    hint = "the same command goes on where this one stopped"
    with keep_results_on_stop(hint), lock_directory(out), display(mode, "reproduce") as shown:
        yield lambda name, done, total: shown.step(name, done, total)


def _print_result(out: Path, name: str, code: int, result: Any, *, json: bool) -> typer.Exit:
    """Print a result, and return the exit of the command."""
    if json:
        return typer.Exit(answer(f"reproduce {name}", code, {"out": str(out), "rows": result}))
    print((out / f"{name}.md").read_text(encoding="utf-8"))
    print(escape_line(f"written to {out}", 4000))
    return typer.Exit(code)


__all__ = ["app"]

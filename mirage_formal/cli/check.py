"""Command ``check``: ``python -m mirage_formal.check`` with progress and JSON.

The check itself and its printed text are in ``revalidate.check_command``, which imports neither this module nor typer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirage_formal.cli.utilities import Json, ProgressMode, amount_option, answer, count_option, flag_option
from mirage_formal.records import MANIFEST_FILE

if TYPE_CHECKING:
    from mirage_formal.revalidate.check_command import CheckOutcome
    from mirage_formal.run.progress.progress_display import Display

_WHAT = "Directory of a run, of several, or of one candidate or cover."
_Path = Annotated[Path, typer.Argument(metavar="PATH", help=_WHAT)]
_Limit = Annotated[float, amount_option("--time-limit", "SECONDS", "Seconds for all of it")]
_Jobs = Annotated[int | None, count_option("--jobs", "Worker processes", "one for each processor")]
_AGAIN = "Do not compile kernels again, to compare them, where the NVRTC is here that compiled them."
_NoRecompile = Annotated[bool, flag_option("--no-recompile", _AGAIN)]


def check_command(
    path: _Path,
    time_limit: _Limit = 3600.0,
    jobs: _Jobs = None,
    no_recompile: _NoRecompile = False,
    json: Json = False,
    progress: ProgressMode = "auto",
) -> None:
    """Re-establish everything about a run's or a candidate's directory from its files alone."""
    from dataclasses import replace

    from mirage_formal.revalidate.check_command import check_directory, print_outcome
    from mirage_formal.run.progress.display_choice import display
    from mirage_formal.support.errors import RunError
    from mirage_formal.support.resources import worker_count

    with display(progress, "check") as shown:
        told = _Told(shown, path)
        outcome = check_directory(path, time_limit, worker_count(jobs), not no_recompile, told)
    if json and outcome.code == 2:
        what, _, hint = outcome.complaint.removeprefix("error: ").partition("\n  hint: ")
        answer("check", 2, None, RunError(what, where=str(path), hint=hint))
    elif json:
        answer("check", outcome.code, _values(outcome))
    print_outcome(replace(outcome, report=()) if json else outcome)
    raise typer.Exit(outcome.code)


class _Told(list[Any]):
    """List of established results, which shows progress when one is added."""

    def __init__(self, shown: Display, path: Path) -> None:
        super().__init__()
        self._step = shown.steps(path.name)
        self._total = sum(1 for _ in path.rglob(MANIFEST_FILE)) if path.is_dir() else 0
        self._step("checking", 0, self._total)

    def append(self, one: Any) -> None:
        """Add a result, and show the progress of the check."""
        super().append(one)
        self._step("checking", len(self), max(self._total, len(self)))


def _values(outcome: CheckOutcome) -> dict[str, Any]:
    """Return the outcome of a check as plain values."""
    import msgspec

    found = outcome.found
    return {
        "candidates": [msgspec.to_builtins(one) for one in found.candidates],
        "kernels": [msgspec.to_builtins(one) for one in found.kernels],
        "wholes": [msgspec.to_builtins(one) for one in found.wholes],
        "report": list(outcome.report),
        "complaint": outcome.complaint,
    }


__all__ = ["check_command"]

"""``python -m mirage_formal.emulate RUN_DIR``: a candidate's kernels on the CPU emulator, beside float64.

Exit codes: 0 every result is within its tolerance, 1 one is not, or a kernel has a fault, is refused or takes too long,
2 a mistake in what was given, and those of ``guard``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirage_formal import options
from mirage_formal.errors import MirageError
from mirage_formal.guard import guarded
from mirage_formal.terminal import json_text, plain

if TYPE_CHECKING:
    from mirage_formal.emulate.judge import Emulation

_OFF: Final = "[default: off]"
_LIMIT_S: Final = 600.0
_LONG: Final = 4000


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as ended:  # argparse has said what is wrong, or printed its help
        return int(ended.code or 0)
    try:
        return _run(given)
    except MirageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mirage_formal.emulate",
        description="Run a candidate's kernels on the CPU emulator, and compare their results with float64.",
    )
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="directory that a search has written")
    what = "the candidate of this rank, or the part of a whole program, from 1"
    parser.add_argument("--candidate", metavar="N", help=f"{what} [default: the best, or all parts]")
    what = "at the program's own extents, after an estimate of the time, not with fewer blocks and iterations"
    parser.add_argument("--real", action="store_true", help=f"{what} {_OFF}")
    parser.add_argument("--seed", metavar="N", default=0, help="seed of the inputs, 0 or more [default: 0]")
    what = "for each candidate or part; above 0"
    parser.add_argument("--time-limit", metavar="SECONDS", default=_LIMIT_S, help=f"{what} [default: {_LIMIT_S:g}]")
    parser.add_argument("--json", action="store_true", help=f"print JSON instead of a table {_OFF}")
    return parser


def _run(given: argparse.Namespace) -> int:
    seed = options.whole("--seed", options.number(given.seed))
    limit_s = options.amount("--time-limit", options.number(given.time_limit))
    number = None if given.candidate is None else options.whole("--candidate", options.number(given.candidate), 1)
    from rich.console import Console  # what follows loads numerical packages and solvers

    from mirage_formal.emulate.cases import cases
    from mirage_formal.emulate.judge import Emulator

    progress = Console(stderr=True)
    found: list[Emulation] = []
    chosen = cases(given.run, number)
    with Emulator(seed, given.real, limit_s) as emulator:
        for i, case in enumerate(chosen, 1):
            if given.real:
                about = emulator.seconds(case)
                text = about if isinstance(about, str) else _about(about, limit_s)
                progress.print(plain(f"{case.name}: {text}"), markup=False, highlight=False, soft_wrap=True)
            with progress.status(plain(f"{i} of {len(chosen)}: {case.name}")):
                found.append(emulator.run(case))
    if given.json:
        print(json_text(_json(found)))
    else:
        _print(given.run, found, real=given.real)
    return 0 if all(one.inside for one in found) else 1


def _about(seconds: float, limit_s: float) -> str:
    more = f", more than --time-limit {limit_s:g}" if seconds > limit_s else ""
    return f"about {seconds:.0f} s{more}, by the time at smaller extents"


def _json(found: Sequence[Emulation]) -> str:
    import msgspec

    rows: list[dict[str, Any]] = [
        {
            "name": one.case.name,
            "inside": one.inside,
            "kernels": [name for name, _ in one.kernels],
            "extents": {str(own): less for own, less in (one.extents or {}).items()},
            "numerics": None if one.record is None else msgspec.to_builtins(one.record),
            "failure": one.failure,
            "note": one.note,
        }
        for one in found
    ]
    return msgspec.json.format(msgspec.json.encode(rows), indent=1).decode()


def _print(root: Path, found: Sequence[Emulation], *, real: bool) -> None:
    """The table, and below it why a row is not inside and what was made smaller."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mirage_formal.claims.numerics.numerics import SCALES

    extents = "at the program's own extents" if real else "with fewer blocks and iterations"
    console = Console()
    console.print(plain(f"{root} on the emulator, {extents}"), markup=False, highlight=False, soft_wrap=True)
    table = Table()
    for column in ("candidate", "kernels", *(f"scale {scale:g}" for scale in SCALES), "results"):
        table.add_column(column, justify="right" if column.startswith("scale") else "left")
    for one in found:
        kernels = ", ".join(f"{name} {'x'.join(map(str, grid))}" for name, grid in one.kernels)
        cells = (one.case.name, kernels, *_ratios(one, len(SCALES)), _result(one))
        table.add_row(*(Text(plain(cell, _LONG)) for cell in cells))
    console.print(table)
    for text in (*_notes(found), "scales: largest error over its derived tolerance; inside is at most 1"):
        console.print(plain(text, _LONG), markup=False, highlight=False, soft_wrap=True)


def _ratios(one: Emulation, count: int) -> list[str]:
    """The largest error over its tolerance, at each scale."""
    if one.record is None:
        return ["-"] * count
    worst = [
        max((float("inf") if o.max_ratio is None else o.max_ratio for o in scale.outputs), default=0.0)
        for scale in one.record.scales
    ]
    return [f"{ratio:.3f}" for ratio in worst]


def _result(one: Emulation) -> str:
    if one.record is None:
        return "failed"
    return "inside" if one.inside else "outside" if one.record.answer == "outside" else "undecided"


def _notes(found: Sequence[Emulation]) -> list[str]:
    notes = []
    for one in found:
        name = one.case.name
        if one.failure:
            notes.append(f"{name}: {one.failure}")
        if one.extents:
            notes.append(f"{name}: extents {', '.join(f'{own} as {less}' for own, less in one.extents.items())}")
        if one.note:
            notes.append(f"{name}: {one.note}")
        for scale in one.record.scales if one.record is not None else ():
            notes += [f"{name}, scale {scale.scale:g}: {o.reason}" for o in scale.outputs if o.reason]
    return notes


if __name__ == "__main__":
    guarded(main)

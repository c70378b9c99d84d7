"""Command ``emulate``: a candidate's kernels on the CPU emulator, compared with float64.

Exit codes: 0 every result is within its tolerance, 1 one is not, or a kernel has a fault, is refused or takes too long,
2 a mistake in the arguments, and those of ``guard``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.support.terminal import escape_line

if TYPE_CHECKING:
    from mirage_formal.emulate.emulation_process import Emulation

#: Seconds for each candidate or subgraph.
LIMIT_S: Final = 600.0
_LONG: Final = 4000


def emulate(
    run: Path, number: int | None, *, real: bool, seed: int, limit_s: float, step: Callable[[str, int, int], None]
) -> list[Emulation]:
    """Run a candidate's kernels, or those of all subgraphs of a whole program, on the emulator.

    Args:
        run: Directory of a run.
        number: Rank of the candidate, or number of the subgraph; None is the best, or all subgraphs.
        real: Whether at the program's own extents.
        seed: Seed of the inputs.
        limit_s: Seconds for each.
        step: Callback for progress.

    Raises:
        MirageError: There is no such candidate.
    """
    from mirage_formal.emulate.cases import cases  # what follows loads numerical packages and solvers
    from mirage_formal.emulate.emulation_process import Emulator

    found: list[Emulation] = []
    chosen = cases(run, number)
    with Emulator(seed, real, limit_s) as emulator:
        for i, case in enumerate(chosen):
            what = f"emulating {case.name}"
            if real:
                about = emulator.seconds(case)
                what += f" ({about if isinstance(about, str) else _about(about, limit_s)})"
            step(escape_line(what), i, len(chosen))
            found.append(emulator.run(case))
    step("emulated", len(chosen), len(chosen))
    return found


def _about(seconds: float, limit_s: float) -> str:
    more = f", more than --time-limit {limit_s:g}" if seconds > limit_s else ""
    return f"about {seconds:.0f} s{more}, by the time at smaller extents"


def as_values(found: Sequence[Emulation]) -> list[dict[str, Any]]:
    """Return the emulations as plain values for JSON."""
    import msgspec

    return [
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


def print_table(root: Path, found: Sequence[Emulation], *, real: bool) -> None:
    """Print the table of results, with the reasons of rows outside tolerance and the reduced extents below it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mirage_formal.codegen.numerics.result_comparison import SCALES

    extents = "at the program's own extents" if real else "with fewer blocks and iterations"
    console = Console()
    console.print(escape_line(f"{root} on the emulator, {extents}"), markup=False, highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in ("candidate", "kernels", *(f"scale {scale:g}" for scale in SCALES), "results"):
        number = column.startswith("scale")
        table.add_column(column, justify="right" if number else "left", no_wrap=number)
    for one in found:
        kernels = ", ".join(f"{name} {'x'.join(map(str, grid))}" for name, grid in one.kernels)
        cells = (one.case.name, kernels, *_ratios(one, len(SCALES)), _result(one))
        table.add_row(*(Text(escape_line(cell, _LONG)) for cell in cells))
    console.print(table)
    for text in (*_notes(found), "scales: largest error over its derived tolerance; inside is at most 1"):
        console.print(escape_line(text, _LONG), markup=False, highlight=False, soft_wrap=True)


def _ratios(one: Emulation, count: int) -> list[str]:
    """Return the largest error over its tolerance, at each scale."""
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


__all__ = ["LIMIT_S", "as_values", "emulate", "print_table"]

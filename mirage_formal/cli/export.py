"""Command ``mirage-formal tools export``: a run in another project's format."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from mirage_formal.cli.utilities import Json, answer, count_option, option, run_command, single_command
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.terminal import escape_line

_FORMATS: Final = ("flashinfer-bench",)
_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

_Run = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run, or of a whole program's search.")]
_Out = Annotated[Path, option("--out", "DIR", "Data set to write to; other files there stay.")]
_Format = Annotated[str, option("--format", "flashinfer-bench", "What is written.")]
_Count = Annotated[int, count_option("--count", "Most candidates")]
_Kind = Annotated[str, option("--op-type", "WORD", "The definition's op_type: lower-case letters, digits and _.")]


def export_command(
    directory: _Run,
    out: _Out = Path("flashinfer-trace"),
    format: _Format = _FORMATS[0],
    count: _Count = 4,
    op_type: _Kind = "fused",
    json: Json = False,
) -> None:
    """Write a run's program, kernels and measurements as FlashInfer-Bench's definition, solutions and traces.

    Kernels that were built and measured are taken from the run; for other candidates they are made.
    """
    if format not in _FORMATS:
        raise SpaceError(f"expected {' or '.join(_FORMATS)}, got {format!r}", where="--format")
    if _WORD.fullmatch(op_type) is None:
        hint = "it names directories: lower-case letters, digits and _, a letter first"
        raise SpaceError(f"expected a word, got {op_type!r}", where="--op-type", hint=hint)
    from mirage_formal.torch.integrations.flashinfer.dataset_export import export_best

    found = export_best(directory, out, count, op_type)
    if json:
        raise typer.Exit(answer("export", 0, {"out": str(out), **asdict(found)}))
    print(escape_line(f"{out}: definition {found.definition}", 4000))
    print(escape_line(f"solutions: {', '.join(found.solutions)}; measurements: {found.traces}", 4000))
    for text in found.skipped:
        print(escape_line(f"no kernels: {text}", 4000))


__all__ = ["export_command"]

if __name__ == "__main__":
    run_command(single_command(export_command))

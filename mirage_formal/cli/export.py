"""Command ``mirage-formal export``: a candidate as a folder of its own, or a run in another project's format."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from mirage_formal.cli.utilities import (
    Json,
    answer,
    choice_option,
    count_option,
    option,
    reject_options,
    run_command,
    single_command,
)
from mirage_formal.export import TARGETS
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.terminal import escape_line

_BENCH: Final = "flashinfer-bench"
_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

_Run = Annotated[Path, typer.Argument(metavar="DIR", help="A run with kernels, or one of its candidates.")]
_FOLDER = "Folder to write, which is new or empty; of flashinfer-bench the data set, where other files stay."
_Out = Annotated[Path | None, option("--out", "DIR", _FOLDER, "NAME-export, or flashinfer-trace")]
_WHAT = "What is written: a folder with kernels or one Triton file, or FlashInfer-Bench's records."
_To = Annotated[str, choice_option("--to", (*TARGETS, _BENCH), _WHAT)]
_Rank = Annotated[int | None, count_option("--candidate", "The candidate of this rank", "the best that is built")]
_Count = Annotated[int | None, count_option("--count", "Of flashinfer-bench: most candidates", "4")]
_OP_TYPE = "Of flashinfer-bench: the definition's op_type, of lower-case letters, digits and _."
_Kind = Annotated[str | None, option("--op-type", "WORD", _OP_TYPE, "fused")]


def export_command(
    directory: _Run,
    to: _To = TARGETS[0],
    out: _Out = None,
    candidate: _Rank = None,
    count: _Count = None,
    op_type: _Kind = None,
    json: Json = False,
) -> None:
    """Write a candidate as a folder that needs nothing of this package: code, launch code, loaders, a test, the proof.

    The command checks the kernels and replays the proof before it writes the folder. With --to flashinfer-bench,
    write a run's program, kernels and measurements as that project's definition, solutions and traces. This target
    builds missing kernels and replays no proof: run mirage-formal check first.
    """
    if to == _BENCH:
        reject_options({"--candidate": candidate}, f"--to {', '.join(TARGETS)}")
        return _export_records(directory, out or Path("flashinfer-trace"), count or 4, op_type or "fused", json)
    reject_options({"--count": count, "--op-type": op_type}, f"--to {_BENCH}")
    from mirage_formal.export.folder import export_candidate

    found = export_candidate(directory, to, out, candidate)
    if json:
        raise typer.Exit(answer("export", 0, asdict(found)))
    print(escape_line(f"{found.directory}: {found.candidate}, {found.files} files, {found.bytes:,} bytes", 4000))
    for text in found.remarks:
        print(escape_line(f"not checked: {text}", 4000))
    test = "program.py" if to == "triton" else "test.py"
    print(escape_line(f"on a machine with a GPU: python {found.directory}/{test}", 4000))


def _export_records(directory: Path, out: Path, count: int, op_type: str, as_json: bool) -> None:
    if _WORD.fullmatch(op_type) is None:
        hint = "it names directories: lower-case letters, digits and _, a letter first"
        raise SpaceError(f"expected a word, got {op_type!r}", where="--op-type", hint=hint)
    from mirage_formal.torch.integrations.flashinfer.dataset_export import export_best

    found = export_best(directory, out, count, op_type)
    if as_json:
        raise typer.Exit(answer("export", 0, {"out": str(out), **asdict(found)}))
    print(escape_line(f"{out}: definition {found.definition}", 4000))
    print(escape_line(f"solutions: {', '.join(found.solutions)}; measurements: {found.traces}", 4000))
    for text in found.skipped:
        print(escape_line(f"no kernels: {text}", 4000))


__all__ = ["export_command"]

if __name__ == "__main__":
    run_command(single_command(export_command))

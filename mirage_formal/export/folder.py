"""Folders of exported candidates.

Their texts are Jinja2 templates beside this file. A folder is written under a temporary name and then renamed, so that
it is never incomplete.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.export import TARGETS
from mirage_formal.export.built_candidate import BuiltCandidate, load_built_candidate
from mirage_formal.graph.canonical import digest
from mirage_formal.records import KERNELS
from mirage_formal.support.errors import RunError, SpaceError
from mirage_formal.support.terminal import escape_line

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES: Final = Path(__file__).resolve().parent / "templates"


@dataclass(frozen=True, slots=True)
class FolderSummary:
    """A folder that was written.

    Attributes:
        directory: The folder.
        target: What the candidate was exported to.
        candidate: Name of its directory in the run.
        files: Number of files.
        bytes: Their bytes together.
        remarks: Facts that were not checked, as in its README.
    """

    directory: str
    target: str
    candidate: str
    files: int
    bytes: int
    remarks: tuple[str, ...]


def export_candidate(path: Path, target: str, out: Path | None = None, candidate: int | None = None) -> FolderSummary:
    """Write a built candidate as a folder that needs nothing of this package.

    Sound: see ``export.built_candidate.load_built_candidate``, which checks everything before it is read.

    Args:
        path: Directory of a run, a candidate or kernels.
        target: One of TARGETS.
        out: The folder, which must be new or empty; None is NAME-export in the current directory.
        candidate: Rank of a run's candidate; None is the best one that is built.

    Raises:
        SpaceError: There is no such target.
        RunError: Nothing is built, or the folder is not empty or cannot be written.
        FormatError: Kernels or proof do not hold.
        UnsupportedError: The candidate has no form for this target; says why.
    """
    if target not in TARGETS:
        raise SpaceError(f"expected {', '.join(TARGETS[:-1])} or {TARGETS[-1]}, got {target!r}", where="target")
    if out is not None:
        _expect_empty(out)
    one = load_built_candidate(path, candidate)
    folder = out or Path(f"{one.name}-export")
    _expect_empty(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
            made = Path(place) / "made"
            made.mkdir()
            (_write_triton if target == "triton" else _write_cuda)(one, target, made)
            files = [file for file in made.rglob("*") if file.is_file()]
            sizes = [file.stat().st_size for file in files]
            made.replace(folder)
    except OSError as error:
        raise RunError(f"expected a folder that can be written, got: {error}", where=str(folder)) from None
    return FolderSummary(str(folder), target, one.evidence.name, len(sizes), sum(sizes), one.stored.remarks)


def _expect_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        got = "a folder with files" if folder.is_dir() else "a file"
        raise RunError(f"expected a new or empty folder, got {got}", where=str(folder), hint="name another with --out")


def _write_cuda(one: BuiltCandidate, target: str, folder: Path) -> None:
    from mirage_formal.device.compile import device_headers
    from mirage_formal.export.launch_table import launch_table
    from mirage_formal.export.stored_test import MOST_INPUT_BYTES, stored_test, write_stored_test

    sources = one.executable.sources
    headers = device_headers(sources.values())
    table = launch_table(one.executable, one.name, tuple(headers))
    for name, text in (*sources.items(), *((f"include/{header}", text) for header, text in headers.items())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    test = write_stored_test(stored_test(one.executable), folder)
    values = {**msgspec.to_builtins(table), "test": test}
    (folder / "launch.json").write_bytes(msgspec.json.format(msgspec.json.encode(values), indent=1) + b"\n")
    shutil.copytree(one.kernels, folder / "proof" / KERNELS / one.kernels.name)
    more = {
        "files": list(sources),
        "products": not all(isinstance(launch, KernelLaunch) for launch in one.executable.launches),
        "architectures": one.architectures,
        "stored_inputs": len(list((folder / "inputs").iterdir())),
        "most_input_bytes": MOST_INPUT_BYTES,
        "steps": [output["step"] for output in test["outputs"]],
        "scale": test["scale"],
    }
    _write_texts(one, target, folder, ("every", "cuda", "torch")[: 2 + (target == "torch")], {**values, **more})


def _write_triton(one: BuiltCandidate, target: str, folder: Path) -> None:
    from mirage_formal.kernel_build.built_kernels import KernelRejected
    from mirage_formal.kernel_build.triton.triton_generator import triton_program
    from mirage_formal.kernel_build.triton.triton_log import triton_log
    from mirage_formal.records import to_indented_json
    from mirage_formal.support.errors import UnsupportedError

    try:
        made = triton_program(one.graph, one.executable.program, one.target, f"candidate {one.evidence.name}")
    except KernelRejected as error:
        raise UnsupportedError(error.what, where=one.evidence.name, hint="--to cuda exports its kernels") from None
    assert one.verdict.kind in ("equivalent", "probable")
    log = triton_log(made.code, digest(made.stable.graph), one.verdict.kind, made.accesses)
    (folder / "program.py").write_text(made.code, encoding="utf-8")
    (folder / "program.json").write_bytes(to_indented_json(log))
    _write_texts(one, target, folder, ("every",), {"name": one.name})


def _write_texts(one: BuiltCandidate, target: str, folder: Path, sets: tuple[str, ...], values: dict[str, Any]) -> None:
    """Write the evidence, and what the templates in these subdirectories make of values."""
    evidence = f"{one.evidence.parent.name}/{one.evidence.name}"
    shutil.copytree(one.evidence, folder / "proof" / evidence)
    about = {"target": target, "verdict": one.verdict, "stored": one.stored, "evidence": evidence}
    environment = _environment()
    for name in environment.list_templates():
        if (place := Path(name)).parent.name in sets:
            text = environment.get_template(name).render(**values, **about)
            (folder / place.stem).write_text(text, encoding="utf-8")


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=False,  # no text of these is markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # One line without control characters, and no cell of a table is ended by it.
    made.filters["visible"] = lambda given: re.sub(r"([|<>`*_\[\]])", r"\\\1", escape_line(str(given), 400))
    return made


__all__ = ["FolderSummary", "export_candidate"]

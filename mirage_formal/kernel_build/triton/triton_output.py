"""Output of the Triton files of a run's candidates, in a directory beside the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirage_formal.codegen.target import load_target
from mirage_formal.graph.canonical import digest
from mirage_formal.kernel_build.build import candidates_of
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.kernel_build.triton.triton_generator import triton_program
from mirage_formal.kernel_build.triton.triton_log import read_verdict, triton_log
from mirage_formal.records import to_indented_json
from mirage_formal.support.errors import RunError


def default_triton_directory(root: Path) -> Path:
    """Return where a run's Triton files are written: beside its directory, which has only sealed files."""
    whole = root.absolute()
    return whole.with_name(f"{whole.name}-triton")


def exclude_triton_outputs(paths: Sequence[Path]) -> list[Path]:
    """Return the paths without those of Triton outputs of other paths, because ``runs/*`` names both."""
    written = {default_triton_directory(path) for path in paths}
    return [path for path in paths if path.absolute() not in written]


def write_run(root: Path, count: int, out: Path | None = None, *, force: bool = False) -> list[tuple[str, str]]:
    """Write the Triton files of a run's best candidates, or of a whole program's best covers, each with its log.

    Args:
        root: The run's directory.
        count: Number of candidates that get files.
        out: Directory to write to; ``default_triton_directory`` if left out.
        force: Whether other files of the same names are replaced.

    Returns:
        For each candidate that was tried, its name and the outcome: "built PATH", or the reason why not.

    Raises:
        RunError: There is no run; or a file is there that is another, or cannot be written.
    """
    program, target_name, candidates = candidates_of(root)
    target, where = load_target(target_name), default_triton_directory(root) if out is None else out
    tried: list[tuple[str, str]] = []
    done = 0
    for name, read_graph in candidates:
        if done == count:
            break
        try:
            made = triton_program(read_graph(), program, target, name)
        except KernelRejected as error:
            tried.append((name, str(error)))
            continue
        path = where / f"{name}.py"
        log = triton_log(made.code, digest(made.stable.graph), read_verdict(root, name), made.accesses)
        save_file(made.code, path, force=force)
        save_file(to_indented_json(log).decode(), path.with_suffix(".json"), force=force)
        note = f"; {made.stable.note}" if made.stable.note else ""
        tried.append((name, f"built {path}{note}"))
        done += 1
    return tried


def save_file(text: str, path: Path, *, force: bool) -> None:
    """Write a file, unless another one is there that may not be replaced.

    Raises:
        RunError: Another file is there, or the file cannot be written.
    """
    try:
        if not force and path.exists() and path.read_text(encoding="utf-8") != text:
            raise RunError("expected no other file, got one", where=str(path), hint="--force replaces it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"expected a file that can be written, got: {error}"
        raise RunError(what, where=str(path), hint="check the path") from None

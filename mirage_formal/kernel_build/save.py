"""Directory of a candidate's kernels: sources, machine code, plans, obligations, and a manifest of all files.

docs/run-directory.md describes every file. The directory is written under a temporary name and then renamed, so that it
is never incomplete.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from mirage_formal.codegen.executable import save_executable
from mirage_formal.codegen.program.serialization import encode_programs
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import to_json
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.records import (
    KERNELS,
    LAUNCH_FILE,
    MANIFEST_FILE,
    OBLIGATIONS_FILE,
    PLAN_FILE,
    PROGRAMS_FILE,
    QUESTIONS_FILE,
    REALIZES_FILE,
    STABILIZED_FILE,
    STABILIZED_PROOF_FILE,
    KernelManifestRecord,
    PlanRecord,
    RealizesRecord,
    TargetRecord,
    json_line,
    name_path_in_errors,
    pack_texts,
    seal_record,
    sha256,
    to_indented_json,
)
from mirage_formal.run_directory.directory_layout import KERNELS_OF_ONE, list_contents, remove
from mirage_formal.support.errors import RunError


def save_built(built: BuiltKernels, directory: Path) -> None:
    """Write kernels to a directory; earlier kernels there are removed, with their GPU results.

    Raises:
        RunError: The directory has a file that this package does not write.
    """

    def make(building: Path) -> None:
        building.mkdir(parents=True)
        with name_path_in_errors(building):
            _write(built, building)

    _replace(directory, make)


def move_built(source: Path, directory: Path) -> None:
    """Move kernels to another directory in place of the earlier ones, with their GPU results.

    Raises:
        RunError: One of the directories has a file that this package does not write.
    """
    list_contents(source, KERNELS_OF_ONE).refuse_foreign()
    _replace(directory, lambda building: shutil.copytree(source, building))
    remove(source, KERNELS_OF_ONE)


def _replace(directory: Path, make: Callable[[Path], object]) -> None:
    building = directory.with_name(f".{directory.name}.part")
    list_contents(directory, KERNELS_OF_ONE).refuse_foreign()
    remove(building, KERNELS_OF_ONE)
    try:
        make(building)
        remove(directory, KERNELS_OF_ONE)
        building.rename(directory)
    except BaseException:  # a full disk, Ctrl-C: what was there before stays
        remove(building, KERNELS_OF_ONE)
        raise


def _write(built: BuiltKernels, building: Path) -> None:
    if built.stable.proof is not None:
        (building / STABILIZED_FILE).write_text(to_json(built.stable.graph), encoding="utf-8")
        (building / STABILIZED_PROOF_FILE).write_bytes(built.stable.proof)
    (building / OBLIGATIONS_FILE).write_bytes(b"".join(map(json_line, built.obligations)))
    (building / QUESTIONS_FILE).write_bytes(pack_texts(built.questions))
    (building / PROGRAMS_FILE).write_bytes(encode_programs(tuple(built.programs.values())))
    (building / PLAN_FILE).write_bytes(to_indented_json(PlanRecord(kernels=built.plans)))
    if built.realized:
        (building / REALIZES_FILE).write_bytes(to_indented_json(RealizesRecord(kernels=built.realized)))
    save_executable(built.executable, building)
    manifest = KernelManifestRecord(
        candidate=built.candidate,
        graph=built.executable.digest,
        program=digest(built.executable.program),
        target=msgspec.convert(msgspec.to_builtins(built.target), TargetRecord),
        files={path.name: sha256(path.read_bytes()) for path in sorted(building.iterdir())},
    )
    (building / MANIFEST_FILE).write_bytes(seal_record(manifest))


def find_kernels(root: Path, candidate: int | None = None) -> list[Path]:
    """Return the directories of kernels in a run, by rank; or the directory itself, if it is one.

    Raises:
        RunError: There is none, or none of this rank.
    """
    if (root / LAUNCH_FILE).is_file():
        return [root]
    found = sorted(path.parent for path in (root / KERNELS).glob(f"*/{LAUNCH_FILE}"))
    if not found:
        hint = "mirage-formal tools build RUN_DIR makes them, where the solvers are installed"
        raise RunError("expected a run with kernels, got none", where=str(root), hint=hint)
    if candidate is None:
        return found
    chosen = [path for path in found if path.name.split("-")[0] == f"{candidate:03}"]
    if not chosen:
        ranks = ", ".join(path.name.split("-")[0] for path in found)
        raise RunError(f"expected a candidate of rank {ranks}, got {candidate}", where=str(root))
    return chosen


__all__ = ["find_kernels", "move_built", "save_built"]

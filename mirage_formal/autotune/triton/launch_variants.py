"""The Triton files of a candidate: one text for each choice of launch options, of the µGraph that its kernels compute.

Sound: that µGraph is the one of ``launch.json``, whose proof lies beside it. That a text computes it is not proved: see
``kernel_build.triton``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.codegen.executable import Executable, load_executable
from mirage_formal.codegen.generate import first_line
from mirage_formal.codegen.target import Target
from mirage_formal.codegen.triton.file import triton_file
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.kernel_build.triton.triton_generator import TITLE
from mirage_formal.kernel_build.triton.triton_log import access_records
from mirage_formal.records import (
    MANIFEST_FILE,
    KernelManifestRecord,
    TritonAccessRecord,
    open_sealed,
    read_file,
    sha256,
)
from mirage_formal.support.errors import MirageError

#: Factors of warps, and numbers of stages, that are tried.
WARPS: Final = (1.0, 0.5, 2.0)
STAGES: Final = (2, 3, 4)
#: Number of stages that is tried at once in addition to a file's own, with these factors of warps.
DEEP: Final = 3
NARROW: Final = (1.0, 0.5)


@dataclass(frozen=True, slots=True)
class TritonText:
    """A Triton file that is tried.

    Attributes:
        directory: Directory of the candidate's kernels.
        options: Launch options of its functions.
        text: Text of the file.
        digest: Sha256 of the text.
        graph: Digest of the µGraph that it computes.
        accesses: What is known about the bounds of each load and store.
    """

    directory: Path
    options: LaunchOptions
    text: str
    digest: str
    graph: str
    accesses: tuple[TritonAccessRecord, ...] = ()


def triton_texts(directory: Path, options: Sequence[LaunchOptions]) -> list[TritonText]:
    """Return the distinct Triton files of a candidate's kernels.

    Args:
        directory: The kernels.
        options: Launch options, one file for each.

    Raises:
        KernelRejected: A kernel has no Triton function, the file would have none at all, or an access is out of bounds;
            says why.
        FormatError: The kernels are not as they were written.
    """
    executable, target = load_executable(directory), _target(directory)
    found: dict[str, TritonText] = {}
    for one in _texts(executable, target, directory, options):
        found.setdefault(one.digest, one)
    return list(found.values())


def _texts(
    executable: Executable, target: Target, directory: Path, options: Sequence[LaunchOptions]
) -> Iterator[TritonText]:
    title = f"candidate {directory.name}: {TITLE}"
    for one in options:
        try:
            made = triton_file(executable.graph, executable.program, target, title, one)
        except MirageError as error:
            raise KernelRejected(f"it has no Triton file: {first_line(error)}", where="triton") from error
        if not made.functions:
            raise KernelRejected("its Triton file would be calls of torch alone", where="triton")
        digest = sha256(made.text.encode())
        yield TritonText(directory, one, made.text, digest, executable.digest, access_records(made))


def _target(directory: Path) -> Target:
    """Return the target that the kernels of a directory were planned for."""
    path = directory / MANIFEST_FILE
    manifest = open_sealed(read_file(path), KernelManifestRecord, str(path))
    return msgspec.convert(msgspec.to_builtins(manifest.target), Target)


__all__ = ["DEEP", "NARROW", "STAGES", "WARPS", "TritonText", "triton_texts"]

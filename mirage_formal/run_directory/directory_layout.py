"""File names of a run's directory, and the only code that removes files from a user's directory.

A directory is ours under two conditions: the record that a run puts there decodes, and every other entry, at every
level, has a name and a kind (file or directory) that this package writes. Only then are files removed, one by one, and
directories once they are empty. Symbolic links are never followed and never count as ours. docs/run-directory.md
describes this for users.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.records import (
    CANDIDATES,
    CONTRADICTION_FILE,
    DEVICE_FILES,
    EXHAUSTED_FILE,
    GRAPH_FILE,
    KERNELS,
    LAUNCH_FILE,
    MANIFEST_FILE,
    OBLIGATIONS_FILE,
    PLAN_FILE,
    PROGRAMS_FILE,
    PROOF_DIR,
    PROOF_FILE,
    QUESTIONS_FILE,
    REALIZES_FILE,
    RUN_FILE,
    SEARCH_FILE,
    STABILIZED_FILE,
    STABILIZED_PROOF_FILE,
    SUMMARY_FILE,
    VERIFICATION_FILE,
)
from mirage_formal.records.partition import COVERS, PARTS, WHOLE_FILE
from mirage_formal.support.errors import RunError

#: Most foreign files that a message names.
_NAMED: Final = 3


class DirectoryWarning(UserWarning):
    """Warning: results of a GPU were removed on request, which this machine cannot produce again."""


@dataclass(frozen=True)
class Folder:
    """File and directory names that this package writes into one directory.

    Attributes:
        files: Names of its files, including the temporary files of ``records.write_atomic``.
        temporary: Names of the temporary files alone.
        folders: Names of its subdirectories, each with its own ``Folder``.
        last: File that is removed last, so that a partly removed directory still counts as ours.
    """

    files: re.Pattern[str]
    temporary: re.Pattern[str]
    folders: tuple[tuple[re.Pattern[str], Folder], ...] = ()
    last: str = ""

    def below(self, name: str) -> Folder | None:
        """Return the ``Folder`` of the directory called ``name``; None if we write none of that name."""
        return next((folder for pattern, folder in self.folders if pattern.fullmatch(name)), None)


def _folder(*files: str, last: str = "", **folders: Folder) -> Folder:
    names = "|".join([*files, *([re.escape(last)] if last else [])]) or "(?!)"
    temporary = rf"\.(?:{names})\.\d+\.tmp"
    inner = tuple((re.compile(_NAMES[name]), folder) for name, folder in folders.items())
    return Folder(re.compile(f"{names}|{temporary}"), re.compile(temporary), inner, last)


_ID: Final = r"\d{3,}-[0-9a-f]{12}"
_NAMES: Final = {
    "proof": re.escape(PROOF_DIR),
    "candidate": _ID,
    "kernels_of_one": rf"{_ID}|\.{_ID}\.part",
    "candidates": rf"\.?{CANDIDATES}",
    "kernels": re.escape(KERNELS),
    "search": r"\d{2,}-[0-9a-f]{12}",
    "parts": re.escape(PARTS),
    "covers": rf"\.?{COVERS}",
}
_ESCAPED: Final = [re.escape(name) for name in (GRAPH_FILE, PROOF_FILE, VERIFICATION_FILE, MANIFEST_FILE)]
_OF_KERNELS: Final = (
    *(LAUNCH_FILE, PROGRAMS_FILE, PLAN_FILE, OBLIGATIONS_FILE, QUESTIONS_FILE, REALIZES_FILE),
    *(STABILIZED_FILE, STABILIZED_PROOF_FILE),
)

PROOFS: Final = _folder(r"\d{3,}\.smt2", r"digits-\d{3,}\.smt2", r"equivalence\.json")
CANDIDATE_SET: Final = _folder(candidate=_folder(*_ESCAPED, proof=PROOFS))
#: Names in the directory of one candidate's kernels.
KERNELS_OF_ONE: Final = _folder(
    *map(re.escape, (*_OF_KERNELS, *DEVICE_FILES, MANIFEST_FILE)),
    r"kernel\d*\.cu",
    r"kernel\d*-[a-z]+_\d+[a-z]?\.cubin",
)
KERNEL_SET: Final = _folder(kernels_of_one=KERNELS_OF_ONE)
RUN: Final = _folder(
    *map(re.escape, (SEARCH_FILE, SUMMARY_FILE, EXHAUSTED_FILE, CONTRADICTION_FILE)),
    last=RUN_FILE,
    candidates=CANDIDATE_SET,
    kernels=KERNEL_SET,
)
PART_SET: Final = _folder(search=RUN)
#: A cover has the names of a candidate, and the candidates of its parts.
COVER_SET: Final = _folder(candidate=_folder(*_ESCAPED, parts=CANDIDATE_SET))
WHOLE: Final = _folder(last=WHOLE_FILE, parts=PART_SET, covers=COVER_SET, kernels=KERNEL_SET)


@dataclass(frozen=True, slots=True)
class DirectoryContents:
    """Contents of a directory: entries that this package writes, and foreign entries.

    Attributes:
        root: The directory.
        files: Files of ours, in the order in which they may be removed.
        folders: Directories of ours, inner directories first.
        foreign: Foreign entries; the contents of a foreign directory are not listed.
        names: Names of the entries of ``root``, without temporary files.
    """

    root: Path
    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    foreign: tuple[Path, ...]
    names: tuple[str, ...]

    def refuse_foreign(self) -> None:
        """Refuse a directory that has foreign entries.

        Raises:
            RunError: Names the foreign entries.
        """
        if self.foreign:
            shown = ", ".join(path.relative_to(self.root).as_posix() for path in self.foreign[:_NAMED])
            more = f" and {len(self.foreign) - _NAMED} more" if len(self.foreign) > _NAMED else ""
            what = f"expected only what a search writes, got {shown}{more}: nothing was removed"
            raise RunError(what, where=str(self.root), hint="move that away, or choose another directory")

    @property
    def gpu_records(self) -> tuple[Path, ...]:
        """Return the files with a GPU's records of kernels."""
        return tuple(path for path in self.files if path.name in DEVICE_FILES)


def list_contents(root: Path, kind: Folder) -> DirectoryContents:
    """List the contents of a directory; a missing directory is empty.

    Raises:
        RunError: It is no directory.
        OSError: It cannot be read.
    """
    if not os.path.lexists(root):
        return DirectoryContents(root, (), (), (), ())
    if not root.is_dir():
        raise RunError("expected a directory, got a file", where=str(root), hint="choose another --out")
    found: list[tuple[Path, str]] = list(_walk(root, kind))
    by = {what: tuple(path for path, sort in found if sort == what) for what in ("file", "folder", "foreign")}
    names = tuple(sorted(entry.name for entry in os.scandir(root) if not kind.temporary.fullmatch(entry.name)))
    return DirectoryContents(root, by["file"], by["folder"], by["foreign"], names)


def _walk(root: Path, kind: Folder) -> Iterator[tuple[Path, str]]:
    """List everything below a directory with its kind; contents come before their directory, ``kind.last`` last."""
    with os.scandir(root) as entries:
        listed = sorted(entries, key=lambda entry: (entry.name == kind.last, entry.name))
    for entry in listed:
        path, mode = root / entry.name, entry.stat(follow_symlinks=False).st_mode
        inside = kind.below(entry.name)
        if stat.S_ISREG(mode) and kind.files.fullmatch(entry.name):
            yield path, "file"
        elif stat.S_ISDIR(mode) and inside is not None:
            yield from _walk(path, inside)
            yield path, "folder"
        else:
            yield path, "foreign"


def clear(root: Path, kind: Folder) -> None:
    """Empty a directory that has only files of ours.

    Raises:
        RunError: It has a foreign entry; nothing is removed then.
    """
    found = list_contents(root, kind)
    found.refuse_foreign()
    for path in found.files:
        path.unlink(missing_ok=True)
    for path in found.folders:
        try:
            path.rmdir()
        except FileNotFoundError:
            pass
        except OSError:  # a foreign file was added in the meantime: it stays
            list_contents(root, kind).refuse_foreign()
            raise


def remove(root: Path, kind: Folder) -> None:
    """Remove a directory that has only files of ours; do nothing if it is missing.

    Raises:
        RunError: It has a foreign entry, or is a symbolic link; nothing is removed then.
    """
    if root.is_symlink():
        raise RunError("expected a directory, got a symbolic link", where=str(root), hint="move it away yourself")
    if os.path.lexists(root):
        clear(root, kind)
        root.rmdir()


def remove_file(path: Path) -> None:
    """Remove one file of ours; do nothing if it is missing.

    Raises:
        RunError: It is a directory or a symbolic link.
    """
    if path.is_symlink() or path.is_dir():
        got = "a symbolic link" if path.is_symlink() else "a directory"
        raise RunError(f"expected a file, got {got}", where=str(path), hint="move it away yourself")
    path.unlink(missing_ok=True)


def remove_temporary_files(root: Path, kind: Folder) -> None:
    """Remove the temporary files that a killed session left directly in a directory, because checks refuse them."""
    with os.scandir(root) as entries:
        names = [e.name for e in entries if kind.temporary.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    for name in names:
        (root / name).unlink(missing_ok=True)


def warn_of_removed_results(found: DirectoryContents, why: str) -> None:
    """Warn that GPU results of kernels are removed, which this machine cannot produce again."""
    if found.gpu_records:
        names = ", ".join(path.relative_to(found.root).as_posix() for path in found.gpu_records[:_NAMED])
        more = f" and {len(found.gpu_records) - _NAMED} more" if len(found.gpu_records) > _NAMED else ""
        text = f"{found.root}: {why}: removed {len(found.gpu_records)} results of a device: {names}{more}"
        warnings.warn(text, DirectoryWarning, stacklevel=3)


def expect_replaceable_kernels(where: Path, *, force: bool) -> None:
    """Refuse to replace a run's kernels, before the first is built, unless that is allowed.

    Raises:
        RunError: An entry is foreign, or the kernels have GPU results and ``force`` is not set.
    """
    if where.is_symlink():
        raise RunError("expected a directory, got a symbolic link", where=str(where), hint="move it away yourself")
    found = list_contents(where, KERNEL_SET)
    found.refuse_foreign()
    if found.gpu_records and not force:
        what = f"expected kernels that may be replaced, got {len(found.gpu_records)} results of a device beside them"
        raise RunError(what, where=str(where), hint="--force replaces them (in Python force=True)")
    warn_of_removed_results(found, "kernels are built again")


__all__ = [
    "CANDIDATE_SET",
    "COVER_SET",
    "KERNELS_OF_ONE",
    "KERNEL_SET",
    "PART_SET",
    "RUN",
    "WHOLE",
    "DirectoryContents",
    "DirectoryWarning",
    "Folder",
    "clear",
    "expect_replaceable_kernels",
    "list_contents",
    "remove",
    "remove_file",
    "remove_temporary_files",
    "warn_of_removed_results",
]

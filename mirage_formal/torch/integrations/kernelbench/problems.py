"""Discovery of KernelBench problem files in a directory, and of its git commit."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.support.errors import ProgramError

_LEVEL: Final = re.compile(r"level_?(\d+)")
_NUMBER: Final = re.compile(r"(\d+)_")
_HINT: Final = "give a checkout of KernelBench, its directory KernelBench, one of its levels, or one file"
_GIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProblemFile:
    """Problem file of KernelBench.

    Attributes:
        name: Its level and its file, as in "level1/1_Square_matrix_multiplication".
        path: The file.
    """

    name: str
    path: Path


def find_problems(root: Path, levels: Collection[int] = (), only: str = "") -> list[ProblemFile]:
    """Return the problem files of a directory, in the order of levels and numbers.

    Args:
        root: A checkout, a directory with directories of levels, one with problem files, or a problem file.
        levels: Selected levels; empty for all.
        only: Substring that the names must contain.

    Raises:
        ProgramError: There is none.
    """
    if root.is_file():
        return [ProblemFile(root.stem, root)]
    if not root.is_dir():
        raise ProgramError("expected a directory, got none", where=str(root), hint=_HINT)
    inner = root / "KernelBench"
    place = inner if any(_levels(inner)) else root
    found: list[tuple[tuple[int, int, str], ProblemFile]] = []
    for level, directory in _levels(place) or [(0, place)]:
        if levels and level not in levels:
            continue
        for path in directory.glob("*.py"):
            number = _NUMBER.match(path.name)
            if (number is not None or not level) and path.name != "__init__.py" and only in path.name:
                name = f"{directory.name}/{path.stem}" if level else path.stem
                found.append(((level, int(number[1]) if number else 0, path.name), ProblemFile(name, path)))
    if not found:
        raise ProgramError("expected problem files, got none", where=str(root), hint=_HINT)
    return [problem for _, problem in sorted(found, key=lambda one: one[0])]


def _levels(place: Path) -> list[tuple[int, Path]]:
    """Return the level directories in a directory, with their numbers."""
    if not place.is_dir():
        return []
    matched = ((_LEVEL.fullmatch(path.name), path) for path in place.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matched if match is not None)


def commit_of(root: Path) -> str:
    """Return the git commit of a file or directory, with "+" for uncommitted changes; empty if there is none."""
    place = root if root.is_dir() else root.parent

    def git(*arguments: str) -> str | None:
        try:
            command = ["git", "-C", str(place), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit or git("ls-files", "--error-unmatch", ".") is None:
        return ""  # a directory that only lies inside of some checkout is none
    return commit + ("+" if git("status", "--porcelain", ".") else "")


__all__ = ["ProblemFile", "commit_of", "find_problems"]

"""The directory of a whole program's search: started, continued, and left with what whole.json names.

Only what a search has written is ever removed; anything else that lies there is refused or left alone.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.errors import FormatError, RunError
from mirage_formal.ir.graph import KernelGraph
from mirage_formal.ir.serialize import from_json
from mirage_formal.journal import (
    CANDIDATES,
    KERNELS,
    RUN_FILE,
    SEARCH_FILE,
    SUMMARY_FILE,
    Identity,
    RunRecord,
    decode,
    read,
)
from mirage_formal.journal.whole import PARTS, WHOLE_FILE, WholeRecord

#: What a search has in its directory before it has a run.json, or after losing it.
_FILES: Final = frozenset({SEARCH_FILE, SUMMARY_FILE, CANDIDATES, KERNELS})
_SEARCH: Final = re.compile(r"\d{2,}-[0-9a-f]{12}")
_TEMPORARY: Final = re.compile(r"\.[a-z.]+\.\d+\.tmp")


def open_whole(root: Path, config: str | None, identity: Identity, *, resume: bool) -> None:
    """Start a whole in ``root``, or see that the one that is there is continued.

    Searches without a run.json, which a crash may have left, are removed, and with ``resume`` made anew.

    Args:
        root: The directory.
        config: The space that the user named; None if each part gets the one for its operators.
        identity: What decides what is found.
        resume: Whether the whole that is there is continued; else it is replaced.

    Raises:
        RunError: Not a directory, holds something other than a whole, or (with ``resume``) another one.
    """
    if root.exists() and not root.is_dir():
        raise RunError("expected a directory, got a file", where=str(root), hint="choose another --out")
    _drop_temporary(root)
    if resume:
        _same(root, config, identity)
    elif root.is_dir() and any(root.iterdir()):
        _is_whole(root)
    searches = _searches(root)
    for path, ours in searches.items():
        if not ours:
            what = f"expected only searches of parts in {PARTS}, got {path.name} as well"
            raise RunError(what, where=str(path), hint="choose another --out, or move it away yourself")
    root.mkdir(parents=True, exist_ok=True)
    for path in searches:
        if resume and (path / RUN_FILE).is_file():
            _drop_temporary(path)
        else:
            shutil.rmtree(path)


def drop_others(root: Path, named: Collection[str]) -> None:
    """Remove searches that whole.json does not name, which earlier sessions have left."""
    for path, ours in _searches(root).items():
        if ours and f"{PARTS}/{path.name}" not in named:
            shutil.rmtree(path)


def number_of(search: Path) -> int:
    """Number in the name of a part's directory."""
    return int(search.name.partition("-")[0])


def earlier_search(root: Path, code: str, program: KernelGraph) -> Path | None:
    """The directory of an earlier search for a part, given the digest of its program and the program."""
    for path in sorted((root / PARTS).glob(f"*-{code[:12]}")):
        if (path / RUN_FILE).is_file():
            record = decode(read(path / RUN_FILE), RunRecord, str(path / RUN_FILE))
            if from_json(bytes(record.program), str(path / RUN_FILE)) == program:
                return path
    return None


def _same(root: Path, config: str | None, identity: Identity) -> None:
    """Refuse to resume what was asked for differently: its parts would be searched in another way."""
    path = root / WHOLE_FILE
    if not path.is_file():
        hint = "leave --resume out to start a new run"
        raise RunError("expected a run to resume, got none of a whole program", where=str(root), hint=hint)
    earlier = decode(read(path), WholeRecord, str(path))
    old = {"config": earlier.config, **msgspec.structs.asdict(earlier.identity)}
    new = {"config": config, **msgspec.structs.asdict(identity)}
    shown = [
        f"another {name} ({str(old[name])[:12]}, now {str(new[name])[:12]})" for name in new if old[name] != new[name]
    ]
    if shown:
        what = f"expected the run that is being resumed, got {'; '.join(shown)}"
        raise RunError(what, where=str(path), hint="resume with the same program and options")


def _is_whole(root: Path) -> None:
    """Refuse a directory that is not a whole program's: nothing in it may be removed."""
    path, got = root / WHOLE_FILE, ""
    try:
        decode(read(path), WholeRecord, str(path))
    except (FormatError, RunError) as error:
        got = error.what
    if got:
        what = f"expected a new directory or an earlier run of a whole program, but {WHOLE_FILE}: {got}"
        raise RunError(what, where=str(root), hint="choose another --out, or empty it yourself")


def _searches(root: Path) -> dict[Path, bool]:
    """What lies in the directory of parts, and whether it is a search that we wrote."""
    place = root / PARTS
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise RunError("expected a directory, got another file", where=str(place), hint="choose another --out")
    return {path: _ours(path) for path in sorted(place.iterdir())} if place.is_dir() else {}


def _ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir() or not _SEARCH.fullmatch(path.name):
        return False
    if not (path / RUN_FILE).exists():
        return all(below.name in _FILES or _TEMPORARY.fullmatch(below.name) for below in path.iterdir())
    try:
        decode(read(path / RUN_FILE), RunRecord, RUN_FILE)
    except (FormatError, RunError):
        return False
    return True


def _drop_temporary(root: Path) -> None:
    """Remove files that a killed session was writing; checks refuse them."""
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if _TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink()


__all__ = ["drop_others", "earlier_search", "number_of", "open_whole"]

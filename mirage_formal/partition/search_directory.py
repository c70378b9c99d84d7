"""Directory of a whole program's search: creation, resumption, and removal of files that whole.json no longer names.

Only files that a search has written are ever removed; anything else is refused or left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import KERNELS, RUN_FILE, Identity, RunRecord, decode, read_file
from mirage_formal.records.partition import PARTS, WHOLE_FILE, WholeRecord, cover_name
from mirage_formal.run_directory.directory_layout import (
    KERNELS_OF_ONE,
    PART_SET,
    RUN,
    WHOLE,
    list_contents,
    remove,
    remove_temporary_files,
    warn_of_removed_results,
)
from mirage_formal.run_directory.overwrite import clear_earlier_search, expect_resumed, reject_foreign_files
from mirage_formal.support.errors import RunError


def open_cover_directory(
    root: Path, config: str | None, identity: Identity, *, resume: bool, force: bool = False
) -> None:
    """Start a whole program's search in ``root``, or check that the one there can be resumed.

    With ``resume``, searches without a run.json, which a crash may have left, are removed and repeated.

    Args:
        root: The directory.
        config: The space that the user named; None if each subgraph gets the one for its operators.
        identity: Digests and options that determine the result.
        resume: Whether the search that is there is continued.
        force: Whether files of an earlier search are replaced.

    Raises:
        RunError: The directory is not empty and may not be used; see ``clear_earlier_search``. With ``resume``,
            another program or other options.
    """
    if not resume:
        clear_earlier_search(root, force=force)
        return
    _expect_same_search(root, config, identity)
    reject_foreign_files(list_contents(root, WHOLE))
    remove_temporary_files(root, WHOLE)
    for path in _search_directories(root):
        if (path / RUN_FILE).is_file():
            remove_temporary_files(path, RUN)
        else:
            remove(path, RUN)


def remove_unused_searches(root: Path, named: Collection[str], covers: Sequence[str]) -> None:
    """Remove searches that whole.json does not name and kernels of covers that it does not have.

    Earlier sessions have left these files.

    Args:
        root: The directory.
        named: Directories of searches.
        covers: Digests of the covers, best first.
    """
    for path in _search_directories(root):
        if f"{PARTS}/{path.name}" not in named:
            warn_of_removed_results(list_contents(path, RUN), "a search that the whole no longer uses")
            remove(path, RUN)
    kept = {cover_name(rank, digest) for rank, digest in enumerate(covers, 1)}
    place = root / KERNELS
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if path.name not in kept:
            warn_of_removed_results(
                list_contents(path, KERNELS_OF_ONE), "kernels of a cover that is no longer reported"
            )
            remove(path, KERNELS_OF_ONE)


def number_of(search: Path) -> int:
    """Return the number in the name of a subgraph's directory."""
    return int(search.name.partition("-")[0])


def earlier_search(root: Path, code: str, program: KernelGraph) -> Path | None:
    """Return the directory of an earlier search for a subgraph, given its program and the program's digest."""
    for path in sorted((root / PARTS).glob(f"*-{code[:12]}")):
        if (path / RUN_FILE).is_file():
            record = decode(read_file(path / RUN_FILE), RunRecord, str(path / RUN_FILE))
            if from_json(bytes(record.program), str(path / RUN_FILE)) == program:
                return path
    return None


def _expect_same_search(root: Path, config: str | None, identity: Identity) -> None:
    """Refuse to resume a search with another program or other options."""
    path = root / WHOLE_FILE
    if not path.is_file():
        hint = "leave --resume out to start a new run"
        raise RunError("expected a run to resume, got none of a whole program", where=str(root), hint=hint)
    earlier = decode(read_file(path), WholeRecord, str(path))
    old = {"config": earlier.config, **msgspec.structs.asdict(earlier.identity)}
    expect_resumed(path, old, {"config": config, **msgspec.structs.asdict(identity)})


def _search_directories(root: Path) -> list[Path]:
    """Return the directories of the subgraphs' searches."""
    place = root / PARTS
    return [path for path in list_contents(place, PART_SET).folders if path.parent == place]


__all__ = ["earlier_search", "number_of", "open_cover_directory", "remove_unused_searches"]

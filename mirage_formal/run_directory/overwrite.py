"""Replacement of an earlier search in a directory by a new one; only with ``force``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from mirage_formal.records import RUN_FILE, SUMMARY_FILE, Identity, RunRecord, SummaryRecord, decode, read_file
from mirage_formal.records.partition import PARTS, WHOLE_FILE, WholeRecord
from mirage_formal.run_directory.directory_layout import (
    RUN,
    WHOLE,
    DirectoryContents,
    clear,
    list_contents,
    warn_of_removed_results,
)
from mirage_formal.support.errors import MirageError, RunError


def clear_earlier_search(root: Path, *, force: bool) -> None:
    """Make ``root`` an empty directory; an earlier run or whole program is removed only with ``force``.

    Raises:
        RunError: Not a directory; or it holds a file that no search has written, which always stays; or it holds an
            earlier search and ``force`` is not set.
    """
    kind = WHOLE if os.path.lexists(root / WHOLE_FILE) else RUN
    found = list_contents(root, kind)
    if found.names:
        read_search_record(root)
        reject_foreign_files(found)
        if not force:
            _refuse_overwrite(root)
        warn_of_removed_results(found, "replaced by a new search")
    root.mkdir(parents=True, exist_ok=True)
    clear(root, kind)


def read_search_record(root: Path) -> RunRecord | WholeRecord:
    """Return the record of the search that is in a directory.

    Raises:
        RunError: There is no record, or it is not one of ours.
    """
    hint = "choose another --out, or empty it yourself"
    file = WHOLE_FILE if os.path.lexists(root / WHOLE_FILE) else RUN_FILE
    if not os.path.lexists(root / file):
        raise RunError("expected a new directory or an earlier run, got other files", where=str(root), hint=hint)
    try:
        data = read_file(root / file)
        return decode(data, WholeRecord, file) if file == WHOLE_FILE else decode(data, RunRecord, file)
    except MirageError as error:
        what = f"expected a new directory or an earlier run, but {file}: {error.what}"
        raise RunError(what, where=str(root), hint=hint) from None


def reject_foreign_files(found: DirectoryContents) -> None:
    """Refuse a directory with any file that no search has written, in a subgraph's directory too.

    Raises:
        RunError: Names the foreign files.
    """
    found.refuse_foreign()
    for path in found.files:
        if path.name == RUN_FILE and path.parent.parent == found.root / PARTS:
            read_search_record(path.parent)


def expect_resumed(path: Path, earlier: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Refuse to resume a search with another program or other options.

    Args:
        path: Record of the earlier search.
        earlier: What decides its result, by name.
        now: What decides the result that is asked for.

    Raises:
        RunError: Names all that differs.
    """
    differ = [name for name in now if earlier[name] != now[name]]
    shown = "; ".join(
        f"another {'search space' if name == 'space' else name} ({str(earlier[name])[:12]}, now {str(now[name])[:12]})"
        for name in differ
    )
    if differ:
        what = f"expected the run that is being resumed, got {shown}"
        raise RunError(what, where=str(path), hint="resume with the same program and options")


def same_search(root: Path, config: str | None, identity: Identity) -> bool:
    """Return whether the search that is in a directory is of the same program and options; False if there is none."""
    try:
        record = read_search_record(root)
    except RunError:
        return False
    same = record.identity == identity
    return same and (isinstance(record, RunRecord) or record.config == config)


def _refuse_overwrite(root: Path) -> NoReturn:
    state = "an unfinished run"
    with suppress(MirageError):
        record: RunRecord | WholeRecord | SummaryRecord = read_search_record(root)
        if isinstance(record, RunRecord):
            state += f" of {record.name}"
            record = decode(read_file(root / SUMMARY_FILE), SummaryRecord, "")
        if record.status == "complete":
            state = f"a finished run of {record.program}"
    hint = "--resume continues it, --force replaces it (in Python resume=True, force=True); or choose another --out"
    raise RunError(f"expected a new directory, got {state}", where=str(root), hint=hint)


__all__ = ["clear_earlier_search", "expect_resumed", "read_search_record", "reject_foreign_files", "same_search"]

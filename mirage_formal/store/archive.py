"""Export of a store entry as one archive file, and import of foreign entries, which are data and never code."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from mirage_formal.records import confine_path, naming
from mirage_formal.records.store_entry import ENTRY_FILE
from mirage_formal.store.entry import Entry, read_entry, write_files
from mirage_formal.store.location import StoreDirectory
from mirage_formal.support.errors import FormatError, RunError
from mirage_formal.support.files import expect_regular
from mirage_formal.support.limits import MAX_BYTES, MAX_ENTRIES

#: Time in every archive, so that equal entries give equal files.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_HINT: Final = "give a file that mirage-formal tools store export has written, or the directory of an entry"


def export(entry: Entry, file: Path) -> None:
    """Write an entry as one zip archive; equal entries give equal files.

    Raises:
        RunError: The file is there already.
        OSError: It cannot be written.
    """
    if file.exists():
        raise RunError("expected a new file, got one that is there", where=str(file), hint="choose another --out")
    own = (entry.path / ENTRY_FILE).read_bytes()
    with naming(file), zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted({**entry.files, ENTRY_FILE: own}.items()):
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)


def unpack(file: Path, into: Path) -> Entry:
    """Read an exported entry, or the directory of one, as it is; ``replay`` establishes its evidence.

    Sound: only plain files below ``into`` are written, of names that stay there, and no more bytes than a directory of
    evidence may have; then everything is compared as in any other entry.

    Args:
        file: The archive or directory.
        into: A new directory, which is written only for an archive.

    Raises:
        MirageError: It is neither, or not as it was written.
    """
    if file.is_dir():
        return read_entry(file)
    expect_regular(file, MAX_BYTES)
    left = MAX_BYTES
    try:
        with zipfile.ZipFile(file) as archive:
            items = archive.infolist()
            names = [item.filename for item in items]
            if len(names) > MAX_ENTRIES or len(names) != len(set(names)):
                raise FormatError("expected distinct files, and not so many", where=str(file), hint=_HINT)
            for item in items:
                path = confine_path(into, item.filename)
                with archive.open(item) as stream:
                    data = stream.read(left + 1)
                left -= len(data)
                if left < 0:
                    raise FormatError(f"expected at most {MAX_BYTES} bytes, got more", where=str(file), hint=_HINT)
                if not _is_below(path, into):
                    raise FormatError("expected names inside the archive", where=str(file), hint=_HINT)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        what = f"expected an exported entry, got another file: {str(error)[:200]}"
        raise FormatError(what, where=str(file), hint=_HINT) from None
    return read_entry(into)


def _is_below(path: Path, root: Path) -> bool:
    return PurePosixPath(root.as_posix()) in PurePosixPath(path.as_posix()).parents


def import_entry(place: StoreDirectory, entry: Entry, package: str, code: str) -> Path:
    """Store a foreign entry, whose evidence was replayed, under this installation's key.

    Args:
        place: The store.
        entry: The entry.
        package: Version for its key.
        code: Digest of the code for its key.

    Raises:
        OSError: It cannot be written.
    """
    key = msgspec.structs.replace(entry.record.key, package=package, code=code)
    with place.building() as building:
        write_files(building / "entry", msgspec.structs.replace(entry.record, key=key), entry.files)
        path = place.path(key)
        place.settle(building / "entry", path)
        return path


__all__ = ["export", "import_entry", "unpack"]

"""Output directory of ``reproduce``: finished rows as JSON lines, so that an interrupted run can continue."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from mirage_formal.records.reproduction import Host
from mirage_formal.records.run import Record
from mirage_formal.records.storage import json_line, name_path_in_errors, sha256, to_indented_json
from mirage_formal.run.settings import versions
from mirage_formal.support.errors import RunError
from mirage_formal.support.files import read_file
from mirage_formal.support.resources import processor_count

R = TypeVar("R", bound=Record)

_MAX_BYTES: Final = 1 << 28


class RecordFile(Generic[R]):
    """Finished records of one kind, in a file with one JSON object per line.

    Args:
        path: The file; made when the first record is added.
        kind: The type of the records; each has a ``key``.

    Raises:
        RunError: The file cannot be read or written, or a line other than a torn last one is no such record.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        self._path = path
        self._known: dict[str, R] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() and path.stat().st_size <= _MAX_BYTES else b""
        except OSError as error:
            raise RunError(f"expected a directory to write to, got: {error.strerror}", where=str(path.parent)) from None
        whole = data[: data.rfind(b"\n") + 1]
        decoder = msgspec.json.Decoder(kind)
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                record = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                hint = "give another directory with --out, or remove this file"
                raise RunError(f"expected a record, got: {error}", where=f"{path}:{number}", hint=hint) from None
            self._known[_key(record)] = record
        if len(whole) < len(data):  # torn by an interruption while writing, unless the file is somebody else's
            begin = f'{{"{msgspec.structs.fields(kind)[0].encode_name}":'.encode()
            torn = data[len(whole) :]
            if not (torn.startswith(begin) or begin.startswith(torn)):
                what = "expected a record at the end, got something else"
                raise RunError(what, where=str(path), hint="give another directory with --out, or remove this file")
            os.truncate(path, len(whole))

    def get(self, key: str) -> R | None:
        """Return the finished record with this key, or None."""
        return self._known.get(key)

    def add(self, record: R) -> R:
        """Add a record and write it at once."""
        with name_path_in_errors(self._path), self._path.open("ab") as file:
            file.write(json_line(record))
        self._known[_key(record)] = record
        return record


def _key(record: Record) -> str:
    key = getattr(record, "key", None)
    assert isinstance(key, str)
    return key


def record_key(*parts: object) -> str:
    """Return a key: the sha256 of the values that determine a record."""
    return sha256(msgspec.json.encode(parts, order="sorted", enc_hook=str))


def host_with_load() -> Host:
    """Return a record of this machine and its current load."""
    return Host(
        processors=processor_count(),
        load=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        versions=versions(),
    )


def expect_writable_result(folder: Path, name: str, kind: type[Record], others: tuple[str, ...] = (".md",)) -> None:
    """Check that a result of this name can be written; an existing file must be an earlier result.

    Raises:
        RunError: Another file has that name; it is left alone.
    """
    path = folder / f"{name}.json"
    taken = [folder / f"{name}{end}" for end in others if os.path.lexists(folder / f"{name}{end}")]
    hint = "give another directory with --out, or move this file away"
    if not os.path.lexists(path):
        if taken:
            raise RunError("expected no such file, or a result beside it", where=str(taken[0]), hint=hint)
        return
    try:
        msgspec.json.decode(read_file(path, _MAX_BYTES), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RunError) as error:
        raise RunError(f"expected an earlier result, got: {error}", where=str(path), hint=hint) from None


def write(folder: Path, name: str, record: Record, markdown: str) -> None:
    """Write a result as JSON and Markdown."""
    (folder / f"{name}.json").write_bytes(to_indented_json(record))
    (folder / f"{name}.md").write_text(markdown)

"""Writing and reading the records of a run directory.

Reading is strict (``strict_json``, and unknown fields are refused) and bounded; a path inside a record never leads out
of the directory that the record is in.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import msgspec

from mirage_formal.records.kernels import KernelManifestRecord
from mirage_formal.records.measurement import MeasureRecord, NumericsRecord
from mirage_formal.records.partition import WholeRecord
from mirage_formal.records.run import (
    NO_SEAL,
    PROOF_DIR,
    SCHEMA_VERSION,
    VERIFICATION_FILE,
    Identity,
    ManifestRecord,
    ProofRecord,
    Record,
    SummaryRecord,
)
from mirage_formal.records.store_entry import CacheEntry, EarlierSearchEntry
from mirage_formal.support.errors import FormatError, MirageError
from mirage_formal.support.files import expect_regular, read_file
from mirage_formal.support.limits import MAX_FILE_BYTES, MAX_LINE_BYTES, MAX_LINES
from mirage_formal.support.strict_json import load_strict_json

AnyRecord = TypeVar("AnyRecord", bound=Record)
Sealed = TypeVar(
    "Sealed",
    ManifestRecord,
    SummaryRecord,
    WholeRecord,
    KernelManifestRecord,
    NumericsRecord,
    MeasureRecord,
    CacheEntry[Any, Any],
    EarlierSearchEntry,
)


def sha256(data: bytes) -> str:
    """Sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def key_of(identity: Identity) -> str:
    """Sha256 over an identity: its fields in declared order as compact JSON."""
    return sha256(msgspec.json.encode(identity))


def digits_file(number: int) -> str:
    """Path of an equivalence proof's obligation, relative to the candidate's directory; numbers start at 1."""
    return f"{PROOF_DIR}/digits-{number:03}.smt2"


def to_indented_json(record: Record) -> bytes:
    """A record as indented JSON text that ends with a newline."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def json_line(record: Record) -> bytes:
    """A record as one line of JSON that ends with a newline."""
    return msgspec.json.encode(record) + b"\n"


def seal_record(record: Sealed) -> bytes:
    """A record as indented JSON, with its seal computed and filled in."""
    blank = to_indented_json(msgspec.structs.replace(record, seal=NO_SEAL))
    mark = f'"seal": "{NO_SEAL}"\n}}\n'.encode()
    assert blank.endswith(mark)
    return blank[: -len(mark)] + mark.replace(NO_SEAL.encode(), sha256(blank).encode())


def open_sealed(data: bytes, kind: type[Sealed], where: str) -> Sealed:
    """Decode a sealed record and check its seal.

    Sound: the seal covers every byte of the file except its own digits, and those are compared, so any changed byte is
    refused.

    Raises:
        FormatError: Not a record of this kind, or the seal does not fit.
    """
    record = decode(data, kind, where)
    blank = re.sub(rb'"seal": "[0-9a-f]{64}"\n\}\n\Z', f'"seal": "{NO_SEAL}"\n}}\n'.encode(), data)
    if sha256(blank) != record.seal:
        what = f"expected the seal {sha256(blank)}, got {record.seal}"
        raise FormatError(what, where=where, hint="the file was changed after it was written; make it again")
    return record


def decode(data: bytes, kind: type[AnyRecord], where: str) -> AnyRecord:
    """Decode one record strictly.

    Raises:
        FormatError: Not JSON, not this record, or another schema version.
    """
    value = load_strict_json(data, where)
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _refusal(data, f"expected a {kind.__name__}: {str(error)[:400]}", where) from None
    _versioned(value, kind, where)
    return record


def decode_proof(data: bytes, where: str) -> ProofRecord:
    """Decode one line of proof.jsonl strictly.

    Raises:
        FormatError: Not a line of a proof log.
    """
    value = load_strict_json(data, where)
    try:
        record = _PROOF.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _refusal(data, f"expected a line of a proof log: {str(error)[:400]}", where) from None
    _versioned(value, type(record), where)
    return record


_PROOF: Final[msgspec.json.Decoder[ProofRecord]] = msgspec.json.Decoder(ProofRecord)


def _versioned(value: Any, kind: type[msgspec.Struct], where: str) -> None:
    """Refuse a record that leaves its version out: the default is for those that are written here."""
    if "schema_version" in kind.__struct_fields__ and "schema_version" not in value:
        raise FormatError(f"schema_version: expected {SCHEMA_VERSION}, got none", where=where, hint="repeat the search")


class _Versioned(msgspec.Struct, frozen=True):
    schema_version: int = SCHEMA_VERSION


def _refusal(data: bytes, what: str, where: str) -> FormatError:
    """Why a record cannot be read; that it is of another version comes before anything else about it."""
    try:
        got = msgspec.json.decode(data, type=_Versioned).schema_version
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        got = SCHEMA_VERSION
    if got == SCHEMA_VERSION:
        return FormatError(what, where=where, hint="the file is not what a search wrote: repeat the search")
    what = f"schema_version: expected {SCHEMA_VERSION}, got {got}: another version of this package wrote it"
    return FormatError(what, where=where, hint="repeat the search with this version")


def pack_texts(texts: Iterable[str]) -> bytes:
    """SMT-LIB texts as one compressed script, with ``(reset)`` between them; equal texts give equal bytes."""
    return gzip.compress(_RESET.join(texts).encode("ascii"), mtime=0)


def unpack_texts(data: bytes, where: str, limit: int = MAX_FILE_BYTES) -> tuple[str, ...]:
    """The texts of ``pack_texts``; bounded, whatever the bytes claim to hold.

    Raises:
        FormatError: Not such a file, or more than ``limit`` bytes of text.
    """
    try:
        stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        text = stream.decompress(data, limit)
        if stream.unconsumed_tail:
            raise FormatError(f"expected at most {limit} bytes of text, got more", where=where)
        if not stream.eof or stream.unused_data:
            raise FormatError("expected one whole gzip stream, got a part or more", where=where)
        return tuple(text.decode("ascii").split(_RESET)) if text else ()
    except (zlib.error, UnicodeDecodeError) as error:
        raise FormatError(f"expected SMT-LIB text compressed by gzip: {error}", where=where) from None


_RESET: Final = "(reset)\n"


def read_lines(path: Path, limit: int = MAX_FILE_BYTES) -> Iterator[tuple[int, bytes]]:
    """The lines of a log with their numbers, from 1, one in memory at a time.

    Raises:
        RunError: See ``read_file``.
        FormatError: The last line has no line break, or there are too many, or one is too long.
    """
    expect_regular(path, limit)
    with path.open("rb") as file:
        number = 0
        while text := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not text.endswith(b"\n"):
                long = f"at most {MAX_LINE_BYTES} bytes in a line, got more"
                raise FormatError(f"expected {long if len(text) > MAX_LINE_BYTES else 'a newline at the end'}")
            if number > MAX_LINES:
                raise FormatError(f"expected at most {MAX_LINES} lines, got more")
            yield number, text[:-1]


def is_cover(root: Path) -> bool:
    """Return whether the verification log of a directory says that it is one of a cover.

    Sound: it only chooses the check, which then refuses whatever else the directory is.
    """
    try:
        value = load_strict_json(read_file(root / VERIFICATION_FILE), VERIFICATION_FILE)
    except (MirageError, OSError):
        return False
    return isinstance(value, dict) and value.get("basis") == "composition"


def read_directory(directory: Path, limit: int = MAX_FILE_BYTES) -> dict[str, bytes]:
    """Return all files below a directory, by their POSIX paths in it.

    Args:
        directory: The directory.
        limit: Most bytes of one file.

    Raises:
        MirageError: A file is longer, or lies behind a link.
    """
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return {name: read_file(resolve_inside(directory, name), limit) for name in names}


def resolve_inside(root: Path, relative: str) -> Path:
    """The path of ``relative`` under ``root``, which it cannot leave.

    Sound: only plain relative POSIX paths are accepted, no component is "..", and no component below ``root`` is a
    symbolic link.

    Raises:
        FormatError: A path that is absolute, climbs up, is not normal, or runs over a link.
    """
    pure = PurePosixPath(relative)
    normal = relative == str(pure) and "\\" not in relative and "\0" not in relative and relative not in ("", ".")
    if not normal or pure.is_absolute() or ".." in pure.parts or len(relative) > 512:
        what = f"expected a path inside the directory, got {relative[:200]!r}"
        raise FormatError(what, where=str(root), hint="evidence must lie beside the file that names it")
    path = str(root)
    for part in pure.parts:
        path = os.path.join(path, part)
        if os.path.islink(path):
            raise FormatError("expected a plain file or directory, got a symbolic link", where=path)
    return root.joinpath(relative)


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a directory by their relative paths, which cannot leave it; see ``resolve_inside``."""
    for name, data in files.items():
        path = resolve_inside(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with name_path_in_errors(path):
            path.write_bytes(data)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that readers and crashes see the old content or the new one, never a part.

    Where that fails, as on a full disk, nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.tmp")
    try:
        with name_path_in_errors(path), temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Name the file in an error about writing to it: the system says only that there is no room."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise

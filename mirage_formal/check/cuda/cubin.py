"""Resource usage in machine code: registers and stack frame of the one kernel in a cubin (an ELF file)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirage_formal.support.errors import FormatError

_MAX_SECTIONS: Final = 4096
#: Attributes of .nv.info, as ``cuobjdump -elf`` names them; each has a symbol's number and a value.
_REGCOUNT: Final = 0x2F
_FRAME_SIZE: Final = 0x11
_WITH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Resources:
    """Resource usage of one thread: registers, and bytes of stack frame."""

    registers: int
    stack_bytes: int


def resources(data: bytes, kernel: str) -> Resources:
    """Return the resource usage of the only kernel of a cubin.

    Raises:
        FormatError: Not a cubin with this kernel alone.
    """
    try:
        found = dict(sections(data))
        if [name for name in found if name.startswith(".text.")] != [f".text.{kernel}"]:
            raise FormatError(f"expected machine code of {kernel} alone")
        values = dict(_attributes(found[".nv.info"]))
        return Resources(values[_REGCOUNT], values[_FRAME_SIZE])
    except (struct.error, KeyError, ValueError, IndexError) as error:
        raise FormatError(f"expected a cubin with one kernel, got {type(error).__name__}: {error}") from None


def sections(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of an ELF file's sections."""
    if data[:5] != b"\x7fELF\x02":
        raise FormatError("expected a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if count > _MAX_SECTIONS:
        raise FormatError(f"expected at most {_MAX_SECTIONS} sections, got {count}")
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    start, length = headers[names][4:6]
    text = data[start : start + length]
    for name, _, _, _, start, length in headers:
        yield text[name : text.index(b"\0", name)].decode("ascii"), data[start : start + length]


def _attributes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the attributes that give a value for a symbol; a repeated one is refused."""
    position, seen = 0, set()
    while position < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, position)
        if form == _WITH_BYTES and attribute in (_REGCOUNT, _FRAME_SIZE):
            if attribute in seen or size != 8:
                raise FormatError("expected one kernel in .nv.info, got several")
            seen.add(attribute)
            yield attribute, struct.unpack_from("<II", data, position + 4)[1]
        position += 4 + (size if form == _WITH_BYTES else 0)

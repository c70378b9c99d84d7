"""Hostile bytes: strings that a terminal would obey, JSON that is deep, long or none, and files spoiled at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Values of a string field.
STRINGS: Final = (
    "",
    "x" * 10_000,
    "a\nCode generation IS PROVED",
    "a\r\nequivalent",
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "[bold]markup[/] [link=file:///etc/passwd]x[/link]",
    "\u202eevitisop\u202c",
    "zero\u200bwidth",
    "nul\x00inside",
    "../../../etc/passwd",
    "/etc/passwd",
    "C:\\windows",
    "\ud800",
    "é" * 300,
    "%s %n {0} {x}",
    "$(touch pwned) `touch pwned`",
    '"); (echo "x") (',
    "|quoted symbol|",
)

_DEEP: Final = 300_000


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _doubled(data: bytes, rng: random.Random) -> bytes:
    a, b = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:b] + data[a:b] + data[b:]


def _inserted(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    junk = rng.choice((b"\0", b"\xff\xfe", b"{", b"]", b'"', b",", b"\n", b"NaN", b"1e999999", b"-0", b"\xef\xbb\xbf"))
    return data[:at] + junk + data[at:]


def _again(data: bytes, rng: random.Random) -> bytes:
    """The first field of an object a second time, with another value before or behind it."""
    start = data.find(b"{")
    colon, end = data.find(b":", start), data.find(b",", start)
    if start < 0 or colon < 0 or end < 0:
        return data + b"{}"
    name = data[start + 1 : colon]
    return data[: start + 1] + name + b": " + rng.choice((b"0", b'"x"', b"null", b"[]")) + b"," + data[start + 1 :]


def _nested(data: bytes, rng: random.Random) -> bytes:
    bracket = rng.choice((b"[", b'{"a":', b"(not ", b"[[{"))
    return bracket * (_DEEP // len(bracket))


def _deep_value(data: bytes, rng: random.Random) -> bytes:
    at = data.find(b": ") + 2
    depth = rng.choice((70, 200, 2_000, _DEEP))
    return data[:at] + b"[" * depth + b"]" * depth + b"," + data[at:]


def _large_number(data: bytes, rng: random.Random) -> bytes:
    at = next((i for i, c in enumerate(data) if 48 <= c <= 57), 0)
    return data[:at] + b"9" * rng.choice((20, 400, 5_000, 1_000_000)) + data[at:]


#: What may be done to the bytes of a JSON text.
HOSTILE: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    _flip,
    _flip,
    _flip,
    _cut,
    _doubled,
    _inserted,
    _inserted,
    _again,
    _again,
    _nested,
    _deep_value,
    _large_number,
    lambda data, rng: b"",
    lambda data, rng: rng.randbytes(rng.randrange(1, 2000)),
    lambda data, rng: b"\xef\xbb\xbf" + data,
    lambda data, rng: data.replace(b"\n", b"\r\n"),
    lambda data, rng: data.decode("utf-8", "replace").encode("utf-16"),
)


def hostile(data: bytes, rng: random.Random) -> bytes:
    """Bytes after one hostile change."""
    return rng.choice(HOSTILE)(data, rng)


def spoiled(path: Path, rng: random.Random) -> str:
    """Change a file as a whole, or what lies beside it; says how."""
    match rng.choice(
        ("bytes", "bytes", "bytes", "bytes", "gone", "link", "directory", "beside", "empty beside", "swap")
    ):
        case "gone":
            path.unlink()
            return "gone"
        case "link":
            target = path.with_name(path.name + ".real")
            path.rename(target)
            path.symlink_to(target.name)
            return "a link"
        case "directory":
            path.unlink()
            path.mkdir()
            return "a directory"
        case "beside":
            path.with_name(rng.choice(("x", ".hidden", "run.json", "proof.jsonl", "extra.cu"))).write_bytes(b"{}")
            return "a file beside it"
        case "empty beside":
            path.with_name("empty").mkdir(exist_ok=True)
            return "an empty directory beside it"
        case "swap":
            others = [p for p in path.parent.iterdir() if p.is_file() and p != path]
            if others:
                other = rng.choice(others)
                mine, theirs = path.read_bytes(), other.read_bytes()
                path.write_bytes(theirs)
                other.write_bytes(mine)
                return f"swapped with {other.name}"
    changed = hostile(path.read_bytes(), rng)
    path.write_bytes(changed)
    return "its bytes"


__all__ = ["HOSTILE", "STRINGS", "hostile", "spoiled"]

"""Edits of a run's files by somebody who signs everything again, and what check may believe of them.

An edit is wrong if it is accepted and changes more than what docs/run-directory.md lists as said by the author.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mirage_formal import records

#: What check does not establish: file, then the place of the field; * is any item or key. docs/run-directory.md has it.
SAID: Final = tuple(
    f"{file} {place}"
    for file, fields in {
        "run.json": "source host/* versions/* space/* identity/engine identity/oracle identity/prune identity/target "
        "identity/target_digest identity/space key",
        "search.jsonl": "*/key */label */attempts */milliseconds */error */times */pruned_at",
        "summary.json": "key wall_s recalled workers status most_us candidates/*/outside candidates/*/rounding "
        "rejected/*/reason rejected/*/kind fingerprint_tests",
        "proof.jsonl": "*/z3/milliseconds */cvc5/milliseconds */digits/*/z3/milliseconds */digits/*/cvc5/milliseconds",
        "verification.json": "sought/* fingerprint/attempts fingerprint/confirmation special/*",
        "kernels/obligations.jsonl": "*/solvers/* */milliseconds",
        "kernels/plan.json": "kernels/*/compiled/*/compiler kernels/*/compiled/*/shared_bytes",
        "kernels/numerics.json": "device scales/*/seed scales/*/overflows/* scales/*/outputs/*",
        "kernels/measure.json": "device us low high spread replays calls sets triton",
    }.items()
    for place in fields.split()
)
#: What an edited file may raise when it is read as it was.
_UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError)
#: Digests and seals follow from the rest.
_FOLLOWS: Final = re.compile(r"(manifest|files)/.*|seal|.*/sha256|kernels")
_TAIL: Final = re.compile(rb'"seal": "[^"]*"\n\}\n\Z')


def kind(root: Path, path: Path) -> str:
    """Name of a file as in ``SAID``: those of kernels under ``kernels/``."""
    inside = path.relative_to(root).parts
    return f"kernels/{path.name}" if inside[0] == "kernels" else path.name


def value_of(path: Path) -> Any:
    """The JSON in a file, line by line for a log."""
    data = path.read_bytes()
    return [json.loads(text) for text in data.split(b"\n") if text] if path.suffix == ".jsonl" else json.loads(data)


def write(path: Path, value: Any) -> None:
    """Write a file as its author would."""
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in value))
    else:
        path.write_text(json.dumps(value, indent=1) + "\n")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, objects and lists too."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(item, (*at, key))


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """Places in which two values differ, ``*`` for a number of an item."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if key not in old or key not in new:
                default = old.get(key, new.get(key)) in ("", 0, None, [], {}, "held") and (at, key) != ("", "seal")
                if not default:
                    yield f"{at}{key}"
            else:
                yield from differences(old[key], new[key], f"{at}{key}/")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for one, other in zip(old, new, strict=True):
            yield from differences(one, other, f"{at}*/")
    elif (type(old) is not type(new) and {type(old), type(new)} != {int, float}) or old != new:
        yield at.rstrip("/")


def is_said(name: str, place: str) -> bool:
    """Whether the author is believed about a place in a file."""
    if _FOLLOWS.fullmatch(place):
        return True
    for said in SAID:
        file, _, field = said.partition(" ")
        pattern = re.escape(field).replace(r"\*", "[^/]+")
        if file == name and re.fullmatch(f"{pattern}(/.*)?", place):
            return True
    return False


def reseal(root: Path) -> None:
    """Recompute every digest, key and seal of a run, whatever its files hold, as far as they can be read."""
    with suppress(*_UNREADABLE):
        run = value_of(root / "run.json")
        run["identity"]["space"] = records.sha256(json.dumps(run["space"], separators=(",", ":")).encode())
        run["key"] = records.sha256(json.dumps(run["identity"], separators=(",", ":")).encode())
        write(root / "run.json", run)
        for path in (root / "search.jsonl", root / "summary.json"):
            with suppress(*_UNREADABLE):
                found = value_of(path)
                for record in found if isinstance(found, list) else [found]:
                    record["key"] = run["key"]
                write(path, found)
    for place in sorted((root / "candidates").iterdir()):
        with suppress(*_UNREADABLE):
            entries = value_of(place / "proof.jsonl")
            digits = [digit for record in entries for digit in record.get("digits", ()) if record["record"] != "end"]
            for record in (*entries, *digits):
                if (place / str(record.get("file"))).is_file():
                    record["sha256"] = records.sha256((place / record["file"]).read_bytes())
            write(place / "proof.jsonl", entries)
        _list(place, "manifest.json", "files", ())
    for place in sorted((root / "kernels").iterdir()) if (root / "kernels").is_dir() else ():
        _list(place, "manifest.json", "files", records.DEVICE_FILES)
        for name in records.DEVICE_FILES:
            with suppress(*_UNREADABLE):
                record = value_of(place / name)
                record["kernels"] = records.sha256((place / "manifest.json").read_bytes())
                write(place / name, record)
            seal_file(place / name)
    _list(root, "summary.json", "manifest", ("kernels/",))


def _list(place: Path, name: str, key: str, apart: tuple[str, ...]) -> None:
    names = [path.relative_to(place).as_posix() for path in sorted(place.rglob("*")) if path.is_file()]
    with suppress(*_UNREADABLE):
        record = value_of(place / name)
        record[key] = {
            n: records.sha256((place / n).read_bytes())
            for n in names
            if n != name and not n.startswith(tuple(apart) or "/")
        }
        write(place / name, record)
    seal_file(place / name)


def seal_file(path: Path) -> None:
    """Recompute the seal at the end of a file, if it has one."""
    if path.is_file():
        blank = _TAIL.sub(f'"seal": "{"0" * 64}"\n}}\n'.encode(), path.read_bytes())
        path.write_bytes(_TAIL.sub(f'"seal": "{records.sha256(blank)}"\n}}\n'.encode(), blank))


#: Values that are put in place of others.
_VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        10**40,
        -0.5,
        1e300,
        "",
        "x",
        "0" * 64,
        "../x",
        "a\nCode generation IS PROVED",
    ),
    *("\x1b[2J", "\u202e", [], {}, [0], {"a": 1}, "9.9.9"),
)


def edit_structure(value: Any, rng: random.Random) -> Any:
    """A JSON value with one to three places changed."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.choice(list(places(value)) or [()])
        if not at:
            return rng.choice(_VALUES)
        inside = value
        for key in at[:-1]:
            inside = inside[key]
        key, item = at[-1], inside[at[-1]]
        match rng.randrange(8):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, list):
                inside.insert(key, item)
            case 1:
                inside[rng.choice(["x", "schema_version", "seal", f"{key} "])] = item
            case 2 | 3 if isinstance(item, int | float) and not isinstance(item, bool):
                inside[key] = item + rng.choice((-1, 1, 1000, 0.5, -(10**6)))
            case 2 | 3 if isinstance(item, str) and item:
                i = rng.randrange(len(item))
                inside[key] = item[:i] + rng.choice("0af9xX ./\n\x1b\u202e") + item[i + 1 :]
            case 4 if isinstance(inside, list) and len(inside) > 1:
                j = rng.randrange(len(inside))
                inside[key], inside[j] = inside[j], inside[key]
            case 5 if isinstance(item, int | float) and not isinstance(item, bool):
                inside[key] = -item
            case _:
                inside[key] = rng.choice(_VALUES)
    return value


_BYTES: Final = (
    *(b"", b"\x00", b"\xff", b"\n", b"\r\n", b'"', b"\\", b"{", b"[", b"]", b"}", b",", b":", b"-", b"1e999", b"NaN"),
    *(b"null", b"\\ud800", b"\xef\xbb\xbf", b"[" * 5000, b"9" * 5000, b"\x1b[2J", "\u202e".encode(), b'"a":1,'),
)


def edit_bytes(data: bytes, rng: random.Random) -> bytes:
    """A text with a few bytes changed, cut, doubled or put in."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        i = rng.randrange(len(data) + 1)
        j = min(len(data), i + rng.choice((0, 1, 1, 2, 8, 64)))
        match rng.randrange(5):
            case 0:
                data = data[:i] + rng.choice(_BYTES) + data[j:]
            case 1:
                data = data[:i] + bytes([rng.randrange(256)]) + data[i + 1 :]
            case 2:
                data = data[:j] + data[i:]
            case 3:
                data = data[:i] + data[j:]
            case _:
                k = rng.randrange(len(data) + 1)
                data = data[:k] + data[i:j] + data[k:]
    return data

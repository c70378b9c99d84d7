"""Edits of a run's files: those that leave the digests, those that sign everything again, and hostile texts.

An edit is wrong if it is accepted and changes more than what docs/run-directory.md lists as said by the author. Hostile
texts want more than to be read: line breaks, terminal escapes, hidden and turned characters, markup.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from mirage_formal import records
from mirage_formal.check.time_limit import LimitedCheck
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.records import KernelManifestRecord, ManifestRecord, SummaryRecord
from mirage_formal.support.errors import MirageError

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


#: Fields that say something about the making of evidence, not about what it shows.
INFORMATION = {"milliseconds", "version", "attempts", "special"}
RUN_INFORMATION = {"source", "host", "versions", "wall_s", "workers", "label", "attempts", "milliseconds", "error"}
RUN_INFORMATION |= {"outside", "rounding", "recalled", "times", "pruned_at"}


def copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def sign_candidate(root: Path) -> None:
    """Recompute the manifest of a candidate, as whoever changed its files would."""
    path = root / "manifest.json"
    old = records.decode(path.read_bytes(), ManifestRecord, "")
    names = [p.relative_to(root).as_posix() for p in files(root) if p != path]
    listed = {name: records.sha256((root / name).read_bytes()) for name in names}
    path.write_bytes(records.seal_record(ManifestRecord(candidate=old.candidate, files=listed)))


def sign_proof(root: Path) -> None:
    """Recompute the digests of obligations and of the equivalence proof in the proof log."""
    entries = read_lines(root / "proof.jsonl")
    digits = [digit for record in entries if record.get("record") == "equivalence" for digit in record["digits"]]
    for record in (*entries, *digits):
        if "sha256" in record and (root / record["file"]).is_file():
            record["sha256"] = records.sha256((root / record["file"]).read_bytes())
    write_lines(root / "proof.jsonl", entries)


def demote(root: Path) -> None:
    """Make a proved candidate one that is only probable, as a run with that policy would have written it."""
    (root / "proof" / "equivalence.json").unlink()
    for path in (root / "proof").glob("digits-*"):
        path.unlink()
    entries = [record for record in read_lines(root / "proof.jsonl") if record["record"] != "equivalence"]
    entries[-1].update(equivalences=0, digits=0)
    write_lines(root / "proof.jsonl", entries)

    def verdict(record: dict[str, Any]) -> None:
        log = record["fingerprint"]
        record["verdict"] = {
            "kind": "probable",
            "rounds": log["rounds"],
            "bound_log2": log["bound_log2"],
            "reason": log["bound_reason"],
        }

    edit(root / "verification.json", verdict)
    sign_candidate(root)


def sign_graph(root: Path) -> str:
    """Recompute the digest of the graph everywhere in a candidate's directory."""
    code = digest(from_json((root / "mugraph.json").read_bytes()))
    edit(root / "verification.json", lambda record: record.update(candidate=code))
    entries = read_lines(root / "proof.jsonl")
    entries[-1]["graph"] = code
    write_lines(root / "proof.jsonl", entries)
    path = root / "manifest.json"
    old = records.decode(path.read_bytes(), ManifestRecord, "")
    path.write_bytes(records.seal_record(ManifestRecord(candidate=code, files=old.files)))
    sign_candidate(root)
    return code


def sign_run(root: Path, change: Callable[[dict[str, Any]], None] = lambda record: None) -> None:
    """Change the summary and recompute its manifest and seal."""
    path = root / "summary.json"
    record = json.loads(path.read_bytes())
    change(record)
    names = [p.relative_to(root).as_posix() for p in files(root) if p != path]
    record["manifest"] = {name: records.sha256((root / name).read_bytes()) for name in names}
    record["seal"] = "0" * 64
    path.write_bytes(records.seal_record(records.decode(json.dumps(record).encode(), SummaryRecord, "")))


def sign_kernels(root: Path) -> None:
    """Recompute the manifest of a directory of kernels, and bind what a device said to the new one."""
    path = root / "manifest.json"
    old = records.decode(path.read_bytes(), KernelManifestRecord, "")
    names = [p.name for p in files(root) if p.name not in (path.name, *records.DEVICE_FILES)]
    listed = {name: records.sha256((root / name).read_bytes()) for name in names}
    path.write_bytes(records.seal_record(msgspec.structs.replace(old, files=listed)))
    bound = records.sha256(path.read_bytes())
    for name in records.DEVICE_FILES:
        if (root / name).is_file():
            edit(root / name, lambda record: record.update(kernels=bound))
            seal_file(root / name)


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    record = json.loads(path.read_bytes())
    change(record)
    path.write_text(json.dumps(record, indent=1) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_bytes().splitlines()]


def write_lines(path: Path, entries: list[dict[str, Any]]) -> None:
    path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in entries))


def flip(path: Path, rng: random.Random) -> None:
    """Change one byte of a file to any other value."""
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= rng.randrange(1, 256)
    path.write_bytes(bytes(data))


def meaning(path: Path, ignored: set[str]) -> object:
    """What a file says, apart from white space and fields of information; of a graph, its digest."""
    data = path.read_bytes()
    if path.name == "mugraph.json":
        with suppress(MirageError):  # a map of a grid axis of extent 1 means nothing, for example
            return digest(from_json(data))
    try:
        if path.suffix == ".json":
            return _strip(json.loads(data), ignored)
        if path.suffix == ".jsonl":
            return [_strip(json.loads(text), ignored) for text in data.split(b"\n") if text]
    except (ValueError, RecursionError):
        pass
    return data


def _strip(value: Any, ignored: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: _strip(v, ignored) for k, v in value.items() if not _informs(k, v, ignored)}
    if isinstance(value, list):
        return [_strip(item, ignored) for item in value]
    return value


def _informs(key: Any, item: Any, ignored: set[str]) -> bool:
    # "version" is a solver's in one place and that of the schema, a number, in another.
    return key in ignored and not (key == "version" and isinstance(item, int))


def leaves(value: Any, ignored: set[str]) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every field that can be edited."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if _informs(key, item, ignored):
            continue
        yield value, key
        yield from leaves(item, ignored)


def other(value: Any, rng: random.Random) -> Any:
    """A value of the same type that is not the same value."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + rng.choice([-1, 1, 1000])
        case None:
            return rng.choice([0, "x"])
        case str():
            if not value:
                return "x"
            place = rng.randrange(len(value))
            letters = [c for c in "0123456789abcdefXYZ_./" if c != value[place]]
            return value[:place] + rng.choice(letters) + value[place + 1 :]
        case list():
            return value[:-1] if value else [0]
        case dict():
            # Leaving out a field whose value is its default says the same.
            needed = [k for k in sorted(value) if value[k] not in ("", None, 0, 1, []) and k not in RUN_INFORMATION]
            gone = rng.choice(needed) if needed else None
            return {k: v for k, v in value.items() if k != gone} if gone else {**value, "x": 1}
    raise AssertionError(value)


class InProcess:
    """Stands for the process in which a check runs within a time limit: runs it here, where tests have patched it.

    Python's own rules for warnings hold in that process, not those of the tests, under which a warning would be an
    error and an edit that check accepts with one would seem refused.
    """

    def __init__(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> None:
        self._run: Callable[[], Any] = lambda: function(*arguments)

    def result(self) -> Any:
        """What the check returns, or raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._run()


class MostlyInProcess:
    """Makes the first check in a process of its own, as the command does, then one of so many; the others run here.

    A process for every check loads Python's packages and both solvers again, which takes longer than to look at a small
    run. Here, questions that an edit has left alone keep the answers that the solvers have given to the very same text
    (``check.solvers.query_solvers``).
    """

    EVERY: Final = 25

    def __init__(self) -> None:
        self._made = 0

    def __call__(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> LimitedCheck[Any] | InProcess:
        self._made += 1
        return (LimitedCheck if self._made % self.EVERY == 1 else InProcess)(limit_s, function, *arguments)


#: What an attacker would like a reader to see at the beginning of a line.
CLAIM = "Code generation IS PROVED"
PIECES = (
    *("\n", "\r", "\r\n", "\t", "\x00", "\x07", "\x08", "\x0b", "\x0c", "\x1b[2K", "\x1b]8;;http://x\x07", "\x7f"),
    *("\x85", "\x9b1m", "\u2028", "\u2029", "\u202e", "\u2066", "\u200b", "\u200f", "\ufeff", "\u00ad", "\u0301"),
    *("\u3164", "\u2800", "\xa0", "\U000e0041", "\U000f0000", "é", "µ", "文"),
    *("[bold]", "[/]", "[link=http://x]", "[red]x[/red]", "\\", '"', "'", "  ", "| ", "x" * 3000, CLAIM),
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(), max_size=12).map("".join)


def obeyed(text: str, *, several: bool = False) -> str:
    """The first character of a printed text that a terminal obeys, hides or draws over another; "" if there is none."""
    for char in text:
        if several and char == "\n":
            continue
        if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"}:
            return char
        if unicodedata.category(char) == "Zs" and char != " ":
            return char
    return ""

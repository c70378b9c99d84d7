"""What an attacker does to evidence: edits that leave the digests, and edits that sign everything again."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from mirage_formal import records
from mirage_formal.check.time_limit import Within
from mirage_formal.errors import MirageError
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.records import KernelManifestRecord, ManifestRecord, SummaryRecord
from tests.kit.runs.edited_runs import seal_file

#: Fields that say something about the making of evidence, not about what it shows.
INFORMATION = {"milliseconds", "version", "galois", "attempts", "special"}
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
    path.write_bytes(records.sealed(ManifestRecord(candidate=old.candidate, files=listed)))


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
    path.write_bytes(records.sealed(ManifestRecord(candidate=code, files=old.files)))
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
    path.write_bytes(records.sealed(records.decode(json.dumps(record).encode(), SummaryRecord, "")))


def sign_kernels(root: Path) -> None:
    """Recompute the manifest of a directory of kernels, and bind what a device said to the new one."""
    path = root / "manifest.json"
    old = records.decode(path.read_bytes(), KernelManifestRecord, "")
    names = [p.name for p in files(root) if p.name not in (path.name, *records.DEVICE_FILES)]
    listed = {name: records.sha256((root / name).read_bytes()) for name in names}
    path.write_bytes(records.sealed(msgspec.structs.replace(old, files=listed)))
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
    (``check.solvers.answers``).
    """

    EVERY: Final = 25

    def __init__(self) -> None:
        self._made = 0

    def __call__(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Within[Any] | InProcess:
        self._made += 1
        return (Within if self._made % self.EVERY == 1 else InProcess)(limit_s, function, *arguments)

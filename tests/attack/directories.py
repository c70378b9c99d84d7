"""Run directories that somebody forged and signed again: every file and every field in turn.

What ``check`` accepts must say what it said before, but for fields that docs/run-directory.md calls the author's word.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_value
from mirage_formal.graph.graph_schema import SCHEMA
from mirage_formal.revalidate import check_command
from mirage_formal.support.errors import MirageError
from tests.attack import seals
from tests.attack.texts import STRINGS, spoiled
from tests.attack.trial import Breach
from tests.kit.runs.small_runs import make
from tests.kit.runs.tampering import InProcess

#: Fields that docs/run-directory.md calls the author's word, by file: times, names, versions, what was measured on a
#: device that is not here, how a search was asked for. A check may pass over a change of these, and of nothing else.
_SAID: Final = {
    "run.json": r"source|host(\.\w+)?|versions(\.[\w-]+)?|space(\..*)?|key"
    r"|identity\.(engine|oracle|prune|target\w*|space)",
    "search.jsonl": r"\[\]\.(label|attempts|milliseconds|times(\..*)?|error|key|(stats|pruned)\.\w+"
    r"|pruned_at(\.\w+)*|fingerprint_tests|candidates\.\[\]\.estimated_us)",
    "summary.json": r"wall_s|workers|recalled|status|fingerprint_tests|key|(stats|pruned)\.\w+"
    r"|rejected\.\[\]\.(kind|reason)",
    "candidates/ID/proof.jsonl": r".*\.milliseconds",
    "candidates/ID/proof/equivalence.json": r"bases(\.\[\])?",  # a base states nothing
    "candidates/ID/verification.json": r"fingerprint\.(.*attempts|confirmation(\..*)?)|special(\..*)?",
    "kernels/ID/obligations.jsonl": r"\[\]\.(solvers(\..*)?|milliseconds)",
    "kernels/ID/plan.json": r"kernels\.\[\]\.compiled\.\w+\.(compiler|shared_bytes|spill_bytes)",
    "kernels/ID/launch.json": r"launches\.\[\]\.cubins\.\w+\.spill_bytes",
    "kernels/ID/numerics.json": r"device|scales\.\[\]\.(seed|overflows|outputs\.\[\]\.\w+)",
    "kernels/ID/measure.json": r"device|us|low|high|spread|replays|calls|sets|triton(\..*)?",
}
_FIELDS: Final = "|".join(f"{re.escape(file)}:({fields})" for file, fields in _SAID.items())
AUTHOR: Final = re.compile(rf"{_FIELDS}|kernels/ID/measure\.json")  # a device may have measured nothing
#: What a record has where a field is left out.
_DEFAULTS: Final[tuple[Any, ...]] = ("", None, 0, [], {}, "held")


@cache
def runs() -> tuple[Path, ...]:
    """Runs of small programs, with kernels and what a right device would say, made once for this process."""
    root = Path(tempfile.mkdtemp(prefix="attack-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for name in ("attention", "rms_norm", "polynomial"):
        make(root / name, name, kernels=int(name == "attention"))
    return tuple(sorted(path for path in root.iterdir() if path.is_dir()))


@cache
def plain_report(root: Path) -> str:
    """What check says of a run as it was made."""
    code, out, errors = checked(root)
    assert code == 0, errors
    return timeless(out, root)


def checked(root: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a check."""
    out, errors = io.StringIO(), io.StringIO()
    # A process for each check would cost more than the check; what it runs is the same.
    with redirect_stdout(out), redirect_stderr(errors), patch.object(check_command, "LimitedCheck", InProcess):
        code = check_command.main([str(root), "--jobs", "1", "--no-recompile"])
    return code, out.getvalue(), errors.getvalue()


def timeless(text: str, root: Path) -> str:
    """A report without the seconds, which end its rows, and without its place."""
    return re.sub(r" +", " ", re.sub(r" +\d+\.\d$", "", text, flags=re.MULTILINE)).replace(str(root), "RUN")


# --- targets ---------------------------------------------------------------------------------------------------------


@cache
def targets() -> tuple[tuple[str, tuple[tuple[Path, tuple[Any, ...]], ...]], ...]:
    """Every field of every file of the runs by its pattern, and where such fields are; files that are no JSON too."""
    found: dict[str, list[tuple[Path, tuple[Any, ...]]]] = {}
    for root in runs():
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            name = pattern_of(path.relative_to(root).as_posix())
            found.setdefault(name, []).append((path, ()))
            if path.suffix in (".json", ".jsonl"):
                for place in places(seals.read(path)):
                    found.setdefault(f"{name}:{_shape(place)}", []).append((path, place))
    return tuple((name, tuple(where)) for name, where in sorted(found.items()))


def pattern_of(name: str) -> str:
    """A file's name with numbers and digests left out."""
    return re.sub(r"\d+", "N", re.sub(r"\d{3}-[0-9a-f]{12}", "ID", name))


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*above, key)
        yield from places(item, (*above, key))


def _shape(place: tuple[Any, ...]) -> str:
    keys = ("[]" if isinstance(key, int) else re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{12,}", "ID", key)) for key in place)
    return ".".join(keys)


# --- trials ----------------------------------------------------------------------------------------------------------


def forged(rng: random.Random, number: int) -> str:
    """One field or one file of a run changed, everything signed again, or now and then not."""
    every = targets()
    name, where = every[number % len(every)]
    path, place = rng.choice(where)
    root = next(root for root in runs() if path.is_relative_to(root))
    copy = _copied(root)
    changed = copy / path.relative_to(root)
    before = changed.read_bytes()
    what = _changed(changed, place, rng)
    if changed.is_file() and not changed.is_symlink() and changed.read_bytes() == before and not _beside(what):
        return "nothing changed"
    if rng.random() < 0.95:
        seals.sign(copy)
    return judged(copy, root, name, what)


def _beside(what: str) -> bool:
    return "beside" in what


def judged(copy: Path, root: Path, name: str, what: str) -> str:
    """What check says of a forged copy of a run.

    Raises:
        Breach: It accepts what may not be accepted, or shows the user something that it may not show.
    """
    code, out, errors = checked(copy)
    shown = out + errors
    if "Traceback" in shown or any(ord(c) < 32 and c != "\n" for c in shown) or len(errors) > 4000:
        raise Breach(f"{name}: {what}: what is shown: {shown[:300]!r}")
    if code in (1, 2):
        return "refused"
    if code:
        raise Breach(f"{name}: {what}: exit code {code}")
    if re.match(r".*/equivalence\.json(:|$)", name):
        return "accepted, a proof of the same that the kernel has replayed"
    if AUTHOR.fullmatch(name) or name.endswith(".cubin"):  # machine code is compiled again by another test
        return "accepted, the author's word"
    if _meaning(copy) == _meaning(root):
        return "accepted, written in another way"
    if timeless(out, copy) == plain_report(root):
        raise Breach(f"{name}: {what}: accepted, and the report is as before")
    raise Breach(f"{name}: {what}: accepted with another report")


def _meaning(root: Path) -> object:
    """What the files of a run say, apart from white space, seals and digests of files."""
    found = {}
    for path in sorted(p for p in root.rglob("*") if not p.is_dir()):
        name = path.relative_to(root).as_posix()
        try:
            found[name] = _bare(seals.read(path)) if path.suffix in (".json", ".jsonl") else path.read_bytes()
        except (ValueError, RecursionError, OSError, MirageError):
            found[name] = None
    return found


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("schema") == SCHEMA:  # a map of an axis of extent 1 means nothing, say
            return digest(from_value(value))
        said = {k: _bare(v) for k, v in value.items() if k not in ("seal", "sha256", "files", "manifest", "kernels")}
        return {k: v for k, v in said.items() if v not in _DEFAULTS}
    return [_bare(x) for x in value] if isinstance(value, list) else value


def _copied(root: Path) -> Path:
    place = root.parent.with_name(root.parent.name + f"-copy-{os.getpid()}")
    shutil.rmtree(place, ignore_errors=True)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(shutil.copytree(root, place / root.name))


def _changed(path: Path, place: tuple[Any, ...], rng: random.Random) -> str:
    """Change a field, or a whole file; says how."""
    if not place:
        return spoiled(path, rng)
    record = seals.read(path)
    holder = record
    for key in place[:-1]:
        holder = holder[key]
    how, value = _other(holder[place[-1]], rng)
    if how == "gone":
        del holder[place[-1]]
    elif how == "twice" and isinstance(holder, list):
        holder.insert(place[-1], json.loads(json.dumps(holder[place[-1]])))
    else:
        holder[place[-1]] = value
    seals.write(path, record)
    return f"{_shape(place)} {how} {str(value)[:60]!r}"


def _other(value: Any, rng: random.Random) -> tuple[str, Any]:
    how = rng.choice(("near", "near", "near", "near", "kind", "edge", "gone", "twice"))
    match value:
        case bool():
            near: Any = not value
        case int():
            near = value + rng.choice((1, -1, 1000, -value, -2 * value - 1))
        case float():
            near = rng.choice((value + 1, -value - 1, 0.0, value * 1000, float("nan"), float("inf")))
        case str() if value and set(value) <= set("0123456789abcdef") and len(value) == 64:
            near = rng.choice((value[1:] + value[0], value.upper(), "0" * 64, value[:-1]))
        case str():
            near = rng.choice((value + "x", value[:-1], value.upper(), "../" + value, rng.choice(STRINGS)))
        case list():
            near = rng.choice((value[:-1], value[::-1], value * 2, [*value, 0], []))
        case dict():
            near = rng.choice(({**value, "x": 1}, dict(list(value.items())[:-1]), {}))
        case _:
            near = rng.choice((0, "x", {}, []))
    if how == "kind":
        return how, rng.choice((None, True, -1, 1.5, "x", [], {}, [[[]]]))
    if how == "edge":
        return how, rng.choice((2**63, -(2**63) - 1, 10**400, 1e308, float("nan"), rng.choice(STRINGS), [0] * 3000))
    return how, near


__all__ = ["forged", "judged", "runs", "targets"]

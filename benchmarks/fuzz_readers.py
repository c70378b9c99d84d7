"""Edits of a run's files, signed again or not: check refuses them, or believes only what its author may say.

Each trial changes one file of a small run with kernels: its bytes, or the JSON in it. Counted are crashes (an
exception, a traceback), hangs, control characters in what is printed, and wrong accepts: an edit that check accepts
although more than the fields of tests/kit/runs/tampering.py differ.

    python -m benchmarks.fuzz_readers --trials 20000

Options:
  --trials N   [default: 20000]
  --seed N     [default: 0]
  --seconds S  stop after this time [default: inf]
"""

from __future__ import annotations

import io
import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import options
from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.revalidate import check_command
from tests.kit.runs.small_runs import make
from tests.kit.runs.tampering import (
    CLAIM,
    differences,
    edit_bytes,
    edit_structure,
    is_said,
    kind,
    obeyed,
    reseal,
    value_of,
    write,
)

HANG_S = 60


class Hang(BaseException):
    """A trial took too long."""


class Here:
    """Stands for the process of its own that check runs in: thousands of trials share this one."""

    def __init__(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> None:
        self.result = partial(function, *arguments)


def _alarm(number: int, frame: Any) -> None:
    raise Hang


def judge(root: Path) -> tuple[int, str, str]:
    """Exit code of check, what it printed, and a traceback if it crashed."""
    out, err = io.StringIO(), io.StringIO()
    code, crash = -1, ""
    signal.alarm(HANG_S)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = check([str(root), "--jobs", "1"])
    except Hang:
        crash = "hang"
    except BaseException:
        crash = traceback.format_exc()
    finally:
        signal.alarm(0)
    return code, out.getvalue() + err.getvalue(), crash


def wrong(good: Path, root: Path, path: Path) -> list[str]:
    """What an accepted edit changed that its author may not say."""
    original = good / path.relative_to(root)
    if path.read_bytes() == original.read_bytes():
        return []
    try:
        if path.name in ("mugraph.json", "stabilized.json"):
            same = digest(from_json(path.read_bytes())) == digest(from_json(original.read_bytes()))
            return [] if same else ["another graph"]
        before, after = value_of(original), value_of(path)
        if path.name == "search.jsonl":  # units are appended as they end, in any order
            before, after = (sorted(units, key=repr) for units in (before, after))
        found = list(differences(before, after))
        if path.name == "equivalence.json":  # what the kernel replays is a proof, if not the same one
            inside = r"parts/[^/]+/form/proof/.*" if root / "kernels" in path.parents else ".*"
            found = [place for place in found if not re.fullmatch(inside, place)]
    except (ValueError, RecursionError):
        return ["other bytes"]
    name = kind(root, path)
    return [place for place in found if not is_said(name, place)]


def main() -> int:
    """The command line."""
    given = options(__doc__)
    signal.signal(signal.SIGALRM, _alarm)
    setattr(check_command, "LimitedCheck", Here)  # noqa: B010 (the module only imports the name)
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        good, root = Path(place) / "good", Path(place) / "run"
        make(good, keep=1)
        paths = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
        texts = [path for path in paths if path.suffix in (".json", ".jsonl")]
        code, text, crash = judge(good)
        if code:
            print(f"the run as it was written is refused: {text}{crash}")
            return 2
        for trial in range(given.trials):
            if time.monotonic() - begin > given.seconds:
                break
            rng = random.Random(given.seed * 1_000_003 + trial)
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(good, root)
            path = root / rng.choice(paths if rng.random() < 0.2 else texts)
            how = rng.choice(("bytes", "structure")) if path.suffix in (".json", ".jsonl") else "bytes"
            counts["trials"] += 1
            if how == "bytes":
                path.write_bytes(edit_bytes(path.read_bytes(), rng))
            else:
                write(path, edit_structure(value_of(path), rng))
            if sealed := rng.random() < 0.8:
                reseal(root)
            started = time.process_time()
            code, text, crash = judge(root)
            slowest = max(slowest, time.process_time() - started)
            counts[f"{how}, {'sealed' if sealed else 'not sealed'}: exit {code}"] += 1
            said = [line for line in text.splitlines() if line.startswith(CLAIM)]
            bad = crash or ("obeyed" if any(map(obeyed, text.split("\n"))) or said or "Traceback" in text else "")
            if code == 0 and not bad:
                bad = ", ".join(wrong(good, root, path))
            if bad or code not in (0, 1, 2):
                counts["BAD"] += 1
                print(f"trial {trial}: {path.relative_to(root)} ({how}): code {code}: {bad}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    report = {**dict(sorted(counts.items())), "slowest_cpu_s": round(slowest, 2), "peak_mib": peak}
    print(json.dumps({**report, "seconds": round(time.monotonic() - begin)}, indent=1))
    return 1 if counts["BAD"] else 0


if __name__ == "__main__":
    sys.exit(main())

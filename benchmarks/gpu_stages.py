"""From programs with kernels to rows of a table: what gpu_bench.py and corpus_gpu.py have in common.

1. Every candidate is timed once, if a program has several. Where replays of some are exact, only these count.
2. Numerics, fastest first, until one is within tolerance at all scales; programs side by side.
3. torch.compile's peers, programs side by side: its cache on disk then has them.
4. Rows, one after another: the chosen candidate is measured anew beside its peers (benchmarks/gpu_cases.py); the time
   by which it was chosen is not the one that counts.

Options:
  --out DIR          where results go [default: $OUT]
  --jobs N           processes that compile and compare [default: 8]
  --rounds N         measurements of each cell; the median counts [default: 3]
  --limit S          seconds in all; a later call continues; 0: only the tables of what is known [default: 1500]
  --compile-limit S  seconds for all of torch.compile [default: 600]
  --peer-limit S     seconds for one peer or numerics [default: 240]
  --row-limit S      seconds for one row [default: 120]
  --no-read-only     leave out the time to read the inputs
  --retry            do again what failed in an earlier call
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_cases import LOCK
from benchmarks.gpu_jobs import Job, Ledger, Pool, Result, children
from benchmarks.gpu_sanitize import large

#: The options that both commands have, as lines of a docstring.
OPTIONS = (__doc__ or "").partition("\nOptions:\n")[2]
COMPILED = ("compile", "autotune")
READS = ("read_plain", "read_bulk")
#: The largest relative error, norm over norm, of results that count as exact.
ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one program.

    Attributes:
        name: Its name.
        candidates: How many have kernels.
        timed: Microseconds of those that ran, by directory; measured once.
        numerics: Of those that were compared, by directory.
        chosen: Directory of the candidate that is measured; None if none ran.
        missing: Peers that were not measured, and why.
        cells: See gpu_cases.rounds.
        found: What else the measurement says, or its error.
    """

    name: str
    candidates: int = 0
    timed: Mapping[str, float] = field(default_factory=dict)
    numerics: Mapping[str, Result] = field(default_factory=dict)
    chosen: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    found: Result = field(default_factory=dict)

    def us(self, *names: str) -> float | None:
        """The least of some cells' medians; None if none was measured."""
        known = [float(self.cells[name]["us"]) for name in names if "us" in self.cells.get(name, {})]
        return min(known, default=None)

    def over(self, *names: str) -> float | None:
        """The least of some cells' medians over ours; above 1 ours is faster."""
        theirs, ours = self.us(*names), self.us("ours")
        return None if theirs is None or ours is None else theirs / ours

    @property
    def within(self) -> bool:
        """Whether the chosen candidate is within tolerance at all scales."""
        return self.chosen is not None and self.numerics.get(self.chosen, {}).get("answer") == "within"

    @property
    def reason(self) -> str:
        """Why there is no time, or no numerics."""
        if "error" in self.found:
            return str(self.found["error"])
        if self.chosen is None:
            errors = [str(result["error"]) for result in self.numerics.values() if "error" in result]
            return errors[0] if errors else "no candidate ran" if self.candidates else "no kernels"
        if "us" not in self.cells.get("ours", {}):
            return str(self.cells.get("ours", {}).get("error", "not measured"))
        scales = self.numerics[self.chosen]["scales"]
        return "; ".join(f"scale {s['scale']:g} {s['answer']}: {s['reason']}" for s in scales if s["reason"])


@dataclass(frozen=True, slots=True)
class Stages:
    """How programs are measured.

    Attributes:
        pool: Does the jobs.
        peers_of: The peers of a program, by name.
        given: The command's options.
        cache: Names the compiler's cache, so that a job whose results are gone is done again.
        more: What else stands in the job of a program's row, by its name; see gpu_cases.row.
    """

    pool: Pool
    peers_of: Callable[[str], Sequence[str]]
    given: Namespace
    cache: str
    more: Callable[[str], Mapping[str, Any]] = lambda name: {}

    def run(self, places: Mapping[str, Sequence[Path]]) -> list[Row]:
        """Measure programs, by name their candidates' directories of kernels, best estimate first."""
        until = time.monotonic() + self.given.limit
        one_after_another = {"processes": 1, "limit_s": self.given.row_limit, "until": until}
        several = {name: dirs for name, dirs in places.items() if len(dirs) > 1}
        self.pool.do([{"do": "bandwidth"}], **one_after_another)
        if "error" in (self._known({"do": "bandwidth"}) or {}):
            return self.rows(places)  # no GPU, or a package is missing: nothing else would be different
        self.pool.do([_job("time", name, d) for name, dirs in several.items() for d in dirs], **one_after_another)
        while wave := list(self._numerics(places)):
            # What needs much memory runs alone.
            self.pool.do((j for j in wave if not large(Path(j["kernels"]))), **self._beside(until))
            self.pool.do((j for j in wave if large(Path(j["kernels"]))), **one_after_another)
            if any(self.pool.ledger.get(job) is None for job in wave):
                break  # no time is left
        chosen = [row for row in self.rows(places) if row.chosen]
        full = [row for row in chosen if self._known(self._measurement(row, self.peers_of(row.name))) is None]
        compiling = [
            self._compilation(row, name) for name in COMPILED for row in full if name in self.peers_of(row.name)
        ]
        self.pool.do(compiling, **self._beside(min(until, time.monotonic() + self.given.compile_limit)))
        jobs = [self._measurement(row, [*self._peers(row)]) for row in full]
        self.pool.do(jobs, **one_after_another)
        return self.rows(places)

    def rows(self, places: Mapping[str, Sequence[Path]]) -> list[Row]:
        """What is known of programs."""
        return [self._row(name, dirs) for name, dirs in places.items()]

    def _beside(self, until: float) -> dict[str, Any]:
        return {"processes": self.given.jobs, "limit_s": self.given.peer_limit, "until": until}

    def _known(self, job: Job) -> Result | None:
        return self.pool.ledger.get(job)

    def _times(self, name: str, dirs: Sequence[Path]) -> dict[str, float]:
        """Microseconds of candidates: of those whose replays are exact enough, if some are."""
        if len(dirs) == 1:
            return {str(dirs[0]): 0.0}
        results = {str(d): self._known(_job("time", name, d)) or {} for d in dirs}
        ran = {directory: result for directory, result in results.items() if "us" in result}
        exact = {directory: result for directory, result in ran.items() if result["replays_error"] <= ERROR}
        return {directory: float(result["us"]) for directory, result in (exact or ran).items()}

    def _numerics_of(self, name: str, dirs: Sequence[Path]) -> dict[str, Result]:
        results = {str(d): self._known(_job("numerics", name, d)) for d in dirs}
        return {directory: result for directory, result in results.items() if result is not None}

    def _numerics(self, places: Mapping[str, Sequence[Path]]) -> Iterator[Job]:
        for name, dirs in places.items():
            wanted = following(self._times(name, dirs), self._numerics_of(name, dirs))
            if wanted is not None:
                yield _job("numerics", name, Path(wanted))

    def _row(self, name: str, dirs: Sequence[Path]) -> Row:
        timed, known = self._times(name, dirs), self._numerics_of(name, dirs)
        row = Row(name, len(dirs), timed, known, choose(timed, known))
        if row.chosen is None:
            results = [self._known(_job("time", name, d)) or {} for d in dirs] if not timed else []
            errors = [result for result in results if "error" in result]
            return Row(name, len(dirs), timed, known, found=errors[0] if errors else {})
        found = self._measured(row) or {"error": "no time left"}
        cells = found.get("cells", {})
        missing = {peer: reason for peer, reason in self._uncompiled(row).items() if peer not in cells}
        missing |= {peer: str(note["error"]) for peer, note in found.get("notes", {}).items() if "error" in note}
        return Row(name, len(dirs), timed, known, row.chosen, missing, cells, found)

    def _measured(self, row: Row) -> Result | None:
        """What a measurement said, of those with the most peers; it may be of an earlier call, on another machine."""
        for gone in ((), *((name,) for name in reversed(COMPILED)), COMPILED):
            peers = [peer for peer in self.peers_of(row.name) if peer not in gone]
            if (found := self._known(self._measurement(row, peers))) is not None:
                return found
        return None

    def _compilation(self, row: Row, peer: str) -> Job:
        return {**_job("compile", row.name, Path(row.chosen or "")), "peer": peer, "cache": self.cache}

    def _uncompiled(self, row: Row) -> dict[str, str]:
        found = {}
        for peer in COMPILED:
            if peer in self.peers_of(row.name):
                result = self._known(self._compilation(row, peer))
                if result is None or "error" in result:
                    found[peer] = str((result or {}).get("error", "not compiled"))
        return found

    def _peers(self, row: Row) -> Iterator[str]:
        failed = self._uncompiled(row)
        return (peer for peer in self.peers_of(row.name) if peer not in failed)

    def _measurement(self, row: Row, peers: Sequence[str]) -> Job:
        job = _job("row", row.name, Path(row.chosen or ""))
        job |= {"peers": list(peers), "rounds": self.given.rounds, "read_only": not self.given.no_read_only}
        return {**job, **self.more(row.name)}


def following(timed: Mapping[str, float], known: Mapping[str, Result]) -> str | None:
    """Whose numerics are to be computed next: the fastest unknown, until one is within tolerance at all scales.

    Args:
        timed: Microseconds by candidate.
        known: Numerics by candidate.
    """
    for candidate in sorted(timed, key=lambda one: timed[one]):
        if candidate not in known:
            return candidate
        if known[candidate].get("answer") == "within":
            return None
    return None


def choose(timed: Mapping[str, float], known: Mapping[str, Result]) -> str | None:
    """The candidate that is measured: within tolerance at the most scales, and the fastest of those.

    Args:
        timed: Microseconds by candidate.
        known: Numerics by candidate; without an error they have "scales".
    """
    ran = [candidate for candidate in timed if "scales" in known.get(candidate, {})]

    def rank(candidate: str) -> tuple[int, float]:
        within = sum(scale["answer"] == "within" for scale in known[candidate]["scales"])
        return -within, timed[candidate]

    return min(ran, key=rank, default=None)


def candidates(run: Path, top: int | None = None) -> list[Path]:
    """Directories of a run's kernels: what tuning has timed, the fastest first; then the others, by name.

    Args:
        run: The run.
        top: How many at most; all if left out.
    """
    found = sorted(path.parent for path in (run / "kernels").glob("*/launch.json"))
    return sorted(found, key=_tuned_us)[:top]


def _tuned_us(directory: Path) -> float:
    """What kernels took when they were tuned; infinity if they were not."""
    from mirage_formal.records import MEASURE_FILE, MeasureRecord, open_sealed, read_file

    path = directory / MEASURE_FILE
    return open_sealed(read_file(path), MeasureRecord, str(path)).us if path.is_file() else math.inf


def _job(do: str, name: str, directory: Path) -> Job:
    """A job about one candidate; other kernels in the same directory are another job."""
    digest = hashlib.sha256((directory / "launch.json").read_bytes()).hexdigest()
    return {"do": do, "name": name, "kernels": str(directory), "files": digest[:16]}


# --- the command line ------------------------------------------------------------------------------------------------


def stages(
    module: str,
    given: Namespace,
    peers_of: Callable[[str], Sequence[str]],
    more: Callable[[str], Mapping[str, Any]] = lambda name: {},
) -> Stages:
    """What measures, with children that are ``python -m module --worker``; see ``Stages``."""
    cache = Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "mirage-inductor")))
    cache.mkdir(parents=True, exist_ok=True)
    token = cache / "mirage-token"
    if not token.is_file():
        token.write_text(secrets.token_hex(8))
    # The same for what compiles and for what measures: a difference could make another key of the compiler's cache.
    threads = str(max(1, (os.cpu_count() or 1) // given.jobs))
    environment = {LOCK: str(cache / "mirage-lock"), "TORCHINDUCTOR_COMPILE_THREADS": threads}
    ledger = Ledger(given.out / f"{module.rpartition('.')[2]}.jsonl", retry=given.retry)
    pool = children(module, given.out, _show, ledger, environment)
    return Stages(pool, peers_of, given, token.read_text(), more)


def _show(job: Job, result: Result) -> None:
    what = " ".join(str(job[key]) for key in ("do", "name", "peer") if key in job)
    candidate = Path(job["kernels"]).name if "kernels" in job else ""
    cells = {name: cell.get("us", math.nan) for name, cell in result.get("cells", {}).items()}
    shown = " ".join(f"{name} {us:.2f}" for name, us in cells.items())
    keys = ("error", "us", "gbs", "answer", "error_norm", "replays_error")
    plain = {key: result[key] for key in keys if key in result}
    said = " ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in plain.items())
    print(f"{what} {candidate}: {said} {shown} [{result.get('seconds', '-')} s]", flush=True)

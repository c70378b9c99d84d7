"""The prover against the checker and float64: random pairs of programs, changes of programs, mutants of candidates.

Run: .venv/bin/python -m benchmarks.fuzz_prover [--pairs N] [--graphs N] [--mutants N] [--seed S] [--jobs J]

Every pair is decided as ``verify`` does: proved, or refuted by a counterexample. The checker's kernel replays every
proof, and the reference confirms every counterexample. float64 decides each pair too, a proved one where the conditions
of its theorem hold; the tables count verdicts against what it says. What is drawn depends on the seed and the counts
alone, not on the number of jobs.

The programs of --graphs are of all operators, with every layout; each is decided against itself and against a few
single changes of it.

Exit 1 if float64 tells the two sides of a proved pair apart where its conditions hold, if the checker refuses a proof,
if anything crashes or takes more than LIMIT seconds of processor time, if what right rewrites made is Different, if the
reference does not confirm a counterexample, if a program is not proved equal to itself, or if more than 1 % of the
mutants are Unknown.

Options:
  --pairs N    random pairs of programs [default: 0]
  --graphs N   random programs against themselves and changes of them [default: 0]
  --mutants N  mutants of found candidates [default: 0]
  --seed N     [default: 1]
  --jobs N     processes [default: processors]
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import process_time
from types import FrameType
from typing import Any

from rich.console import Console

from benchmarks.harness import in_pool, parser_of, parts, shown, table
from mirage_formal.check.proof.ring import ProofError

# The generators stand with the tests.
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent, Unknown
from mirage_formal.prove.counterexamples.refute import CLEAR, evaluate_counterexample
from mirage_formal.prove.equality.prove import prove
from mirage_formal.run.verify.decide import decide_equality
from tests.kit.fuzz import graph_changes
from tests.kit.fuzz.rewrite_pairs import Truth, pairs
from tests.kit.graphs.mutants import Decision, differs, mutants
from tests.kit.proofs.theorem_points import differs_under

#: Pairs in one task; each task of random pairs has a seed of its own.
CHUNK = 200
#: Where the output is no terminal, a line of progress is printed after so many pairs.
LINE = 5_000
#: Seconds of processor time for one pair; what takes longer counts as a crash.
LIMIT = 60.0
#: Share of the mutants that may be Unknown.
UNKNOWN_SHARE = 0.01
Results = Iterable[tuple[tuple[Any, ...], Future["Tally"]]]
VERDICTS = (Equivalent, Unknown, Different)


@dataclass(frozen=True, slots=True)
class Case:
    """A pair, and whether right rewrites alone made it, where that is known."""

    name: str
    program: KernelGraph
    candidate: KernelGraph
    right: bool = False


@dataclass(slots=True)
class Tally:
    """What came out: counts of (verdict, decision), reasons of Unknown, and failures as (kind, text)."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    proof_bytes: int = 0
    slowest: tuple[float, str] = (0.0, "")

    def add(self, other: Tally) -> None:
        """Adds what another one counted."""
        self.counts.update(other.counts)
        self.reasons.update(other.reasons)
        self.failures += other.failures
        self.proof_bytes = max(self.proof_bytes, other.proof_bytes)
        self.slowest = max(self.slowest, other.slowest)

    @property
    def total(self) -> int:
        """Pairs that were judged; a crash is none."""
        return sum(self.counts.values())


class Slow(BaseException):
    """Too much processor time; no Exception, so that nothing on the way takes it for one of its own."""


def _too_slow(signum: int, frame: FrameType | None) -> None:
    raise Slow


def judge(cases: Iterable[Case]) -> Tally:
    """Decides pairs, replays proofs, confirms counterexamples."""
    signal.signal(signal.SIGPROF, _too_slow)
    tally = Tally()
    for case in cases:
        begin = process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            _judge(case, tally)
        except Slow:
            _fail(tally, f"more than {LIMIT:g} s", case)
        except Exception as error:
            _fail(tally, f"crash: {type(error).__name__}: {error}", case)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        tally.slowest = max(tally.slowest, (process_time() - begin, case.name))
    return tally


def _judge(case: Case, tally: Tally) -> None:
    said = differs(case.program, case.candidate)
    verdict = decide_equality(case.program, case.candidate)
    match verdict:
        case Equivalent():
            tally.proof_bytes = max(tally.proof_bytes, len(verdict.proof))
            try:
                theorem = replay_composed(case.program, case.candidate, verdict.proof)
            except ProofError as error:
                _fail(tally, f"the checker refuses the proof: {error}", case)
            else:
                said = differs_under(case.program, case.candidate, theorem.conditions)
                if said is Decision.DIFFERENT:
                    _fail(tally, "proved, but float64 tells the two apart where all conditions hold", case)
        case Different():
            if case.right:
                _fail(tally, "Different, but made by right rewrites", case)
            if not _confirmed(case, verdict):
                _fail(tally, "the reference does not confirm the counterexample", case)
        case Unknown():
            words = "".join("n" if c.isdigit() else c for c in verdict.reason)
            tally.reasons[f"{words[:60]} (float64: {said.value})"] += 1
    if case.program == case.candidate and isinstance(prove(case.program, case.candidate), Unknown):
        _fail(tally, "not proved equal to itself", case)
    tally.counts[type(verdict).__name__, said.value] += 1


def _confirmed(case: Case, verdict: Different) -> bool:
    if verdict.counterexample is None:
        return False
    found = evaluate_counterexample(case.program, case.candidate, verdict.counterexample)
    return abs(found.expected - found.got) > CLEAR * max(abs(found.expected), abs(found.got))


def _fail(tally: Tally, kind: str, case: Case) -> None:
    tally.failures.append((kind, f"{case.name}\n{to_text(case.program)}\n{to_text(case.candidate)}"))


def judge_pairs(seed: int, count: int) -> Tally:
    """Judge random pairs."""
    return judge(Case(p.name, p.program, p.candidate, p.truth is Truth.RIGHT) for p in pairs(seed, count))


def judge_graphs(seed: int, count: int) -> Tally:
    """Judge random programs, each with itself and with changes of it."""
    return judge(Case(label, left, right, label == "itself") for label, left, right in graph_changes.pairs(seed, count))


def tasks_of(seed: int, count: int) -> list[tuple[int, int]]:
    """Cut a count into tasks, each with a seed of its own."""
    return [(seed * 1_000_000 + i, len(some)) for i, some in enumerate(parts(count, CHUNK))]


def show(console: Console, title: str, tally: Tally) -> None:
    """Prints what came out."""
    console.print(f"{title}: {tally.total:,} decided, {len(tally.failures)} failures")
    rows = []
    for name in (kind.__name__ for kind in VERDICTS):
        found = [tally.counts[name, said.value] for said in Decision]
        rows.append([name, *(f"{n:,}" for n in (*found, sum(found)))])
    heads = ["verdict", *(f"float64: {said.value}" for said in Decision), "all"]
    console.print(table(heads, rows, range(len(heads))))
    console.print(
        f"largest proof {tally.proof_bytes:,} bytes; slowest pair {tally.slowest[0]:.2f} s, {tally.slowest[1]}"
    )
    for reason, count in tally.reasons.most_common(12):
        console.print(f"  Unknown {count}: {reason}", soft_wrap=True)
    for kind, text in tally.failures[:10]:
        console.print(f"FAILURE {kind}\n{text}\n", soft_wrap=True)


def main() -> int:
    """Runs both parts; returns the exit status."""
    parser = parser_of(__doc__)
    given = parser.parse_args()
    counts = (given.pairs, given.graphs, given.mutants)
    if min(counts) < 0 or not any(counts):
        parser.error("expected --pairs, --graphs or --mutants above 0")
    console = Console(highlight=False, markup=False)
    good = True
    cases = [Case(m.name, m.program, m.graph) for m in mutants(given.seed, given.mutants)] if given.mutants else []
    works: dict[str, tuple[int, Callable[..., Tally], list[tuple[Any, ...]]]] = {
        "random pairs": (given.pairs, judge_pairs, [*tasks_of(given.seed, given.pairs)]),
        "programs and changes of them": (given.graphs, judge_graphs, [*tasks_of(given.seed, given.graphs)]),
        "mutants": (given.mutants, judge, [(cases[i.start : i.stop],) for i in parts(len(cases), CHUNK)]),
    }
    for title, (count, work, tasks) in works.items():
        if count:
            whole = _whole(console, title, count, len(tasks), in_pool(work, tasks, max(1, given.jobs)))
            unknown = sum(n for (verdict, _), n in whole.counts.items() if verdict == Unknown.__name__)
            good &= not whole.failures and (title != "mutants" or unknown <= UNKNOWN_SHARE * whole.total)
    console.print("good" if good else "FAILED")
    return 0 if good else 1


def _whole(console: Console, title: str, count: int, tasks: int, results: Results) -> Tally:
    """Add all parts, with progress on the way and the table at the end."""
    whole = Tally()
    for _, future in shown(title, results, tasks):
        part = future.result()
        whole.add(part)
        if not console.is_terminal and whole.total % LINE < part.total:
            failures = f", {len(whole.failures)} failures" if whole.failures else ""
            console.print(f"{title}: {whole.total:,} of {count:,}{failures}")
    show(console, title, whole)
    return whole


if __name__ == "__main__":
    sys.exit(main())

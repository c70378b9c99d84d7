"""Comparison of oracles on the subexpression queries that searches ask.

Every arm answers the same queries and has a policy: the normal form prunes what it refutes; quantified z3 and the
e-graph prune what they do not prove or find, as the reference system does. A valid query that is pruned is a lost
branch.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.logic.certificate import audit, to_smt2
from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import AxiomSession, Satisfiability, SubexpressionAnswer, discharge
from mirage_formal.logic.terms import Expr
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.records.reproduction import Answers, OracleArmRecord, Source
from mirage_formal.reproduce.egraph import SHIPPED_NODES, SHIPPED_SECONDS, EGraph, StopReason, extents_of
from mirage_formal.reproduce.inputs import WORKLOADS, attention, gated_mlp, lora, ntrans, rmsnorm
from mirage_formal.reproduce.output.render import oracle_markdown
from mirage_formal.reproduce.row_journal import RecordFile, expect_writable_result, host_with_load, record_key, write
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.space import load_space
from mirage_formal.support.errors import RunError
from mirage_formal.workers.dispatch import TaskDone
from mirage_formal.workers.pool import Pool

NORMAL_FORM: Final = "normal form"
_EGRAPH: Final = f"e-graph, {SHIPPED_NODES:,} nodes, {SHIPPED_SECONDS:g} s"
_Z3: Final = {f"quantified z3, {ms} ms": ms for ms in (10, 100, 1000)}
#: All arms, in the order of the table.
ARMS: Final = (NORMAL_FORM, _EGRAPH, *_Z3)
#: Limits of the e-graph that decides validity where the default limits truncate it.
_TRUTH_NODES: Final = 400_000
_TRUTH_SECONDS: Final = 60.0
_CHUNK: Final = 10
#: Seconds after which a worker with a chunk of z3 queries, or with one, counts as hung, because z3 may overrun its own
#: limit.
_HUNG_S: Final = 120.0
_HUNG_ALONE_S: Final = _HUNG_S / _CHUNK
_SEARCH_S: Final = 3600.0

P = TypeVar("P")
R = TypeVar("R")

#: Callback with the current task, its finished pieces, and all of its pieces.
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class QueryProgram:
    """A program whose exhaustive search asks the queries: its name with shapes, and the spaces that are searched."""

    name: str
    program: KernelGraph
    spaces: tuple[SearchSpace, ...]
    space: str


def query_programs() -> tuple[QueryProgram, ...]:
    """Return RMSNorm at its real shapes in the first rows of the table, and small versions of other programs."""
    rows = tuple(load_space("paper").with_overrides(max_block_ops=ops) for ops in (3, 4, 5))
    tiny = load_space("tiny").with_overrides(max_block_ops=4)
    what = "tiny, 4 block operators"
    small: dict[str, KernelGraph] = {
        "attention, Q[2,4] K[4,6]": attention(queries=2, head=4, keys=6),
        "qknorm, Q[2,4] K[4,6]": attention(queries=2, head=4, keys=6, norms=(0, 1)),
        "rmsnorm, X[2,4] W[4,6]": rmsnorm(2, 4, 6),
        "lora, X[2,4] W[4,6] A[4,2]": lora(2, 4, 2, 6),
        "gated_mlp, X[2,4] W1[4,6]": gated_mlp(2, 4, 6),
        "ntrans, X[2,4]": ntrans(2, 4),
    }
    return (
        QueryProgram(
            "rmsnorm, X[2,4096] W[4096,6144]", WORKLOADS["rmsnorm"](1), rows, "paper, 5 to 7 operators (3 to 5)"
        ),
        *(QueryProgram(name, program, (tiny,), what) for name, program in small.items()),
    )


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Task to collect the queries of one exhaustive search."""

    program: KernelGraph
    space: SearchSpace


def queries_of_search(task: SearchTask) -> tuple[Expr, ...]:
    """Return the distinct queries of a search, in the order asked."""
    options, engine = SearchOptions(engine="exhaustive"), ExhaustiveEngine()
    found: dict[Expr, None] = {}
    for unit in engine.units(task.program, task.space, options):
        found |= dict.fromkeys(engine.run(task.program, task.space, options, unit).queries)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Z3Task:
    """Queries on one target with a time limit for each."""

    target: Expr
    queries: tuple[Expr, ...]
    timeout_ms: int


@lru_cache(maxsize=1)
def _session() -> AxiomSession:
    return AxiomSession()


def query_z3(task: Z3Task) -> tuple[tuple[SubexpressionAnswer, float], ...]:
    """Return z3's answers with the seconds of each; runs in a worker, which may be killed."""
    session = _session()
    out = []
    for query in task.queries:
        begin = time.perf_counter()
        answer = session.ask(query, task.target, task.timeout_ms)
        out.append((answer, time.perf_counter() - begin))
    return tuple(out)


def oracle(out: Path, sample: int, seed: int, show: Show) -> Answers:
    """Ask every arm, source by source, and write oracle.json and .md; finished sources are read from the directory.

    The normal form and the e-graph answer all queries, z3 a sample: half of it valid and half not, if there are enough.

    Raises:
        UnsupportedError: egglog is not installed.
        RunError: The directory cannot be used.
    """
    expect_writable_result(out, "oracle", Answers)
    here = host_with_load()
    sources: list[Source] = []
    rows: list[OracleArmRecord] = []
    finished, answers = RecordFile(out / "sources.jsonl", Source), RecordFile(out / "answers.jsonl", OracleArmRecord)
    with Pool(1, ("mirage_formal.reproduce.oracle_comparison",), slow_after_s=float("inf")) as pool:
        for asker in query_programs():
            key = record_key("oracle", asker.name, asker.spaces, sample, seed)
            source = finished.get(key)
            if source is None:
                asking = _OracleComparison(asker, key, sample, seed, _Workers(pool, asker.name, show))
                for row in asking.rows():
                    answers.add(row)
                source = finished.add(asking.source())
            sources.append(source)
            rows += [one for arm in ARMS if (one := answers.get(record_key(key, arm))) is not None]
    result = Answers(host=here, seed=seed, sources=tuple(sources), rows=tuple(rows))
    write(out, "oracle", result, oracle_markdown(result))
    return result


class _Workers:
    """Runner of tasks in a worker process, with progress."""

    def __init__(self, pool: Pool, name: str, show: Show) -> None:
        self._pool = pool
        self._name = name
        self._show = show

    def run(self, what: str, function: Callable[[P], R], tasks: Sequence[P], limit_s: float) -> dict[int, R]:
        """Return results by task; a task whose worker hung or died has none."""
        results: dict[int, R] = {}
        name = f"{self._name}: {what}"
        self._show(name, 0, len(tasks))
        for outcome in self._pool.run(function, tasks, limit_s=limit_s, tries=1):
            if isinstance(outcome, TaskDone):
                results[outcome.index] = outcome.value
                self._show(name, len(results), len(tasks))
        return results


#: Answers of an arm by query, and the total seconds.
_Replies = tuple[dict[Expr, SubexpressionAnswer], float]


class _OracleComparison:
    """Queries of one source, the queries known to be valid, and the arms' answers."""

    def __init__(self, asker: QueryProgram, key: str, sample: int, seed: int, workers: _Workers) -> None:
        self._asker = asker
        self._key = key
        self._workers = workers
        (self._target,) = expressions(asker.program).outputs
        tasks = [SearchTask(asker.program, space) for space in asker.spaces]
        found = workers.run("searching", queries_of_search, tasks, _SEARCH_S)
        if len(found) < len(tasks):
            raise RunError("expected the search to end, got a dead worker", where=asker.name, hint="run it again")
        self._queries = tuple(dict.fromkeys(e for index in sorted(found) for e in found[index]))
        self._by_form = self._ask_normal_form()
        self._by_egraph, truth, self._saturated = self._ask_egraphs()
        self._valid = frozenset(e for e in self._queries if e in truth or self._certified(e))
        self._sample = self._draw_sample(sample, seed)

    def _ask_normal_form(self) -> _Replies:
        oracle = NormalFormOracle([self._target])
        begin = time.perf_counter()
        answers = {e: oracle.contains(e) for e in self._queries}
        return answers, time.perf_counter() - begin

    def _ask_egraphs(self) -> tuple[_Replies, frozenset[Expr], bool]:
        """Return the e-graph's answers with the shipped limits, the finds with larger limits, and if that saturated."""
        graph = EGraph(extents_of(self._target))
        begin = time.perf_counter()
        grown = graph.grow(self._target, SHIPPED_NODES, SHIPPED_SECONDS)
        missing = SubexpressionAnswer.REFUTED if grown.ending is StopReason.SATURATED else SubexpressionAnswer.UNKNOWN
        shipped = {e: SubexpressionAnswer.PROVED if graph.holds(e) else missing for e in self._queries}
        seconds = time.perf_counter() - begin
        graph.forget()
        found = frozenset(e for e, answer in shipped.items() if answer is SubexpressionAnswer.PROVED)
        if grown.ending is not StopReason.SATURATED:
            grown = graph.grow(self._target, _TRUTH_NODES, _TRUTH_SECONDS)
            found |= {e for e in self._queries if graph.holds(e)}
            graph.forget()
        return (shipped, seconds), found, grown.ending is StopReason.SATURATED

    def _certified(self, e: Expr) -> bool:
        """Return whether a certificate that both solvers refute says that an expression is part of the target."""
        certificate = NormalFormOracle([self._target]).certificate(e)
        if certificate is None:
            return False
        text = to_smt2(certificate)
        audit(text)
        return all(result.answer is Satisfiability.UNSAT for result in discharge(parse_script(text)))

    def _draw_sample(self, size: int, seed: int) -> tuple[Expr, ...]:
        """Return a random sample in the order asked: half valid queries, half others."""
        draw = random.Random(seed)
        valid = [e for e in self._queries if e in self._valid]
        others = [e for e in self._queries if e not in self._valid]
        few = min(len(valid), max(size // 2, size - len(others)))
        chosen = set(draw.sample(valid, few)) | set(draw.sample(others, min(len(others), size - few)))
        return tuple(e for e in self._queries if e in chosen)

    def _ask_z3(self, timeout_ms: int) -> _Replies:
        """Return the answers of quantified z3 to the sample.

        A query whose worker hung or died is unknown and counts with its whole time limit. The other queries of its
        chunk lose their answers too; each of them is asked again by itself.
        """
        what = f"z3, {timeout_ms} ms"
        chunks = [self._sample[i : i + _CHUNK] for i in range(0, len(self._sample), _CHUNK)]
        replies = self._ask_chunks(what, chunks, timeout_ms, _HUNG_S)
        if lost := [(e,) for e in self._sample if e not in replies]:
            replies |= self._ask_chunks(f"{what}, one by one", lost, timeout_ms, _HUNG_ALONE_S)
        known = [replies.get(e, (SubexpressionAnswer.UNKNOWN, _HUNG_ALONE_S)) for e in self._sample]
        answers = {e: answer for e, (answer, _) in zip(self._sample, known, strict=True)}
        return answers, sum(taken for _, taken in known)

    def _ask_chunks(
        self, what: str, chunks: Sequence[tuple[Expr, ...]], timeout_ms: int, limit_s: float
    ) -> dict[Expr, tuple[SubexpressionAnswer, float]]:
        """Return answers and the seconds of each, without those of chunks whose worker hung or died."""
        tasks = [Z3Task(self._target, chunk, timeout_ms) for chunk in chunks]
        found = self._workers.run(what, query_z3, tasks, limit_s)
        return {e: reply for index, replies in found.items() for e, reply in zip(chunks[index], replies, strict=True)}

    def rows(self) -> Iterator[OracleArmRecord]:
        """Return one row for each arm."""
        z3 = {arm: self._ask_z3(ms) for arm, ms in _Z3.items()}
        # Queries that z3 proves are valid, too.
        proved = {
            e for answers, _ in z3.values() for e, answer in answers.items() if answer is SubexpressionAnswer.PROVED
        }
        self._valid |= proved
        yield self._row(NORMAL_FORM, self._by_form, frozenset({SubexpressionAnswer.REFUTED}))
        for arm, replies in ((_EGRAPH, self._by_egraph), *z3.items()):
            yield self._row(arm, replies, frozenset({SubexpressionAnswer.REFUTED, SubexpressionAnswer.UNKNOWN}))

    def _row(self, arm: str, replies: _Replies, prunes: frozenset[SubexpressionAnswer]) -> OracleArmRecord:
        answers, seconds = replies
        counts = Counter(answers.values())
        pruned = {e for e, answer in answers.items() if answer in prunes}
        valid = self._valid & answers.keys()
        kept = {e for e, answer in answers.items() if answer is SubexpressionAnswer.PROVED and e not in self._valid}
        return OracleArmRecord(
            key=record_key(self._key, arm),
            source=self._asker.name,
            arm=arm,
            proved=counts[SubexpressionAnswer.PROVED],
            refuted=counts[SubexpressionAnswer.REFUTED],
            unknown=counts[SubexpressionAnswer.UNKNOWN],
            pruned=len(pruned),
            valid=len(valid),
            wrongly_pruned=len(pruned & valid),
            wrongly_kept=len(kept) if self._saturated else 0,
            us_per_query=round(1e6 * seconds / max(1, len(answers)), 2),
        )

    def source(self) -> Source:
        """Return the record of the queries' source."""
        return Source(
            key=self._key,
            name=self._asker.name,
            space=self._asker.space,
            queries=len(self._queries),
            sampled=len(self._sample),
            saturated=self._saturated,
        )

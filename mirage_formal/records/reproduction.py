"""What ``reproduce`` writes: one Struct per JSON object. The report shows it as well."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from mirage_formal.records.run import Count, Record, Sha256

Seconds = Annotated[float, msgspec.Meta(ge=0)]
SCHEMA: Final = 1


class Host(Record, frozen=True, kw_only=True):
    """What was measured on: processors, the load average of the last minute at the start, versions."""

    processors: Count
    load: float
    python: str
    versions: dict[str, str]


class UnprunedEstimate(Record, frozen=True, kw_only=True):
    """What the search without pruning would take, extrapolated and never measured.

    Attributes:
        states: States of a whole search.
        seconds: Wall seconds at the measured rate.
        factor: Measured growth of the number of states by one more block operator, between the two limits below that
            a search without pruning completes.
        measured: Those two limits (ours) with their states.
    """

    states: float
    seconds: float
    factor: float
    measured: dict[int, int]


class Row(Record, frozen=True, kw_only=True):
    """One search: an arm at one limit of block operators; also one line of rows.jsonl.

    Attributes:
        key: Sha256 over all that decides the search; a row is only taken over by a run of the same key.
        arm: Name of the arm.
        block_ops: Most block operators, accumulators counted and inputs not.
        paper_ops: The same limit as the paper counts, with the inputs of the program.
        workers: Worker processes.
        complete: Whether the space was searched to its end. If not, every count is a lower bound.
        wall_s: Seconds from planning to the last unit, with the fingerprints; imports and starting workers excluded.
        cpu_s: Processor seconds of all units.
        states: Operator applications entered.
        pruned: How many were refused, by reason.
        configurations: Grids, maps and loop ranges opened as a kernel.
        expressions: Distinct normal forms among the expressions known to be part of the program's; null where the arm
            asks no oracle of that kind.
        classes: Distinct index-aware classes of tensors (guided); null otherwise.
        oracle_calls: Subexpression questions, those answered from memory included.
        cache_hits: Those answered from memory.
        oracle_unknown: Distinct questions without an answer, which are kept.
        complete_graphs: Graphs (guided: paths) that passed every structural test.
        fingerprint_tests: Verdicts asked of the fingerprint; null where complete graphs are only counted.
        candidates: Graphs that the fingerprint did not refute; null where there is no fingerprint.
        structures: Distinct structures among them.
        reference: Those candidates whose kernels read what the reference system gives a kernel.
        lost: Units whose worker hung or outgrew its memory in every try: z3 does, now and then. Their counts are lost,
            and the row is not complete.
        graphs: The candidates as ``graph.formats.json.encode`` writes them, by digest; left out of table5.json.
        extrapolated: For a search without pruning; null otherwise.
    """

    key: Sha256
    arm: str
    block_ops: Count
    paper_ops: Count
    workers: Count
    complete: bool
    wall_s: Seconds
    cpu_s: Seconds
    states: Count
    pruned: dict[str, int]
    configurations: Count
    expressions: Count | None
    classes: Count | None
    oracle_calls: Count
    cache_hits: Count
    oracle_unknown: Count
    complete_graphs: Count
    fingerprint_tests: Count | None
    candidates: Count | None
    structures: Count
    reference: Count
    lost: Count = 0
    graphs: tuple[bytes, ...] = ()
    extrapolated: UnprunedEstimate | None = None


class Comparison(Record, frozen=True, kw_only=True):
    """The candidates of the guided and the exhaustive engine as sets, at one limit; also a line of comparisons.jsonl.

    Attributes:
        key: As in Row.
        paper_ops: As in Row.
        both: Candidates of both.
        guided_only: Candidates that only guided search finds: 0, or a bug.
        exhaustive_only: Those that only exhaustive search finds, by the predicate that explains each.
        unexplained: Those that none explains: 0, or a bug.
    """

    key: Sha256
    paper_ops: Count
    both: Count
    guided_only: Count
    exhaustive_only: dict[str, int]
    unexplained: Count


class Table5(Record, frozen=True, kw_only=True):
    """table5.json."""

    schema_version: Literal[1] = SCHEMA
    program: str
    space: str
    kernel_ops: Count
    time_limit_s: Seconds
    host: Host
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    published: dict[str, dict[int, float]]
    published_by: str


class Workload(Record, frozen=True, kw_only=True):
    """One workload at one batch, searched, certified and proved; also one line of workloads.jsonl.

    Attributes:
        key: As in Row.
        name: Of the workload.
        batch: The batch.
        preset: The search space.
        workers: Worker processes.
        states: Operator applications tried.
        pruned: How many were refused, by reason.
        classes: Classes of tensors.
        oracle_calls: Questions to the engine's algebra.
        cache_hits: Those answered from memory.
        fingerprint_tests: While searching and at the end.
        candidates: Found.
        structures: Distinct structures among them.
        proved: Reported: certified, proved, replayed.
        not_proved: Chosen and not accepted.
        first_s: Seconds to the end of the first unit of work with a candidate.
        search_s: Seconds to the end of the search.
        certify_s: Seconds spent on certificates.
        prove_s: Seconds spent on final fingerprints, proofs and their replay.
        wall_s: Seconds in all, starting workers and importing in them included.
        artifact: µGraphs in the file of the paper's artifact; null if it has none.
    """

    key: Sha256
    name: str
    batch: Count
    preset: str
    workers: Count
    states: Count
    pruned: dict[str, int]
    classes: Count
    oracle_calls: Count
    cache_hits: Count
    fingerprint_tests: Count
    candidates: Count
    structures: Count
    proved: Count
    not_proved: Count
    first_s: Seconds | None
    search_s: Seconds
    certify_s: Seconds
    prove_s: Seconds
    wall_s: Seconds
    artifact: Count | None


class Workloads(Record, frozen=True, kw_only=True):
    """workloads.json."""

    schema_version: Literal[1] = SCHEMA
    host: Host
    rows: tuple[Workload, ...]


class Source(Record, frozen=True, kw_only=True):
    """Where questions come from; also a line of sources.jsonl.

    Attributes:
        key: As in Row.
        name: Of the program, with its shapes.
        space: What was searched.
        queries: Distinct questions of that search.
        sampled: Those that were put to z3.
        saturated: Whether an e-graph of the program was saturated, so that what it lacks is no part of it.
    """

    key: Sha256
    name: str
    space: str
    queries: Count
    sampled: Count
    saturated: bool


class OracleArmRecord(Record, frozen=True, kw_only=True):
    """How one arm answered; also one line of answers.jsonl.

    Attributes:
        key: As in Row.
        source: Name of the source.
        arm: Name of the arm.
        proved: Answers "part of the program".
        refuted: Answers "no part".
        unknown: No answer.
        pruned: Questions on which this arm's policy prunes.
        valid: Questions that are known to be part of the program: by a checked certificate, or found in an e-graph.
        wrongly_pruned: Valid and pruned.
        wrongly_kept: Proved by this arm and not valid; 0 where no e-graph was saturated.
        us_per_query: Mean microseconds of a question, growing the e-graph or reading the target included; one that
            lost its worker counts with all the time that it was given.
    """

    key: Sha256
    source: str
    arm: str
    proved: Count
    refuted: Count
    unknown: Count
    pruned: Count
    valid: Count
    wrongly_pruned: Count
    wrongly_kept: Count
    us_per_query: Annotated[float, msgspec.Meta(ge=0)]


class Answers(Record, frozen=True, kw_only=True):
    """oracle.json."""

    schema_version: Literal[1] = SCHEMA
    host: Host
    seed: Count
    sources: tuple[Source, ...]
    rows: tuple[OracleArmRecord, ...]

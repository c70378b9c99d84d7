"""The records of a run directory: one Struct per JSON object of docs/run-directory.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

SCHEMA_VERSION: Final = 3

RUN_FILE: Final = "run.json"
SEARCH_FILE: Final = "search.jsonl"
SUMMARY_FILE: Final = "summary.json"
EXHAUSTED_FILE: Final = "exhausted.json"
CONTRADICTION_FILE: Final = "contradiction.smt2"
CANDIDATES: Final = "candidates"
#: A run that has rejected more than this many candidates for each that it may keep gives up, and may report fewer.
PATIENCE: Final = 4
GRAPH_FILE: Final = "mugraph.json"
PROOF_FILE: Final = "proof.jsonl"
PROOF_DIR: Final = "proof"
EQUIVALENCE_FILE: Final = "proof/equivalence.json"
VERIFICATION_FILE: Final = "verification.json"
MANIFEST_FILE: Final = "manifest.json"

# A pattern's $ also stands before a line break at the end, so lengths are bounded, or the break is refused, as well.
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
#: A time, a cost or an error; JSON has no number that is not finite.
Figure = Annotated[float, msgspec.Meta(ge=0)]
#: log2 of a probability.
Log2 = Annotated[float, msgspec.Meta(le=0)]
#: Version of a package or of a solver.
Release = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9A-Za-z]{1,12}){1,5}([-+][0-9A-Za-z.]{1,40})?(?!\n)$")]
Installed = Annotated[
    str, msgspec.Meta(pattern=r"^(not installed|[0-9]{1,9}(\.[0-9A-Za-z]{1,12}){1,5}([-+][0-9A-Za-z.]{1,40})?)(?!\n)$")
]
#: What an author may call something.
Title = Annotated[str, msgspec.Meta(max_length=1000)]
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
#: Packages whose version can change a result; a run names the version of each.
PACKAGES: Final = ("mirage_formal", "z3-solver", "cvc5", "numpy", "msgspec")
Version = Literal[3]
#: Stands in a file for its seal while that is computed.
NO_SEAL: Final = "0" * 64


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every record: frozen, strict about unknown fields."""


class VersionedRecord(Record, frozen=True, kw_only=True):
    """Base of the records of whole files and of lines: the first field is the version of the format."""

    schema_version: Version = SCHEMA_VERSION


class Identity(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that decides what a run finds; two runs with equal identities find the same candidates.

    Attributes:
        program: Digest of the program, over topology, shapes, strides, dtypes and names.
        space: Sha256 over the search space with every bound in it, after command-line overrides.
        engine: "guided", "exhaustive", a user's own, or "file:" with the sha256 of the file of the candidates.
        oracle: "normal-form" or "z3".
        prune: Whether branches are pruned by abstract expressions.
        target: Name of the target that candidates are ranked for.
        target_digest: Sha256 over the target's figures.
        seed: Seed of the fingerprints.
        accept: "equivalent": only what is proved is reported; "probable": also what fingerprints did not refute.
        axioms: Statements of added axioms of abstract expressions, as SMT-LIB; left out where there are none.
        without_axioms: Names of axioms of the project that are switched off; left out where there are none.
    """

    program: Sha256
    space: Sha256
    engine: Word
    oracle: Literal["normal-form", "z3"]
    prune: bool
    target: Word
    target_digest: Sha256
    seed: Count
    accept: Literal["equivalent", "probable"]
    axioms: tuple[str, ...] = ()
    without_axioms: tuple[Word, ...] = ()


class HostRecord(Record, frozen=True, kw_only=True):
    """A machine, as Python describes it, and how many processors a search may use there."""

    python: Word
    system: Title
    machine: Title
    cpus: Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,5}(?!\n)$")]


class RunRecord(VersionedRecord, frozen=True, kw_only=True):
    """run.json: what was asked for, written before the search starts and never changed.

    Attributes:
        name: Name of the program (a variable of the file it came from).
        source: File that the program came from, as the user named it, or empty.
        config: Name of the search space, or its path as the user gave it.
        identity: See Identity.
        key: Sha256 over the canonical JSON of ``identity``; --resume compares it.
        program: The program as a µGraph, in the form of mugraph.json.
        space: The search space, every bound in it, as a JSON object.
        versions: Version of each of ``PACKAGES``.
        host: What the run was made on. For information.
    """

    name: Title
    source: Title
    config: Title
    identity: Identity
    key: Sha256
    program: msgspec.Raw
    space: dict[str, msgspec.Raw]
    versions: dict[Title, Installed]
    host: HostRecord


class SolverRecord(Record, frozen=True, kw_only=True):
    """One solver's answer to one obligation."""

    answer: Literal["unsat", "sat", "unknown"]
    version: Release
    milliseconds: Figure


class CertificateRecord(VersionedRecord, frozen=True, kw_only=True, tag="certificate", tag_field="record"):
    """One line of proof.jsonl: one tensor's abstract expression is a subexpression of an output's.

    A concatenation has one line, about the sum of its parts, or one for each part, in their order.

    Attributes:
        tensor: "k<i>" is tensor i of the kernel graph, "b<j>.<i>" tensor i of the block graph of kernel operator j.
        expression: The tensor's abstract expression, or that of a part, as text.
        output: Position in the program's outputs of the target that it is a subexpression of.
        file: Path of the obligation, relative to the candidate's directory, always proof/<name>.smt2.
        sha256: Of that file.
        z3: z3's answer.
        cvc5: cvc5's answer.
    """

    tensor: Annotated[str, msgspec.Meta(pattern=r"^(k|b[0-9]{1,4}\.)[0-9]{1,5}(?!\n)$")]
    expression: str
    output: Count
    file: str
    sha256: Sha256
    z3: SolverRecord
    cvc5: SolverRecord


DigitLemma = Literal["injective", "onto"]


class DigitRecord(Record, frozen=True, kw_only=True):
    """One obligation of an equivalence proof: a half of the mixed-radix lemma for digits of certain extents.

    Attributes:
        extents: Of the digits, most significant first.
        lemma: "injective" (equal numbers have equal digits) or "onto" (every number has digits).
        file: Path of the obligation, relative to the candidate's directory, always proof/digits-<number>.smt2.
        sha256: Of that file.
        z3: z3's answer.
        cvc5: cvc5's answer.
    """

    extents: tuple[Positive, ...]
    lemma: DigitLemma
    file: str
    sha256: Sha256
    z3: SolverRecord
    cvc5: SolverRecord


class EquivalenceRecord(VersionedRecord, frozen=True, kw_only=True, tag="equivalence", tag_field="record"):
    """The line of proof.jsonl before the last one, if the candidate is proved equal to the program.

    Attributes:
        file: Path of the proof object, always proof/equivalence.json.
        sha256: Of that file.
        steps: Tensor steps of the proof.
        lemmas: Lemmas of the proof.
        conditions: What program and candidate need to be defined; the equality holds wherever these hold.
        added: Those of the candidate that the program has not.
        digits: Obligations of the proof, by extents and lemma.
    """

    file: str
    sha256: Sha256
    steps: Count
    lemmas: Count
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    digits: tuple[DigitRecord, ...]


class ClosingRecord(VersionedRecord, frozen=True, kw_only=True, tag="end", tag_field="record"):
    """Last line of proof.jsonl: what precedes it, and for which graph.

    Attributes:
        certificates: Lines about tensors.
        obligations: Distinct files that they name.
        equivalences: Lines about an equivalence proof: 1, or 0 for a candidate that is only probable.
        digits: Obligations of that proof.
        graph: Digest of mugraph.json.
        program: Digest of the program.
        axioms: Statements of the added axioms that certificates may have instances of; left out where there are none.
    """

    certificates: Count
    obligations: Count
    equivalences: Count
    digits: Count
    graph: Sha256
    program: Sha256
    axioms: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


ProofRecord = CertificateRecord | EquivalenceRecord | ClosingRecord


class VerdictRecord(Record, frozen=True, kw_only=True):
    """A verdict as data; ``kind`` names the class of graph/verdict and the other fields are that class's.

    In the logs of a reported candidate the kind is "equivalent" or "probable". ``rounds`` and ``bound_log2`` belong to
    a probable verdict only: no fingerprint is part of an equivalent one.
    """

    kind: Literal["equivalent", "probable", "different", "unknown"]
    rounds: Count = 0
    bound_log2: Log2 | None = None
    reason: str = ""
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


class SpecialRecord(Record, frozen=True, kw_only=True):
    """What a candidate was at special values: NaN, infinities, 0 and large numbers in its inputs, and empty masks.

    It has a value wherever the program has one, and none where an operator of the program has none; otherwise it would
    not be reported. Evaluated in float64, at smaller extents where its own are large.

    Attributes:
        seed: Seed of the draws.
        draws: Sets of inputs.
        elements: Elements of all outputs.
        undefined: Those of them at which an operator of the program has no value.
        overflows: Those at which the program overflows and the candidate does not: an overflow was removed.
    """

    seed: Count
    draws: Positive
    elements: Positive
    undefined: Count
    overflows: Count


class VerificationRecord(VersionedRecord, frozen=True, kw_only=True):
    """verification.json: the verification log of one candidate.

    Attributes:
        candidate: Digest of the graph in mugraph.json.
        program_digest: Digest of ``program``.
        program: The program as a µGraph, so that a candidate's directory can be checked alone.
        sought: The program as the search saw it, without maxima that do not matter, whose outputs the certificates in
            proof.jsonl name; null where that is ``program``.
        verdict: The verdict.
        fingerprint: Everything that an independent re-draw needs, see docs/fingerprint.md. Its verdict is "probable";
            of an equivalent candidate it may be "unknown", with the reason why there is no answer.
        special: What it was at special values; null where it is too large to be evaluated.
    """

    candidate: Sha256
    program_digest: Sha256
    program: msgspec.Raw
    sought: msgspec.Raw
    verdict: VerdictRecord
    fingerprint: msgspec.Raw
    special: SpecialRecord | None = None


class ManifestRecord(VersionedRecord, frozen=True, kw_only=True):
    """manifest.json: sha256 of every other file of the candidate's directory, by relative path, and a seal.

    ``seal`` is the sha256 of the file's own bytes with the seal's 64 digits written as zeros.
    """

    candidate: Sha256
    files: dict[str, Sha256]
    seal: Sha256 = NO_SEAL


class CandidateRecord(Record, frozen=True, kw_only=True):
    """One item of summary.json's ``candidates``.

    Attributes:
        id: First 12 digits of ``digest``.
        digest: Digest of the graph.
        rank: 1 is the best.
        verdict: "equivalent" or "probable".
        error_bound_log2: Of a probable one: log2 of the error probability, null where the theorem gives no bound. Of an
            equivalent one null: a proof has no error probability.
        kernels: Kernels launched.
        estimated_us: The cost model's estimate, in microseconds.
        outside: Scales of the inputs at which its operators, executed in their element types, are outside of their
            tolerances and the program's own operators are not; empty where there are none, null where nobody looked.
        rounding: What its tolerances are of its values at scale 1, in norm; null where nobody looked or it is large.
        measured_us: Null: a run ends before its kernels are made; measure.json beside them has it.
        max_relative_error: Null, likewise; numerics.json beside the kernels has it.
        directory: Relative to the run's directory.
    """

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$", max_length=12)]
    digest: Sha256
    rank: Positive
    verdict: Literal["equivalent", "probable"]
    error_bound_log2: Log2 | None
    kernels: Count
    estimated_us: Figure
    outside: tuple[Figure, ...] | None = None
    rounding: Figure | None = None
    measured_us: Figure | None = None
    max_relative_error: Figure | None = None
    directory: str


RejectedKind = Literal["different", "unknown", "certificate", "unproved", "proof-refused", "numerics"]
#: Candidates that are estimated at less than so many times the best are not told apart by their estimates.
CLOSE: Final = 1.02


def report_order(places: Mapping[str, tuple[float, tuple[float, ...] | None, float | None]]) -> list[str]:
    """Return the digests of candidates in report order.

    Candidates are sorted by estimate, then digest. Those outside of their tolerances at some scale of the inputs come
    last. Of those within ``CLOSE`` of the first, the one with the least rounding error comes first, if it is known.

    Args:
        places: By digest, ``estimated_us``, ``outside`` and ``rounding`` of each.
    """
    order = sorted(places, key=lambda name: (bool(places[name][1]), places[name][0], name))
    lead = places[order[0]] if order else (0.0, None, None)
    if lead[2] is None:
        return order
    rounds = [
        (most, us, name)
        for name, (us, bad, most) in places.items()
        if not bad and us <= CLOSE * lead[0] and most is not None
    ]
    first = min(rounds, default=(0.0, 0.0, order[0]))[2]
    return [first, *(name for name in order if name != first)]


class RejectedRecord(Record, frozen=True, kw_only=True):
    """A candidate that was proposed but is not reported, and why.

    Attributes:
        digest: Digest of the graph.
        kind: "different": refuted by the final fingerprint or a counterexample, a bug of the search. "unknown": neither
            a fingerprint nor a proof, a proof whose conditions no input met or that took too long, or a task or a
            solver failed. "certificate": a tensor's certificate is missing or not refuted by both solvers. "unproved":
            the prover knows no proof. "proof-refused": the checker's kernel refused the proof, or a solver found one of
            its obligations satisfiable, a bug of the prover. "numerics": its results are outside of their tolerances at
            a scale at which the program's own operators are not, and so are those of all candidates before it; or it
            has no value, or a wrong one, at special values at which the program has one, or the other way round.
        reason: What was found.
    """

    digest: Sha256
    kind: RejectedKind
    reason: str


class AuditRecord(Record, frozen=True, kw_only=True):
    """Answers of z3 to a sample of pruning decisions, under the axioms of ``axioms/``.

    Attributes:
        z3: z3's version.
        kept: Decisions to keep a tensor that z3 was asked about.
        pruned: Decisions to prune one.
        agreed: Kept, and proved part of the program; or pruned, and refuted.
        finer: Pruned, and proved part of the program only by axioms that forget indices.
        unknown: Not decided within z3's limit.
        contradicted: Kept and refuted, or pruned and proved by axioms that respect indices. A run with one is a fault.
        contradictions: Their questions, as SMT-LIB text.
    """

    z3: Release
    kept: Count
    pruned: Count
    agreed: Count
    finer: Count
    unknown: Count
    contradicted: Count
    contradictions: tuple[str, ...] = ()


def sum_audits(audits: Iterable[AuditRecord | None]) -> AuditRecord | None:
    """Return the counts of several audits together; None if there is none."""
    found = [one for one in audits if one is not None]
    if not found:
        return None
    names = ("kept", "pruned", "agreed", "finer", "unknown", "contradicted")
    totals = {name: sum(getattr(one, name) for one in found) for name in names}
    texts = tuple(text for one in found for text in one.contradictions)
    return AuditRecord(z3=found[0].z3, **totals, contradictions=texts)


class SummaryRecord(VersionedRecord, frozen=True, kw_only=True):
    """summary.json: what the run found.

    Attributes:
        program: Name of the program.
        program_digest: Its digest.
        config: Name of the search space.
        key: The run's key.
        status: "complete", "interrupted" (Ctrl-C) or "time-limit"; the latter two may be resumed.
        units: Units of work of the search.
        units_done: Units finished.
        units_failed: Units given up after repeated deaths of their workers.
        states: States visited.
        stats: All counters of the search, by name.
        pruned: Branches cut, by reason.
        found: Candidates that the engine proposed, distinct by digest.
        fingerprint_tests: Fingerprints computed, in the search and at the end.
        wall_s: Seconds of the session that wrote this.
        recalled: Whether it found search and evidence in the store.
        workers: Worker processes.
        candidates: The reported ones, best first.
        rejected: Proposed ones that are not reported because a check failed.
        most_us: Proposed ones that are estimated above this number of microseconds are no alternative and not reported;
            null if every estimate is.
        audit: What z3 says of a sample of the search's pruning decisions; null if it was not asked.
        manifest: Relative path to sha256, for every other file of the run but kernels, which have their own manifests.
        seal: Sha256 of this file's bytes with the seal's 64 digits written as zeros.
    """

    program: Title
    program_digest: Sha256
    config: Title
    key: Sha256
    status: Literal["complete", "interrupted", "time-limit"]
    units: Count
    units_done: Count
    units_failed: Count
    states: Count
    stats: dict[str, Count]
    pruned: dict[str, Count]
    found: Count
    fingerprint_tests: Count
    wall_s: Figure
    recalled: bool
    workers: Positive
    candidates: tuple[CandidateRecord, ...]
    rejected: tuple[RejectedRecord, ...]
    most_us: Figure | None = None
    audit: AuditRecord | None = None
    manifest: dict[str, Sha256]
    seal: Sha256 = NO_SEAL


class BoundRecord(Record, frozen=True, kw_only=True):
    """Lower bound of the estimates of all graphs with a number of kernels.

    Attributes:
        kernels: Number of kernels; the last bound of a list holds for more of them too.
        us: Microseconds, the sum of the two parts.
        launch_us: Part of launches and of the latency of first loads.
        body_us: Part of bytes and operations.
    """

    kernels: Positive
    us: Figure
    launch_us: Figure
    body_us: Figure


class ExhaustedRecord(VersionedRecord, frozen=True, kw_only=True):
    """exhausted.json: what was tried, pruned and dropped, and the least estimate that any graph can have.

    Attributes:
        schema_version: 3.
        key: The run's key.
        space: Name of the search space.
        target: Figures of the target, whose sha256 the run's identity has.
        left_out: Names of the kinds of graphs that the engine leaves out of the space (docs/search.md).
        tried: Counters of the search, by name.
        pruned: Branches that cannot become part of the program, by reason.
        dropped: What else was not searched or is not reported, by reason. The bound holds for it as well.
        bounds: Lower bound for each number of kernels, fewest first.
        bound_us: The least of them: no graph for the program is estimated below it. Null if it needs no kernel.
        best_us: Estimate of the best reported candidate; null if there is none.
        gap: (best_us - bound_us) / best_us, the relative gap of branch and bound; null if either is.
    """

    key: Sha256
    space: Title
    target: msgspec.Raw
    left_out: tuple[Word, ...]
    tried: dict[str, Count]
    pruned: dict[str, Count]
    dropped: dict[str, Count]
    bounds: tuple[BoundRecord, ...]
    bound_us: Figure | None
    best_us: Figure | None
    gap: Annotated[float, msgspec.Meta(le=1)] | None


def exhausted_record(
    run: RunRecord, summary: SummaryRecord, target: bytes, left_out: Sequence[str], bounds: Sequence[BoundRecord]
) -> ExhaustedRecord:
    """Return the record exhausted.json of a run.

    Args:
        run: The request.
        summary: The findings.
        target: Figures of the target, as JSON.
        left_out: Names of the kinds of graphs that the engine leaves out.
        bounds: Lower bound for each number of kernels.
    """
    bound = min((one.us for one in bounds), default=None)
    best = min((item.estimated_us for item in summary.candidates), default=None)
    rejected = Counter(f"candidates rejected: {one.kind}" for one in summary.rejected)
    dropped = {
        "units given up": summary.units_failed,
        "units not searched": summary.units - summary.units_done - summary.units_failed,
        "units cut at max_states": summary.stats.get("cut", 0),
        "candidates behind the reported ones": summary.found - len(summary.candidates) - len(summary.rejected),
        **dict(sorted(rejected.items())),
    }
    return ExhaustedRecord(
        key=run.key,
        space=run.config,
        target=msgspec.Raw(target),
        left_out=tuple(left_out),
        tried=summary.stats,
        pruned=summary.pruned,
        dropped={name: count for name, count in dropped.items() if count},
        bounds=tuple(bounds),
        bound_us=bound,
        best_us=best,
        gap=None if bound is None or best is None else (best - bound) / best,
    )


def describe_gap(record: ExhaustedRecord) -> str:
    """Return the lower bound, and the gap of the best to it, as one line of text."""
    if record.bound_us is None:
        return "lower bound: the program needs no kernel"
    text = f"no graph for the program is estimated below {record.bound_us:.2f} us"
    return text if record.gap is None else f"{text}; at most {record.gap:.1%} of the best's estimate can be saved"

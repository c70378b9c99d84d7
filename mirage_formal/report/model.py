"""Model of a run's report: frozen values, shared by all printers, and their JSON form.

Every value was read from evidence. ``Basis`` says of each claim whether it was established while the report was made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import AuditRecord
from mirage_formal.report.proofs.proof_formulas import Formula, ReplayedProof, formula_text


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of a unit, in seconds of searching: the search's clock stops between its sessions.

    Attributes:
        begin, end: Times of dispatch to a worker and of the answer.
        worker: Number of the worker.
        samples: Samples of seconds, visited states and built classes.
    """

    begin: float
    end: float
    worker: int
    samples: tuple[tuple[float, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SearchedUnit:
    """One finished unit of the search, in the order of the journal.

    Attributes:
        number, label, status, states, classes, pruned, candidates, milliseconds: Fields of the journal.
        span: Its time span; None where it was not recorded.
    """

    number: int
    label: str
    status: str
    states: int
    classes: int
    pruned: int
    candidates: int
    milliseconds: float
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class PartSearch:
    """The search for a subgraph of a whole program.

    Attributes:
        run: Its directory, relative to the whole's.
        operators: Numbers of its operators in the program; empty where no reported cover has it.
        part: Number from 1 of the best cover's subgraph that one of its candidates replaces; 0 for none.
        units_done, units: Numbers of finished and of all units.
        kept: Number of candidates that it reports.
        search: Statistics of the search.
    """

    run: str
    operators: tuple[int, ...]
    part: int
    units_done: int
    units: int
    kept: int
    search: Search

    @property
    def states(self) -> int:
        """Return the number of visited states."""
        return dict(self.search.stats).get("states", 0)

    @property
    def pruned(self) -> int:
        """Return the number of pruned branches."""
        return sum(count for _, count in self.search.pruned)

    @property
    def counts(self) -> tuple[str, str, str]:
        """Return units, states and pruned branches as they are shown."""
        return f"{self.units_done:,} of {self.units:,}", f"{self.states:,}", f"{self.pruned:,}"

    @property
    def seconds(self) -> str:
        """Return the seconds of the search, marked if it was read from the store."""
        return f"{self.search.wall_s:.1f}" + (" (recalled)" if self.search.recalled else "")


@dataclass(frozen=True, slots=True)
class Search:
    """Statistics and course of a search.

    Attributes:
        engine, oracle, space, seed, target: Options of the search.
        status: complete, interrupted or time-limit.
        wall_s, workers, recalled: Figures of the session that ended it.
        stats: Counters by name.
        pruned: Pruned branches, by reason.
        pruned_at: Pruned branches by level of the µGraph and reason, of units that record levels.
        units: Units in the order of the journal.
        allowed: The bounds of the space, as recorded.
        course: Samples of seconds of searching, and states and classes of all units together, for units with recorded
            times.
        audit: What z3 says of a sample of the pruning decisions; None if it was not asked.
        bound_us, gap: Lower bound of every graph's estimate, and the gap of the best to it; None if not recorded.
        axioms: Statements of added axioms, and names of those that are switched off.
    """

    engine: str
    oracle: str
    space: str
    seed: int
    target: str
    status: str
    wall_s: float
    workers: int
    recalled: bool
    found: int
    stats: tuple[tuple[str, int], ...]
    pruned: tuple[tuple[str, int], ...]
    units: tuple[SearchedUnit, ...]
    allowed: tuple[tuple[str, str], ...]
    course: tuple[tuple[float, int, int], ...] = ()
    pruned_at: tuple[tuple[str, str, int], ...] = ()
    audit: AuditRecord | None = None
    bound_us: float | None = None
    gap: float | None = None
    axioms: tuple[str, ...] = ()


# --- report ----------------------------------------------------------------------------------------------------------


class Basis(StrEnum):
    """Basis of a shown claim."""

    #: ``check`` established it while this report was made.
    CHECKED = "checked"
    #: It is recorded in the evidence, and was not checked for this report.
    RECORDED = "recorded"
    #: A part of it does not hold.
    FAILS = "fails"

    @property
    def words(self) -> str:
        """Return the words for a claim: established by check now, only recorded in evidence, or not holding."""
        return {
            Basis.CHECKED: "established by check in this invocation",
            Basis.RECORDED: "from evidence, not checked here",
            Basis.FAILS: "does not hold",
        }[self]

    @property
    def check(self) -> str:
        """Return what the check of the claim did or would do, in a sentence."""
        check = (
            "replays the proof in the checker's kernel, evaluates the fingerprints again, "
            "and asks z3 and cvc5 every obligation"
        )
        return {
            Basis.CHECKED: f"In this invocation, mirage-formal check has established it: check {check}.",
            Basis.RECORDED: f"This is what the evidence says. mirage-formal check would establish it: check {check}.",
            Basis.FAILS: "A part of the evidence does not hold; the page names it.",
        }[self]

    @property
    def short(self) -> str:
        """Return the words for a table: established, not checked here, or does not hold."""
        return {Basis.CHECKED: "established", Basis.RECORDED: "not checked here", Basis.FAILS: "does not hold"}[self]


@dataclass(frozen=True, slots=True)
class EvidenceFault:
    """A part of the evidence that does not hold or cannot be read.

    Attributes:
        file: File, relative to the reported directory.
        what: Description of the fault.
    """

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of ``check``, if it was run.

    Attributes:
        held: Whether it established everything.
        text: Its output.
        seconds: Its duration.
        when: Its end, in UTC.
    """

    held: bool
    text: str
    seconds: float
    when: str


@dataclass(frozen=True, slots=True)
class ReportedObligation:
    """A safety obligation of a kernel and how it was settled."""

    kernel: str
    kind: str
    subject: str
    claim: str
    means: str
    solvers: str


@dataclass(frozen=True, slots=True)
class ReportedClaim:
    """The claim that a kernel computes its operator of the µGraph, as the evidence has it.

    Attributes:
        kernel: Name of the kernel.
        verdict: "realizes", "tested" for a kernel that was accepted although elements differ, or "not decided".
        reason: Reason for another verdict than "realizes".
        classes: Classes of blocks, one of each of which was evaluated.
        elements: Elements of results that were compared.
        points: Random points at which they agree.
        bits: Bits of the primes.
        roundings: Conversions of the kernel that are no operators of the µGraph.
    """

    kernel: str
    verdict: str
    reason: str = ""
    classes: int = 0
    elements: int = 0
    points: int = 0
    bits: int = 0
    roundings: tuple[str, ...] = ()

    @property
    def badge(self) -> str:
        """Return the text of the badge that a table of launches shows."""
        if self.verdict != "realizes":
            return self.verdict
        elements, classes = self._compared
        return f"realizes: {elements}, {classes}"

    @property
    def _compared(self) -> tuple[str, str]:
        """Return the numbers of elements and of classes in words."""
        elements = f"{self.elements:,} element{'s' if self.elements != 1 else ''}"
        return elements, f"{self.classes:,} class{'es' if self.classes != 1 else ''} of blocks"

    @property
    def sentence(self) -> str:
        """Return what the claim says, in a sentence."""
        if self.verdict != "realizes":
            return f"Kernel {self.kernel} is not proved to compute its µGraph: {self.verdict}: {self.reason}."
        found = " of ".join(self._compared)
        where = f"{self.points} random points of fields with primes of {self.bits} bits"
        return f"Kernel {self.kernel} computes its operator of the µGraph: {found} agree at {where}."


@dataclass(frozen=True, slots=True)
class SourceLines:
    """Lines of a source that belong to parts of a µGraph.

    Attributes:
        first, last: First and last line in the file.
        parts: Id and label of each node of the µGraph; first the nodes that the lines are named after, then the nodes
            that they compute on the way.
        does: Description of the lines.
    """

    first: int
    last: int
    parts: tuple[tuple[str, str], ...]
    does: str


@dataclass(frozen=True, slots=True)
class ReportedKernel:
    """A launch of a generated kernel, or of a library's product.

    Attributes:
        name: Name in the source, or "cuBLAS".
        operator: Number of the operator that it computes; -1 copies a value to an output.
        grid, threads, shared_bytes: Launch dimensions.
        registers, stack: Registers and stack bytes by architecture, where a compiler has reported them.
        occupancy: Share of a multiprocessor's threads that can be resident, by architecture, computed from these
            figures.
        source: File of its text.
        first, last: Its lines there; 0 where they are not known.
        lines: Lines of parts of the µGraph; empty where not known.
    """

    name: str
    operator: int
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    registers: tuple[tuple[str, int], ...] = ()
    stack: tuple[tuple[str, int], ...] = ()
    occupancy: tuple[tuple[str, float], ...] = ()
    source: str = ""
    first: int = 0
    last: int = 0
    lines: tuple[SourceLines, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportedAssembly:
    """PTX or SASS of a source, compiled for the report; it is no evidence.

    Attributes:
        source: File of the source.
        language: "ptx" or "sass".
        arch: Architecture that it was compiled for.
        text: The text.
        sources: Line of the source of each line; 0 where there is none.
        lines: Lines of parts of the µGraph.
        missing: Why there is no text; empty otherwise.
    """

    source: str
    language: str
    arch: str
    text: str
    sources: tuple[int, ...] = ()
    lines: tuple[SourceLines, ...] = ()
    missing: str = ""

    @property
    def name(self) -> str:
        """Return the name of its file, as in kernel.sass."""
        return f"{self.source.removesuffix('.cu')}.{self.language}"


@dataclass(frozen=True, slots=True)
class Code:
    """Generated kernels of a candidate.

    Attributes:
        directory: Directory, relative to the run.
        own: Whether they compute the candidate's own µGraph, and not another form of it.
        kernels: Kernels in launch order.
        sources: Files and their texts.
        obligations: All of their safety obligations.
        form: The other form that they compute; None where it is the candidate's own µGraph, or cannot be read.
        assembly: PTX and SASS of the sources, if the report was asked for them.
        claims: For each generated kernel, the claim that it computes its operator of the µGraph.
    """

    directory: str
    own: bool
    kernels: tuple[ReportedKernel, ...]
    sources: tuple[tuple[str, str], ...]
    obligations: tuple[ReportedObligation, ...]
    form: KernelGraph | None = None
    assembly: tuple[ReportedAssembly, ...] = ()
    claims: tuple[ReportedClaim, ...] = ()

    @property
    def claim_of(self) -> dict[str, ReportedClaim]:
        """Return the claims by the names of the kernels."""
        return {one.kernel: one for one in self.claims}

    @property
    def drawing(self) -> str:
        """Return the name of the drawing of their µGraph; empty where it is not drawn."""
        return "candidate" if self.own else "form" if self.form is not None else ""


@dataclass(frozen=True, slots=True)
class ReportedTriton:
    """A Triton file beside the run, which is tested and not proved.

    Attributes:
        name: Name of the file.
        text: Text of the file.
        lines: Lines of parts of a µGraph; empty where not known.
        form: The µGraph of these lines, where it is not the candidate's own.
    """

    name: str
    text: str
    lines: tuple[SourceLines, ...] = ()
    form: KernelGraph | None = None


@dataclass(frozen=True, slots=True)
class MeasuredFigures:
    """Figures recorded by a device: microseconds, largest error over its tolerance, and results of Triton files."""

    device: str
    us: float | None
    low: float | None
    high: float | None
    calls: int
    replays: int
    numerics: str
    ratio: float | None
    triton: str = ""


#: Name of the baseline kernel that only reads the inputs.
READ_ONLY: Final = "reading the inputs alone"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Baseline that a candidate was timed beside: microseconds, or why there are none."""

    name: str
    us: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Baselines:
    """Times of baselines from one record beside the run; only the candidate's name ties it to these kernels.

    Attributes:
        command: Command that made the record, by its own statement; empty where missing.
        device: Measured GPU, where the record names it.
        ours: Microseconds of this candidate in the same measurement.
        timed: The baselines.
    """

    command: str
    device: str
    ours: float | None
    timed: tuple[Baseline, ...]


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Table of figures that ``reproduce`` has written.

    Attributes:
        title: Title of the table.
        note: Method of the measurement, in sentences.
        heads: Heads of the columns.
        rows: Cells as shown.
    """

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class ReportedCertificate:
    """The abstract expression of a tensor, as the evidence names it.

    Attributes:
        tensor: Name of the tensor.
        expression: Its abstract expression.
        output: Number of the program's output that it is a part of.
        solvers: Recorded answers of the solvers to the negation.
    """

    tensor: str
    expression: str
    output: int = 0
    solvers: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the search on the way to a candidate.

    Attributes:
        level: "unit", a level of the µGraph, "search", "rank" or "proof".
        node: Id of the node of the candidate that it is about; empty for the whole of it.
        what: What was decided, in a sentence.
        why: What the records say about the reason, in sentences; empty where they say nothing.
    """

    level: str
    node: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class SpecialValues:
    """Comparison of a candidate with the program at special values, as recorded; see ``records.SpecialRecord``."""

    draws: int
    elements: int
    undefined: int
    overflows: int


@dataclass(frozen=True, slots=True)
class ReportedCandidate:
    """A reported candidate, or a cover of a whole program.

    Attributes:
        rank, digest, directory: Rank, digest and directory of the candidate.
        verdict: "equivalent" or "probable", as the evidence says.
        basis: Basis of the verdict in this report.
        graph: The µGraph; None where it cannot be read.
        kernels, estimated_us, rounding: Figures from the summary.
        outside: Scales at which its estimated rounding error is outside of tolerance.
        special: Its comparison at special values; None where there is none.
        proof: The replayed proof; None where there is none, or it is refused.
        proof_ms: Milliseconds of the solvers on its obligations, as the evidence says.
        steps, lemmas, proof_bytes: Size of the proof as recorded.
        certificates: Abstract expressions of its tensors.
        decisions: Decisions of the search that led to it; empty where no search is recorded.
        conditions, added: Side conditions from the evidence.
        code, measured: Built kernels and their measurement, where they exist.
        triton: Its Triton file beside the run, where there is one.
        peers: Baselines that it was timed beside, where a record beside the run has them.
        remarks: Further remarks, in sentences.
        faults: Parts of the evidence that do not hold.
    """

    rank: int
    digest: str
    directory: str
    verdict: str
    basis: Basis
    graph: KernelGraph | None
    kernels: int
    estimated_us: float
    rounding: float | None = None
    outside: tuple[float, ...] = ()
    special: SpecialValues | None = None
    proof: ReplayedProof | None = None
    proof_ms: float = 0.0
    steps: int = 0
    lemmas: int = 0
    proof_bytes: int = 0
    certificates: tuple[ReportedCertificate, ...] = ()
    decisions: tuple[Decision, ...] = ()
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    code: Code | None = None
    measured: MeasuredFigures | None = None
    triton: ReportedTriton | None = None
    peers: Baselines | None = None
    remarks: tuple[str, ...] = ()
    faults: tuple[EvidenceFault, ...] = ()

    @property
    def us(self) -> float | None:
        """Return the measured microseconds, where they are recorded."""
        return self.measured.us if self.measured else None

    @property
    def expressions(self) -> dict[str, str]:
        """Return the abstract expressions by tensor."""
        return {one.tensor: one.expression for one in self.certificates}


@dataclass(frozen=True, slots=True)
class Example:
    """A counterexample as a worked example.

    Attributes:
        inputs: Description of each input.
        output, index: Position at which the outputs differ.
        expected, got: The two values.
    """

    inputs: tuple[str, ...]
    output: int
    index: tuple[int, ...]
    expected: float
    got: float


@dataclass(frozen=True, slots=True)
class ReportedVerdict:
    """A graph that was given to ``verify``, or a candidate that a run rejected.

    Attributes:
        name: Its position in the file, or its digest.
        verdict: equivalent, probable, different, unknown; or the kind of rejection.
        reason: Reason for the verdict.
        graph: The graph; None where none is kept.
        example: The counterexample.
        proof: The replayed proof of an equivalent graph.
        basis: Basis of the verdict in this report.
    """

    name: str
    verdict: str
    reason: str
    graph: KernelGraph | None = None
    example: Example | None = None
    proof: ReplayedProof | None = None
    basis: Basis = Basis.RECORDED
    seconds: float | None = None
    faults: tuple[EvidenceFault, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkBound:
    """Least work of the program, and the rates of the target; no estimate is bounded by it, see ``Search.bound_us``.

    Attributes:
        target: Name of the target.
        flops: Floating-point operations of the program's products.
        bytes: Bytes of its inputs and outputs.
        bandwidth_gbs, tensor_tflops: Rates of the target.
    """

    target: str
    flops: int
    bytes: int
    bandwidth_gbs: float
    tensor_tflops: float

    @property
    def read_us(self) -> float:
        """Return the microseconds in which the target moves these bytes."""
        return self.bytes / self.bandwidth_gbs / 1e3

    @property
    def compute_us(self) -> float:
        """Return the microseconds in which its tensor cores do these operations."""
        return self.flops / self.tensor_tflops / 1e6


@dataclass(frozen=True, slots=True)
class ReportedPart:
    """A subgraph of a whole program.

    Attributes:
        operators: Numbers of its operators in the program.
        run: Its search's directory, or empty.
        digest: Digest of the candidate that replaces it, or empty.
        report: Report of that candidate; None where its operators stay or it cannot be read.
        kernels, estimated_us, unfused_us: Figures of its replacement, and estimate of its own operators.
    """

    operators: tuple[int, ...]
    run: str
    digest: str
    kernels: int
    estimated_us: float
    unfused_us: float
    report: ReportedCandidate | None = None
    program: KernelGraph | None = None


@dataclass(frozen=True, slots=True)
class ReportModel:
    """All values shown of one directory.

    Attributes:
        kind: "run", "whole", "candidate", "verdicts" or "reproduce".
        name: Name of the program.
        source: The user's file, as the evidence says.
        place: The directory, as it was given.
        program: The program; None where it cannot be read.
        candidates: Candidates, best first.
        parts: Subgraphs of the best cover of a whole program.
        judged: Graphs given to ``verify``, and candidates that were rejected.
        rejected: Number of rejected candidates, where ``judged`` does not have all.
        search: Search statistics; None where no search is recorded; for a whole program, sums over its searches.
        searches: Searches for the subgraphs of a whole program.
        floor: Least work of the program; None where the target is not known.
        unfused: Kernels and estimated microseconds of the unfused program, where recorded.
        made: Versions and host of the run.
        tables: Tables of a directory of ``reproduce``.
        checked: Result of ``check``; None if it was not run.
        faults: Parts of the evidence that do not hold, or cannot be read.
        when: Time of the report, in UTC.
        version: Version of this package.
    """

    kind: str
    name: str
    source: str
    place: str
    program: KernelGraph | None
    candidates: tuple[ReportedCandidate, ...] = ()
    parts: tuple[ReportedPart, ...] = ()
    judged: tuple[ReportedVerdict, ...] = ()
    rejected: int = 0
    search: Search | None = None
    searches: tuple[PartSearch, ...] = ()
    floor: WorkBound | None = None
    unfused: tuple[int, float] | None = None
    made: tuple[tuple[str, str], ...] = ()
    tables: tuple[FigureTable, ...] = ()
    checked: CheckResult | None = None
    faults: tuple[EvidenceFault, ...] = ()
    when: str = ""
    version: str = field(default="")

    @property
    def best(self) -> ReportedCandidate | None:
        """The first candidate, if there is one."""
        return self.candidates[0] if self.candidates else None

    @property
    def broken(self) -> tuple[EvidenceFault, ...]:
        """Return all faults, those of the candidates included."""
        below = [fault for one in self.candidates for fault in one.faults]
        below += [fault for graph in self.judged for fault in graph.faults]
        below += [fault for part in self.parts if part.report for fault in part.report.faults]
        return tuple(dict.fromkeys((*self.faults, *below)))


# --- JSON ------------------------------------------------------------------------------------------------------------


#: Name of the JSON format.
SCHEMA: Final = "mirage_formal.report"
VERSION: Final = 1
_FORMULA: Final = Formula.__args__


def report_values(report: ReportModel) -> dict[str, Any]:
    """Return a report as JSON values: formulas as text, µGraphs as in mugraph.json, no fields without a repr."""
    return {"schema": SCHEMA, "version": VERSION, **_plain(report)}


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return str(value) if isinstance(value, str) else value
        case KernelGraph():
            return json.loads(to_json(value))
        case tuple():
            return [_plain(one) for one in value]
        case _ if isinstance(value, _FORMULA):
            return formula_text(value)
        case AuditRecord():
            return msgspec.to_builtins(value)
        case _ if is_dataclass(value):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    raise TypeError(f"expected a value of the model, got {type(value).__name__}")

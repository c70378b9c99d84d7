"""Model of a run's report: frozen values, the same for every printer.

Every value was read from evidence. ``Basis`` says of each claim whether it was established while the report was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.report.proofs.values import Proof
from mirage_formal.report.search_view import PartSearch, Search


class Basis(StrEnum):
    """Basis of a shown claim."""

    #: ``check`` established it while this report was made.
    CHECKED = "checked"
    #: It is what the evidence says; the report did not have it checked.
    RECORDED = "recorded"
    #: Something of it does not hold.
    FAILS = "fails"

    @property
    def words(self) -> str:
        """Return the text that is shown for the basis."""
        return {
            Basis.CHECKED: "established by check in this invocation",
            Basis.RECORDED: "from evidence, not checked here",
            Basis.FAILS: "does not hold",
        }[self]

    @property
    def short(self) -> str:
        """As it is shown in a table."""
        return {Basis.CHECKED: "established", Basis.RECORDED: "not checked here", Basis.FAILS: "does not hold"}[self]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something of the evidence that does not hold or cannot be read.

    Attributes:
        file: Relative to what was given.
        what: What is wrong.
    """

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of ``check``, if it was run.

    Attributes:
        held: Whether it established everything.
        text: What it printed.
        seconds: How long it took.
        when: When it ended, in UTC.
    """

    held: bool
    text: str
    seconds: float
    when: str


@dataclass(frozen=True, slots=True)
class Obligation:
    """A safety obligation of a kernel and how it was settled."""

    kernel: str
    kind: str
    subject: str
    claim: str
    means: str
    solvers: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a source that belong to parts of a µGraph.

    Attributes:
        first, last: In the file.
        parts: Nodes of the µGraph, as pictures and links name them, and what each is called; first what the lines are
            named after, then what they compute on the way.
        does: What they do, in words.
    """

    first: int
    last: int
    parts: tuple[tuple[str, str], ...]
    does: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of generated code, or of a library's product.

    Attributes:
        name: In the source, or "cuBLAS".
        operator: Number of the operator that it computes; -1 copies a value to an output.
        grid, threads, shared_bytes: Launch dimensions.
        registers, stack: By architecture, where a compiler has reported them.
        occupancy: Share of a multiprocessor's threads that can be resident, by architecture, as these figures give it.
        source: File of its text.
        first, last: Its lines there; 0 where they are not known.
        lines: Those that belong to parts of the µGraph; empty where that is not known.
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
    lines: tuple[Lines, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """Generated kernels of a candidate.

    Attributes:
        directory: Relative to the run.
        own: Whether they compute the candidate's own µGraph, and not another form of it.
        kernels: In the order of their launches.
        sources: Files and their texts.
        obligations: All of them.
        form: The other form that they compute; None where it is the candidate's own µGraph, or cannot be read.
    """

    directory: str
    own: bool
    kernels: tuple[Kernel, ...]
    sources: tuple[tuple[str, str], ...]
    obligations: tuple[Obligation, ...]
    form: KernelGraph | None = None


@dataclass(frozen=True, slots=True)
class TritonText:
    """A Triton file beside the run, which is tested and not proved.

    Attributes:
        name: Of the file.
        text: What stands in it.
        lines: Those that belong to parts of a µGraph; empty where that is not known.
        form: The µGraph that these are of, where it is not the candidate's own.
    """

    name: str
    text: str
    lines: tuple[Lines, ...] = ()
    form: KernelGraph | None = None


@dataclass(frozen=True, slots=True)
class Measured:
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


#: What a kernel is called as a peer that only reads the inputs.
READ_ONLY: Final = "reading the inputs alone"


@dataclass(frozen=True, slots=True)
class Peer:
    """Baseline that a candidate was timed beside: microseconds, or why there are none."""

    name: str
    us: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Peers:
    """Times of one record that lies beside the run; nothing ties it to these kernels but its name.

    Attributes:
        command: What made the record, as it says itself; empty where it does not.
        device: What was measured on, where the record says so.
        ours: Microseconds of this candidate in the same measurement.
        timed: The others.
    """

    command: str
    device: str
    ours: float | None
    timed: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that ``reproduce`` has written.

    Attributes:
        title: What they are.
        note: How they were measured, in sentences.
        heads: Of the columns.
        rows: Cells as they are shown.
    """

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The abstract expression of a tensor, as the evidence names it."""

    tensor: str
    expression: str


@dataclass(frozen=True, slots=True)
class Special:
    """Comparison of a candidate with the program at special values, as recorded; see ``records.SpecialRecord``."""

    draws: int
    elements: int
    undefined: int
    overflows: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reported candidate, or a cover of a whole program.

    Attributes:
        rank, digest, directory: Where it stands.
        verdict: "equivalent" or "probable", as the evidence says.
        basis: What the verdict rests on here.
        graph: The µGraph; None where it cannot be read.
        kernels, estimated_us, rounding: As the summary has them.
        outside: Scales at which its foreseen numerics are outside of tolerance.
        special: What it was at special values; None where nobody looked.
        proof: Replayed; None where there is none, or it is refused.
        proof_ms: Milliseconds of the solvers on its obligations, as the evidence says.
        steps, lemmas, proof_bytes: Size of the proof as recorded.
        certificates: Abstract expressions of its tensors.
        conditions, added: As the evidence has them.
        code, measured: Where kernels were built and run.
        triton: Its Triton file beside the run, where there is one.
        peers: What it was timed beside, where a record beside the run says so.
        remarks: What there is to know beside, in sentences.
        faults: What does not hold.
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
    special: Special | None = None
    proof: Proof | None = None
    proof_ms: float = 0.0
    steps: int = 0
    lemmas: int = 0
    proof_bytes: int = 0
    certificates: tuple[Certificate, ...] = ()
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    code: Code | None = None
    measured: Measured | None = None
    triton: TritonText | None = None
    peers: Peers | None = None
    remarks: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A counterexample as a worked example.

    Attributes:
        inputs: What each input is, in words.
        output, index: Where the outputs differ.
        expected, got: The two values.
    """

    inputs: tuple[str, ...]
    output: int
    index: tuple[int, ...]
    expected: float
    got: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A graph that was given to ``verify``, or a candidate that a run rejected.

    Attributes:
        name: Its place in the file, or its digest.
        verdict: equivalent, probable, different, unknown; or the kind of rejection.
        reason: Why.
        graph: The graph; None where none is kept.
        example: The counterexample.
        proof: Replayed, of an equivalent one.
        basis: What the verdict rests on here.
    """

    name: str
    verdict: str
    reason: str
    graph: KernelGraph | None = None
    example: Example | None = None
    proof: Proof | None = None
    basis: Basis = Basis.RECORDED
    seconds: float | None = None
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower bound of the program's work, and the rates of the target.

    Attributes:
        target: Its name.
        flops: Floating-point operations of the program's products.
        bytes: Bytes of its inputs and outputs.
        bandwidth_gbs, tensor_tflops: Of the target.
    """

    target: str
    flops: int
    bytes: int
    bandwidth_gbs: float
    tensor_tflops: float

    @property
    def read_us(self) -> float:
        """Microseconds in which the target moves these bytes."""
        return self.bytes / self.bandwidth_gbs / 1e3

    @property
    def compute_us(self) -> float:
        """Microseconds in which its tensor cores do these operations."""
        return self.flops / self.tensor_tflops / 1e6


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a whole program.

    Attributes:
        operators: Numbers of its operators in the program.
        run: Its search's directory, or empty.
        digest: Of the candidate in its place, or empty.
        report: Of that candidate; None where its operators stay or it cannot be read.
        kernels, estimated_us, unfused_us: Of what takes its place, and of its operators.
    """

    operators: tuple[int, ...]
    run: str
    digest: str
    kernels: int
    estimated_us: float
    unfused_us: float
    report: Candidate | None = None
    program: KernelGraph | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that is shown of one directory.

    Attributes:
        kind: "run", "whole", "candidate", "verdicts" or "reproduce".
        name: Of the program.
        source: The user's file, as the evidence says.
        place: The directory, as it was given.
        program: None where it cannot be read.
        candidates: Best first.
        parts: Of the best cover of a whole program.
        judged: Graphs given to ``verify``, and candidates that were rejected.
        rejected: How many were rejected, where they are more than ``judged`` has.
        search: None where no search is recorded; of a whole program, the sums of its parts' searches.
        searches: Those of the parts of a whole program.
        floor: None where the target is not known.
        unfused: Kernels and estimated microseconds of the program's operators one by one, where recorded.
        made: Facts about how it was made: versions and host.
        tables: Of a directory of ``reproduce``.
        checked: What ``check`` said; None if it was not asked.
        faults: What does not hold, or cannot be read.
        when: When the report was made, in UTC.
        version: Of this package.
    """

    kind: str
    name: str
    source: str
    place: str
    program: KernelGraph | None
    candidates: tuple[Candidate, ...] = ()
    parts: tuple[Part, ...] = ()
    judged: tuple[Judged, ...] = ()
    rejected: int = 0
    search: Search | None = None
    searches: tuple[PartSearch, ...] = ()
    floor: Floor | None = None
    unfused: tuple[int, float] | None = None
    made: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    checked: Checked | None = None
    faults: tuple[Fault, ...] = ()
    when: str = ""
    version: str = field(default="")

    @property
    def best(self) -> Candidate | None:
        """The first candidate, if there is one."""
        return self.candidates[0] if self.candidates else None

    @property
    def broken(self) -> tuple[Fault, ...]:
        """Everything that does not hold, of the candidates too."""
        below = [fault for one in self.candidates for fault in one.faults]
        below += [fault for graph in self.judged for fault in graph.faults]
        below += [fault for part in self.parts if part.report for fault in part.report.faults]
        return tuple(dict.fromkeys((*self.faults, *below)))

"""Safety obligations and their findings, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirage_formal.codegen.safety.arith import Query, query_to_smt2
from mirage_formal.graph.verdict import NoTruthValue, Unknown
from mirage_formal.logic.session import SolverResult


class ObligationKind(StrEnum):
    """Kinds of safety obligations: all obligations of a kernel have to hold."""

    #: Statements fit together: names, types, sizes, collectives in uniform control flow, countable copy groups; a wait
    #: for the launch before is the first one.
    STRUCTURE = "structure"
    #: Integer intermediates in 0..2^31-1, divisors not 0.
    ARITHMETIC = "arithmetic"
    #: An access lies within its buffer, register array or parameter.
    BOUNDS = "bounds"
    #: A vector or asynchronous access is aligned to its size.
    ALIGNMENT = "alignment"
    #: A condition called uniform is the same for all threads.
    UNIFORM = "uniform"
    #: Two accesses to shared memory that no barrier (or wait and barrier, or item) keeps apart do not meet.
    CONFLICT = "conflict"
    #: The bytes that a read of shared memory returns were last written through the same buffer: live buffers do not
    #: overlap.
    LIVE = "live"
    #: Items pass through a pipeline in order, with all their bytes, and nobody waits forever.
    ITEMS = "pipeline"
    #: Elements read from a register array were written before, by the same thread.
    ASSIGNMENT = "definite assignment"
    #: Two threads never write one element of a parameter.
    SINGLE_WRITER = "single writer"
    #: Every element of a written parameter is written.
    COVERAGE = "coverage"
    #: In a joined launch, every block arrives once at a counter that its group has, as often as the counter counts to.
    ARRIVAL = "arrival"
    #: Each block of a joined launch's second kernel is run once, and reads of the first one's results only what blocks
    #: of its own group wrote.
    HANDOVER = "handover"


class DischargeMethod(StrEnum):
    """The method by which an obligation was settled."""

    #: Names and types.
    FORM = "form"
    #: Bounds and divisors of expressions.
    INTERVAL = "interval"
    #: Mixed-radix digits.
    RADIX = "radix"
    #: All threads, blocks and iterations, one by one.
    ENUMERATION = "enumeration"
    SOLVER = "solver"


@dataclass(frozen=True, slots=True)
class DischargedObligation:
    """Answer that an obligation holds; ``means`` is the method that established it."""

    means: DischargeMethod


@dataclass(frozen=True, slots=True)
class ViolatedObligation:
    """The obligation does not hold.

    Attributes:
        means: The method that found it.
        model: The values at which it fails: ``tid`` (``tid~2`` for a second thread), ``bx``..., loop variables,
            ``index``; may be empty for faults of form.
        reason: An explanation in words.
    """

    means: DischargeMethod
    model: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UndecidedObligation:
    """The obligation is neither proved nor refuted; never accepted."""

    reason: str


Finding = DischargedObligation | ViolatedObligation | UndecidedObligation


@dataclass(frozen=True, slots=True)
class Obligation:
    """A property that a Program must have to be safe.

    Attributes:
        kind: Its kind.
        path: The statement, as ``0/2:for i/1`` (positions in bodies), or two joined by `` & ``.
        subject: The buffer, parameter, register array or variable.
        claim: The property, in words.
        query: The query that must be unsatisfiable; None where the obligation is settled by enumeration or form.
        finding: The finding without a solver; None where a solver must be asked.
    """

    kind: ObligationKind
    path: str
    subject: str
    claim: str
    query: Query | None = None
    finding: Finding | None = None

    @property
    def text(self) -> str:
        """Return the query in SMT-LIB 2.6, which must be unsatisfiable; empty if there is none."""
        return "" if self.query is None else query_to_smt2(self.query)


@dataclass(frozen=True, slots=True)
class DischargedObligations:
    """An obligation with its finding.

    Attributes:
        obligation: The obligation.
        finding: The finding.
        results: Results of solvers, empty if none was asked; shared by obligations of equal text.
        milliseconds: Time of settling it; 0 for repeated texts.
    """

    obligation: Obligation
    finding: Finding
    results: tuple[SolverResult, ...] = ()
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Safe(NoTruthValue):
    """Every obligation holds."""

    obligations: int


@dataclass(frozen=True, slots=True)
class Unsafe(NoTruthValue):
    """An obligation does not hold: the first one, with the values at which it fails."""

    obligation: Obligation
    model: tuple[tuple[str, int], ...]
    reason: str = ""


SafetyVerdict = Safe | Unsafe | Unknown


@dataclass(frozen=True, slots=True)
class SafetyReport:
    """All obligations of a Program.

    Attributes:
        program: Its name.
        verdict: Safe only if every obligation holds.
        discharged: The obligations with their findings, in order.
        milliseconds: Wall time of stating and settling all.
    """

    program: str
    verdict: SafetyVerdict
    discharged: tuple[DischargedObligations, ...]
    milliseconds: float

    @property
    def means(self) -> dict[str, int]:
        """Return the number of obligations settled by each method."""
        counts: dict[str, int] = {}
        for entry in self.discharged:
            match entry.finding:
                case DischargedObligation(means) | ViolatedObligation(means):
                    key = str(means)
                case UndecidedObligation():
                    key = "undecided"
            counts[key] = counts.get(key, 0) + 1
        return counts

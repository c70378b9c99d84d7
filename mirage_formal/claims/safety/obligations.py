"""Safety obligations and what became of them, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirage_formal.claims.safety.arith import Query, to_smt2
from mirage_formal.graph.verdict import NoTruth, Unknown
from mirage_formal.logic.session import SolverResult


class Kind(StrEnum):
    """Subject of an obligation."""

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
    #: Two accesses to shared memory that no barrier (or wait and barrier) keeps apart do not meet.
    CONFLICT = "conflict"
    #: What a read of shared memory sees was last written through the same buffer: live buffers do not overlap.
    LIVE = "live"
    #: What is read from a register array was written before, by the same thread.
    ASSIGNMENT = "definite assignment"
    #: Two threads never write one element of a parameter.
    SINGLE_WRITER = "single writer"
    #: Every element of a written parameter is written.
    COVERAGE = "coverage"


class Means(StrEnum):
    """How an obligation was settled."""

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
class Held:
    """The obligation holds."""

    means: Means


@dataclass(frozen=True, slots=True)
class Broken:
    """The obligation does not hold.

    Attributes:
        means: How that was found.
        model: Where it fails: ``tid`` (``tid~2`` for a second thread), ``bx``..., loop variables, ``index``; may be
            empty for faults of form.
        reason: In words.
    """

    means: Means
    model: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Neither; never accepted."""

    reason: str


Finding = Held | Broken | Undecided


@dataclass(frozen=True, slots=True)
class Obligation:
    """Something that must hold for a Program to be safe.

    Attributes:
        kind: What it is about.
        path: The statement, as ``0/2:for i/1`` (positions in bodies), or two joined by `` & ``.
        subject: The buffer, parameter, register array or variable.
        claim: What must hold, in words.
        query: The question that must have no answer; None where the obligation is settled by enumeration or form.
        finding: What is known without a solver; None where a solver must be asked.
    """

    kind: Kind
    path: str
    subject: str
    claim: str
    query: Query | None = None
    finding: Finding | None = None

    @property
    def text(self) -> str:
        """The query in SMT-LIB 2.6, which must be unsatisfiable; empty if there is none."""
        return "" if self.query is None else to_smt2(self.query)


@dataclass(frozen=True, slots=True)
class Discharged:
    """An obligation and what became of it.

    Attributes:
        obligation: The obligation.
        finding: What is known now.
        results: What solvers said, empty if none was asked; shared by obligations of equal text.
        milliseconds: Time of settling it; 0 for repeated texts.
    """

    obligation: Obligation
    finding: Finding
    results: tuple[SolverResult, ...] = ()
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Safe(NoTruth):
    """Every obligation holds."""

    obligations: int


@dataclass(frozen=True, slots=True)
class Unsafe(NoTruth):
    """An obligation does not hold: the first one, and where it fails."""

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
        discharged: In order.
        milliseconds: Wall time of stating and settling all.
    """

    program: str
    verdict: SafetyVerdict
    discharged: tuple[Discharged, ...]
    milliseconds: float

    @property
    def means(self) -> dict[str, int]:
        """How many obligations were settled by which means."""
        counts: dict[str, int] = {}
        for entry in self.discharged:
            match entry.finding:
                case Held(means) | Broken(means):
                    key = str(means)
                case Undecided():
                    key = "undecided"
            counts[key] = counts.get(key, 0) + 1
        return counts

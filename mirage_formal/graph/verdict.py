"""Verdict about a candidate: a closed union of values, never a bool."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_formal.graph.counterexample import Counterexample
from mirage_formal.graph.graph import KernelGraph


class NoTruthValue:
    """Base class of verdicts: asking for their truth value is a bug."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise TypeError(f"{type(self).__name__} has no truth value; match on the verdict")


@dataclass(frozen=True, slots=True)
class Equivalent(NoTruthValue):
    """Verdict: proved equal over the reals, for all inputs on which the conditions hold.

    Attributes:
        proof: The proof object (docs/proof.md), which ``check`` replays.
        conditions: Side conditions under which both programs are defined: divisors that are not zero, radicands that
            are not negative. Some input met them all, as far as float64 can tell.
        added: Those of the candidate that the program does not have.
    """

    proof: bytes
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probable(NoTruthValue):
    """Verdict: agreed on random points of a finite field.

    Attributes:
        rounds: Independent draws that agreed.
        bound_log2: log2 of the theorem's bound on the probability that different programs agree on all draws; None
            where the theorem gives no bound below 1 (vacuous) or does not apply.
        reason: The reason for a missing bound, or empty.
    """

    rounds: int
    bound_log2: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Different(NoTruthValue):
    """Verdict: refuted, because an output element differs at a point.

    Attributes:
        seed: Reproduces the point: of the fingerprint, or of the search for the counterexample.
        output: Number of the first output that differs.
        index: Its first element that differs.
        expected: That element of the program: a residue modulo p, or float64 where there is a counterexample.
        got: That element of the candidate.
        counterexample: Small inputs on which the two differ in float64, if such inputs were found.
    """

    seed: int
    output: int
    index: tuple[int, ...]
    expected: float
    got: float
    counterexample: Counterexample | None = None


@dataclass(frozen=True, slots=True)
class Unknown(NoTruthValue):
    """Verdict: neither shown nor refuted; never accepted."""

    reason: str


Verdict = Equivalent | Probable | Different | Unknown


@dataclass(frozen=True, slots=True)
class Candidate:
    """A µGraph that a search engine proposes for a program, not yet verified."""

    graph: KernelGraph
    engine: str
    #: The program and this candidate at small extents (equal extents stay equal, distinct ones distinct), if the engine
    #: knows the candidate's structure; the search-time fingerprint runs there.
    scaled: tuple[KernelGraph, KernelGraph] | None = None

"""Audit of an engine's pruning by z3: a sample of its decisions, asked under the axioms of ``axioms/``.

An engine decides by an algebra of its own whether a tensor's expression may be part of the program's. The axioms are
the definition of that question (Wu et al., OSDI 2025, section 4.3), and z3 answers it for as many kept as pruned
decisions, drawn at random. A contradiction is a fault of the engine or an axiom that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache, partial
from math import floor, log
from random import Random
from typing import Final, TypeVar

from msgspec import Struct

from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice, axioms_in_force
from mirage_formal.logic.session import AxiomSession, SubexpressionAnswer
from mirage_formal.logic.terms import Expr

T = TypeVar("T")

#: Decisions of an engine for which one is drawn. A decision takes about 20 us, a question about 8 ms: docs/proof.md
#: ("Audit of pruning") has the measurements. So the audit takes less than a tenth of the search.
DECISIONS_PER_QUESTION: Final = 5_000
#: Of the decisions that are asked for, one of so many is asked about however short the search is.
SHARE_IN_ANY_CASE: Final = 25
#: z3's limit of resources for a question, which does not depend on the machine. Thirty times as much has decided no
#: further question (docs/proof.md).
QUESTION_RESOURCES: Final = 20_000
#: Axioms that move a factor into a sum whether or not the factor has the index of the sum.
INDEX_BLIND_AXIOMS: Final = frozenset({"sum-mul", "sum-div"})


class AuditFinding(Enum):
    """z3's finding about one decision.

    Attributes:
        AGREED: Kept, and the axioms prove it part of the program; or pruned, and they refute that.
        FINER: Pruned, and only the axioms that forget indices prove it part of the program.
        UNKNOWN: z3 decides nothing within its limit.
        CONTRADICTED: Kept although the axioms refute it, or pruned although axioms that respect indices prove it.
    """

    AGREED = "agreed"
    FINER = "finer"
    UNKNOWN = "unknown"
    CONTRADICTED = "contradicted"


class PruningDecision(Struct, frozen=True):
    """Decision of an engine about a tensor.

    Attributes:
        kept: Whether the engine kept it.
        expression: The tensor's abstract expression.
        target: The program's.
        indexed: Whether the variables and extents of both name the indices, and the engine's decision respects them.
    """

    kept: bool
    expression: Expr
    target: Expr
    indexed: bool


class DecisionSample:
    """Uniform samples of the kept and of the pruned decisions of one unit of work (reservoirs, Li's algorithm L).

    Args:
        size: The number of decisions to draw, half of them kept ones; 0 draws none.
        seed: Seed of the draw; the same seed draws the same decisions of the same unit.
    """

    def __init__(self, size: int, seed: str) -> None:
        self._size = size
        self._random = Random(f"asked {seed}")
        self._reservoirs = {
            True: _Reservoir(size - size // 2, Random(f"kept {seed}")),
            False: _Reservoir(size // 2, Random(f"pruned {seed}")),
        }

    def offer(self, kept: bool, decision: Callable[[], PruningDecision]) -> None:
        """Count a decision and, if it is drawn, keep it.

        Args:
            kept: Whether the engine kept the tensor.
            decision: Called if it is in the sample in the end: most of what is drawn is not.
        """
        self.offer_all(kept, (decision,), _called)

    def offer_all(self, kept: bool, tensors: Sequence[T], express: Callable[[T], PruningDecision]) -> None:
        """Count decisions, one after another, and keep those that are drawn.

        Args:
            kept: Whether the engine kept the tensors.
            tensors: The tensor of each decision.
            express: Called with the tensors of decisions that are in the sample in the end.
        """
        reservoir = self._reservoirs[kept]
        begin = reservoir.offered
        reservoir.offered = begin + len(tensors)
        while begin <= reservoir.next < reservoir.offered:
            reservoir.draw(partial(express, tensors[reservoir.next - begin]))

    def decisions(self) -> list[PruningDecision]:
        """Return drawn decisions: some in any case, and one more for ``DECISIONS_PER_QUESTION`` that were offered."""
        offered = sum(one.offered for one in self._reservoirs.values())
        limit = 1 + self._size // SHARE_IN_ANY_CASE + offered // DECISIONS_PER_QUESTION
        kept = self._draw(self._reservoirs[True], limit - limit // 2)
        return [*kept, *self._draw(self._reservoirs[False], limit - len(kept))]

    def _draw(self, reservoir: _Reservoir, size: int) -> list[PruningDecision]:
        """Return that many decisions of a reservoir at random: its first ones are not a uniform sample."""
        return [decision() for decision in self._random.sample(reservoir.drawn, min(size, len(reservoir.drawn)))]


def _called(decision: Callable[[], PruningDecision]) -> PruningDecision:
    return decision()


class _Reservoir:
    """Uniform sample of a stream whose length is not known: all but a logarithm of its items cost one comparison."""

    def __init__(self, size: int, random: Random) -> None:
        self.offered = 0
        self._size = size
        self._random = random
        self.drawn: list[Callable[[], PruningDecision]] = []
        self._weight = 1.0
        self.next = 0 if size else -1

    def draw(self, decision: Callable[[], PruningDecision]) -> None:
        """Keep a decision, and choose the position of the next one."""
        if len(self.drawn) < self._size:
            self.drawn.append(decision)
        else:
            self.drawn[self._random.randrange(self._size)] = decision
        if len(self.drawn) < self._size:
            self.next += 1
            return
        self._weight *= (1.0 - self._random.random()) ** (1 / self._size)
        skipped = floor(log(1.0 - self._random.random()) / log(1.0 - self._weight)) if self._weight < 1.0 else 0
        self.next += 1 + skipped


class PruningAudit(Struct, frozen=True):
    """Findings about a sample of decisions.

    Attributes:
        findings: One for each decision, in its order.
        contradictions: For each contradicted decision the question that z3 has answered, as SMT-LIB text.
        z3: z3's version.
    """

    findings: tuple[AuditFinding, ...]
    contradictions: tuple[str, ...]
    z3: str


def audit_decisions(decisions: Iterable[PruningDecision], choice: AxiomChoice = USUAL_AXIOMS) -> PruningAudit:
    """Ask z3 about pruning decisions under the axioms in force.

    Sound: nothing is pruned or accepted for it. UNKNOWN is counted separately and confirms nothing.
    """
    session = _session(choice)
    findings: list[AuditFinding] = []
    contradictions: list[str] = []
    for one in decisions:
        finding, without = _audit_one(session, one)
        findings.append(finding)
        if finding is AuditFinding.CONTRADICTED:
            contradictions.append(session.question_text(one.expression, one.target, without))
    return PruningAudit(tuple(findings), tuple(contradictions), session.version)


def _audit_one(session: AxiomSession, one: PruningDecision) -> tuple[AuditFinding, frozenset[str]]:
    """Return the finding about a decision, and the axioms that were left out of the question that decided it."""
    every: frozenset[str] = frozenset()
    match one.kept, session.ask_bounded(one.expression, one.target, QUESTION_RESOURCES, every):
        case (True, SubexpressionAnswer.PROVED) | (False, SubexpressionAnswer.REFUTED):
            return AuditFinding.AGREED, every
        case True, SubexpressionAnswer.REFUTED:
            return AuditFinding.CONTRADICTED, every
        case False, SubexpressionAnswer.PROVED:
            blind = INDEX_BLIND_AXIOMS if one.indexed else every
            exact = session.ask_bounded(one.expression, one.target, QUESTION_RESOURCES, blind)
            contradicted = exact is SubexpressionAnswer.PROVED
            return AuditFinding.CONTRADICTED if contradicted else AuditFinding.FINER, blind
        case _:
            return AuditFinding.UNKNOWN, every


def load_audit_solver(choice: AxiomChoice) -> None:
    """Load z3 with the axioms in force, as the first call of ``audit_decisions`` would."""
    _session(choice)


@lru_cache(maxsize=2)
def _session(choice: AxiomChoice) -> AxiomSession:
    return AxiomSession(axioms_in_force(choice))


__all__ = ["AuditFinding", "DecisionSample", "PruningAudit", "PruningDecision", "audit_decisions", "load_audit_solver"]

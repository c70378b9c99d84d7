"""What a run asks of its workers and what they answer, without the code that computes it.

The process that a user starts imports this module; ``tasks``, with the engines, numpy and the prover behind it, is
loaded where tasks are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirage_formal.records import RejectedKind, SolverRecord, UnitRecord, VerdictRecord
from mirage_formal.run.settings import Job
from mirage_formal.search.engine import Unit

if TYPE_CHECKING:
    from mirage_formal.check.equivalence import Obligation


@dataclass(frozen=True, slots=True)
class UnitTask:
    """Search one unit of a job; ``key`` is the run's."""

    job: Job
    key: str
    unit: Unit


@dataclass(frozen=True, slots=True)
class CandidateTask:
    """Do something about one candidate, given as ``serialize.encode`` wrote it."""

    job: Job
    graph: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """One tensor's certificate: see journal.CertificateRecord; ``text`` is the obligation."""

    tensor: str
    expression: str
    output: int
    text: str


@dataclass(frozen=True, slots=True)
class Uncertified:
    """A tensor whose expression is not known to be part of any output's."""

    tensor: str
    expression: str


@dataclass(frozen=True, slots=True)
class Proof:
    """An equivalence proof that the checker's kernel has replayed, and what the solvers have yet to refute for it."""

    data: bytes
    steps: int
    lemmas: int
    obligations: tuple[Obligation, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A candidate that the policy accepts.

    Attributes:
        verdict: Equivalent or probable.
        fingerprint: Its log as JSON; an equivalent candidate may have one without an answer.
        proof: Of an equivalent one.
    """

    verdict: VerdictRecord
    fingerprint: bytes
    proof: Proof | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that the policy does not accept, see journal.RejectedRecord."""

    kind: RejectedKind
    reason: str


def plan(job: Job) -> list[Unit]:
    """See ``tasks.plan``."""
    from mirage_formal.run import tasks

    return tasks.plan(job)


def search_unit(task: UnitTask) -> UnitRecord:
    """See ``tasks.search_unit``."""
    from mirage_formal.run import tasks

    return tasks.search_unit(task)


def certify(task: CandidateTask) -> list[Claim | Uncertified]:
    """See ``tasks.certify``."""
    from mirage_formal.run import tasks

    return tasks.certify(task)


def discharge_texts(texts: tuple[str, ...]) -> list[tuple[SolverRecord, SolverRecord]]:
    """See ``tasks.discharge_texts``."""
    from mirage_formal.run import tasks

    return tasks.discharge_texts(texts)


def verify_candidate(task: CandidateTask) -> Accepted | Rejected:
    """See ``tasks.verify_candidate``."""
    from mirage_formal.run import tasks

    return tasks.verify_candidate(task)

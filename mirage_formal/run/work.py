"""Tasks that a run sends to its workers, and their answers, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirage_formal.records import RejectedKind, SpecialRecord, VerdictRecord
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
class Standing:
    """Progress of a unit that is being searched: its counters so far, and pruned branches by reason."""

    states: int
    classes: int
    pruned: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CandidateTask:
    """Do something about one candidate, given as ``serialize.encode`` wrote it."""

    job: Job
    graph: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """One tensor's certificate: see records.CertificateRecord; ``text`` is the obligation."""

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
        special: What it was at special values; None if it was not evaluated.
    """

    verdict: VerdictRecord
    fingerprint: bytes
    proof: Proof | None
    special: SpecialRecord | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that the policy does not accept, see records.RejectedRecord."""

    kind: RejectedKind
    reason: str

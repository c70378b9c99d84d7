"""Picklable values of worker tasks: the arguments that a run sends, and the results that workers return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from mirage_formal.records import BoundRecord, RejectedKind, SpecialRecord, UnitRecord, VerdictRecord
from mirage_formal.run.settings import SearchJob
from mirage_formal.search.engine_interface import Unit

if TYPE_CHECKING:
    from mirage_formal.check.equivalence import MixedRadixObligation
    from mirage_formal.logic.added_axioms import AxiomChoice
    from mirage_formal.prove.abstract.pruning_audit import PruningDecision


class SearchPlan(Struct, frozen=True):
    """Plan of a search: its units, and the lower bounds of the estimates of all graphs for the program."""

    units: list[Unit]
    bounds: tuple[BoundRecord, ...]


class UnitTask(Struct, frozen=True):
    """Task to search one unit of a job.

    Attributes:
        job: The job.
        key: The key of the run.
        unit: The unit.
        questions: Number of its pruning decisions that z3 is asked about at most.
        separate_audit: Whether another task asks z3, so that the result is a ``SearchedUnit``.
    """

    job: SearchJob
    key: str
    unit: Unit
    questions: int
    separate_audit: bool = False


class SearchedUnit(Struct, frozen=True):
    """A searched unit whose pruning decisions z3 was not asked about.

    Attributes:
        record: Record of the unit; complete if there are no decisions.
        decisions: The decisions to ask about.
    """

    record: UnitRecord
    decisions: tuple[PruningDecision, ...]


class AuditTask(Struct, frozen=True):
    """Task to ask z3 about pruning decisions of a unit.

    Attributes:
        unit: Index of the unit.
        decisions: The decisions.
        choice: The axioms.
    """

    unit: int
    decisions: tuple[PruningDecision, ...]
    choice: AxiomChoice


class NextSearchTask(Struct, frozen=True):
    """Task to plan the search of a run that comes later, and to search it if it has one unit.

    Attributes:
        job: The job of that run.
        key: Its key.
        questions: Number of its pruning decisions that z3 is asked about at most.
    """

    job: SearchJob
    key: str
    questions: int


class NextSearch(Struct, frozen=True):
    """Result of a ``NextSearchTask``: the plan, and the record of the only unit; None if there are several.

    The plan is None if the engine refuses the program, which that run then finds itself.
    """

    plan: SearchPlan | None
    record: UnitRecord | None


class UnitProgress(Struct, frozen=True):
    """Progress of a unit that is being searched: its counters so far, and pruned branches by reason."""

    states: int
    classes: int
    pruned: Mapping[str, int]


class CandidateTask(Struct, frozen=True):
    """Task on one candidate, whose µGraph is encoded by ``graph.formats.json.encode``."""

    job: SearchJob
    graph: bytes


class RoundingTask(Struct, frozen=True):
    """Task to estimate the rounding error of a candidate."""

    candidate: CandidateTask


class BoundsTask(Struct, frozen=True):
    """Task to compute the lower bounds of the estimates of all graphs for a job's program."""

    job: SearchJob


class PreparationTask(Struct, frozen=True):
    """Task to prepare a worker for the verification of a job's candidates."""

    job: SearchJob


class CertificateClaim(Struct, frozen=True):
    """Certificate of one tensor, as in records.CertificateRecord; ``text`` is the SMT-LIB obligation."""

    tensor: str
    expression: str
    output: int
    text: str


class UncertifiedTensor(Struct, frozen=True):
    """A tensor whose expression is not known to be a subexpression of any output's."""

    tensor: str
    expression: str


class Proof(Struct, frozen=True):
    """An equivalence proof that the checker's proof kernel has replayed, and the obligations left to the solvers."""

    data: bytes
    steps: int
    lemmas: int
    obligations: tuple[MixedRadixObligation, ...]


class AcceptedCandidate(Struct, frozen=True):
    """A candidate that the policy accepts.

    Attributes:
        verdict: Equivalent or probable.
        fingerprint: Log of the fingerprint as JSON; that of an equivalent candidate may have no answer.
        proof: Proof of an equivalent candidate; None for a probable one.
        special: Record of its evaluation at special values; None if it was not evaluated.
    """

    verdict: VerdictRecord
    fingerprint: bytes
    proof: Proof | None
    special: SpecialRecord | None = None


class RejectedCandidate(Struct, frozen=True):
    """A candidate that the policy rejects, as in records.RejectedRecord."""

    kind: RejectedKind
    reason: str

"""Thin entry points of worker tasks, which import their implementation on the first call.

The parent process imports this module alone. Worker processes import ``tasks``, with the engines, NumPy and the prover,
when they run the first task.
"""

from __future__ import annotations

from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.records import AuditRecord, BoundRecord, SolverRecord, UnitRecord
from mirage_formal.run.settings import SearchJob
from mirage_formal.run.task_values import (
    AcceptedCandidate,
    AuditTask,
    BoundsTask,
    CandidateTask,
    CertificateClaim,
    NextSearch,
    NextSearchTask,
    PreparationTask,
    RejectedCandidate,
    RoundingTask,
    SearchedUnit,
    SearchPlan,
    UncertifiedTensor,
    UnitTask,
)
from mirage_formal.search.engine_interface import Unit
from mirage_formal.support.errors import MirageError


def plan(job: SearchJob) -> list[Unit]:
    """Call ``tasks.plan``: return the units of a job."""
    from mirage_formal.run import tasks

    return tasks.plan(job)


def bounds_of_estimates(task: BoundsTask) -> tuple[BoundRecord, ...]:
    """Call ``lower_bounds``: return the lower bounds of the estimates of all graphs for a job's program."""
    from mirage_formal.codegen.lower_bound import lower_bounds

    return lower_bounds(task.job.program, task.job.target)


def search_unit(task: UnitTask) -> UnitRecord:
    """Call ``tasks.search_unit``: return the record of one searched unit."""
    from mirage_formal.run import tasks

    return tasks.search_unit(task)


def audit_unit(task: AuditTask) -> AuditRecord:
    """Call ``tasks.audit_unit``: return z3's answers about pruning decisions of a unit."""
    from mirage_formal.run import tasks

    return tasks.audit_unit(task)


def search_next(task: NextSearchTask) -> NextSearch:
    """Plan the search of a later run, and search its unit if it has only one."""
    try:
        planned = SearchPlan(plan(task.job), bounds_of_estimates(BoundsTask(task.job)))
    except MirageError:
        return NextSearch(None, None)
    if len(planned.units) != 1:
        return NextSearch(planned, None)
    return NextSearch(planned, search_unit(UnitTask(task.job, task.key, planned.units[0], task.questions)))


#: A task of the search phase, and its result.
SearchTask = UnitTask | NextSearchTask | BoundsTask | PreparationTask | AuditTask
SearchResult = UnitRecord | SearchedUnit | NextSearch | tuple[BoundRecord, ...] | AuditRecord | float


def run_search_task(task: SearchTask) -> SearchResult:
    """Call the function of a task; a preparation is one of verification."""
    match task:
        case UnitTask(separate_audit=True):
            from mirage_formal.run import tasks

            return tasks.search_unit_only(task)
        case UnitTask():
            return search_unit(task)
        case AuditTask():
            return audit_unit(task)
        case BoundsTask():
            return bounds_of_estimates(task)
        case NextSearchTask():
            return search_next(task)
        case PreparationTask():
            from mirage_formal.run import tasks

            return tasks.prepare_verification(task)


def certify(task: CandidateTask) -> list[CertificateClaim | UncertifiedTensor]:
    """Call ``tasks.certify``: return a claim for each tensor of a candidate, or why it has no certificate."""
    from mirage_formal.run import tasks

    return tasks.certify(task)


def discharge_texts(texts: tuple[str, ...]) -> list[tuple[SolverRecord, SolverRecord]]:
    """Call ``tasks.discharge_texts``: return the answers of z3 and cvc5 to each obligation."""
    from mirage_formal.run import tasks

    return tasks.discharge_texts(texts)


def verify_candidate(task: CandidateTask) -> AcceptedCandidate | RejectedCandidate:
    """Call ``tasks.verify_candidate``: return whether a candidate is accepted, with the evidence."""
    from mirage_formal.run import tasks

    return tasks.verify_candidate(task)


def predict_rounding_error(task: RoundingTask) -> PredictedNumerics | None:
    """Call ``candidate_numerics.predict_rounding_error``: return the expected numerics of a candidate's kernels."""
    from mirage_formal.graph.formats.json import decode_graph
    from mirage_formal.run.verify.candidate_numerics import predict_rounding_error as predict

    return predict(task.candidate.job.program, decode_graph(task.candidate.graph))


#: A task of verification, and its result.
VerificationTask = CandidateTask | RoundingTask | AuditTask | tuple[str, ...]
VerificationResult = (
    AcceptedCandidate
    | RejectedCandidate
    | PredictedNumerics
    | AuditRecord
    | list[tuple[SolverRecord, SolverRecord]]
    | None
)


def run_verification_task(task: VerificationTask) -> VerificationResult:
    """Call the function of a task; ``discharge_texts`` for obligations."""
    match task:
        case CandidateTask():
            return verify_candidate(task)
        case RoundingTask():
            return predict_rounding_error(task)
        case AuditTask():
            return audit_unit(task)
        case tuple():
            return discharge_texts(task)

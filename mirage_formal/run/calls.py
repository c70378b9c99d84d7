"""What workers are asked to call, without the code that computes it.

The process that a user starts imports this module; ``tasks``, with the engines, numpy and the prover behind it, is
loaded where tasks are computed.
"""

from __future__ import annotations

from mirage_formal.claims.numerics.values import Foreseen
from mirage_formal.records import SolverRecord, UnitRecord
from mirage_formal.run.settings import Job
from mirage_formal.run.work import Accepted, CandidateTask, Claim, Rejected, Uncertified, UnitTask
from mirage_formal.search.engine import Unit


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


def foresee_candidate(task: CandidateTask) -> Foreseen | None:
    """See ``tasks.foresee_candidate``."""
    from mirage_formal.run import tasks

    return tasks.foresee_candidate(task)

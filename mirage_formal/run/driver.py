"""Driver of one search run: plan the search, search the units, rank, verify and write the run directory.

The driver decides everything from the units' records, taken in unit order. The number of workers, their order of
completion and interruptions therefore do not change a finished run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import nextafter
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack, cast

import msgspec

from mirage_formal.cache.lock import lock_directory
from mirage_formal.cache.search_store import evidence_of
from mirage_formal.codegen.cost import estimate
from mirage_formal.graph.formats.json import decode_graph, embed
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.logic.consistency import describe_choice
from mirage_formal.records import (
    CANDIDATES,
    CONTRADICTION_FILE,
    RUN_FILE,
    SUMMARY_FILE,
    AuditRecord,
    BoundRecord,
    CandidateRecord,
    ExhaustedRecord,
    RunRecord,
    SummaryRecord,
    UnitRecord,
    exhausted_record,
    key_of,
    open_sealed,
    seal_record,
    sha256,
    sum_audits,
    to_indented_json,
    write_atomic,
    write_files,
)
from mirage_formal.records.store_entry import EVIDENCE
from mirage_formal.run.candidate_verification import (
    CandidateEvidence,
    CandidateVerifier,
    PreparedWorker,
    verdict_of,
)
from mirage_formal.run.executors import make_executor
from mirage_formal.run.progress import RunPhase, Watch, ignore_progress
from mirage_formal.run.progress.counts import RunCounters
from mirage_formal.run.progress.times import SearchClock
from mirage_formal.run.ranking import highest_reported_estimate, rank
from mirage_formal.run.result_cache.cache_lookup import RecalledEntry, claim_entry
from mirage_formal.run.result_cache.stored_reports import move_replay, report_of
from mirage_formal.run.results.result import Result
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import (
    Job,
    SearchJob,
    Settings,
    TimeLimits,
    display_path,
    escape_undecodable,
    host,
    identity,
    make_job,
    preprocess_job,
    space_fields,
    versions,
)
from mirage_formal.run.task_entry_points import (
    SearchResult,
    SearchTask,
    audit_unit,
    bounds_of_estimates,
    plan,
    run_search_task,
)
from mirage_formal.run.task_values import (
    AuditTask,
    BoundsTask,
    NextSearch,
    NextSearchTask,
    PreparationTask,
    SearchedUnit,
    UnitProgress,
    UnitTask,
)
from mirage_formal.run.verify.unit_audits import UnitAudits
from mirage_formal.run_directory.overwrite import clear_earlier_search
from mirage_formal.run_directory.run_writer import RunStore
from mirage_formal.search.engine_interface import Unit, list_incompleteness
from mirage_formal.support.errors import RunError, WorkerError
from mirage_formal.support.guard import keep_results_on_stop
from mirage_formal.workers.dispatch import Executor, TaskDone, TaskFailed, TaskOverdue

Status = Literal["complete", "interrupted", "time-limit"]
_PLAN_LIMIT_S: Final = 600.0


class RunArguments(TypedDict, total=False):
    """Optional arguments of a run, beside program, settings and directory.

    Attributes:
        name: Name of the program.
        source: The user's file.
        watch: Receives progress.
        executor: Computes the tasks, and may be used for other runs afterwards; without one, workers are started as
            the settings say.
        ahead: Searches of later runs, for workers that this run's search leaves idle.
    """

    name: str
    source: str
    watch: Watch
    executor: Executor[Any] | None
    ahead: NextSearches


@dataclass(slots=True)
class NextSearches:
    """Searches of later runs that idle workers compute during earlier ones.

    Attributes:
        propose: Returns the tasks, next run first; it is called when a run leaves a worker idle.
        found: Outcomes by the job of the run.
    """

    propose: Callable[[], list[NextSearchTask]] = list
    found: dict[SearchJob, TaskDone[NextSearch]] = field(default_factory=dict)


def next_search_task(program: KernelGraph, settings: Settings) -> NextSearchTask:
    """Return the task of the search that ``run_search`` would make.

    Raises:
        MirageError: As in ``search_program``.
    """
    job = make_job(program, settings)
    return NextSearchTask(preprocess_job(job), key_of(identity(job)), settings.audit)


@contextmanager
def open_executor(settings: Settings, about: RunArguments, out: Path) -> Iterator[Executor[Any]]:
    """Yield the executor given in ``about``, or one that is started for this run and closed after it."""
    given = about.get("executor")
    started = nullcontext(given) if given is not None else make_executor(settings)
    with keep_results_on_stop(f"--resume continues {display_path(out)}"), started as workers:
        yield workers


def run_search(program: KernelGraph, settings: Settings, out: Path, **about: Unpack[RunArguments]) -> RunReport:
    """Search a program, verify the results and write them to ``out``; on a cache hit, read them from the store instead.

    Raises:
        MirageError: As in ``search_program``.
    """
    job = make_job(program, settings)
    with keep_results_on_stop(), lock_directory(out), claim_entry("search", job, settings) as claim:
        if claim.found is not None:
            return write_stored_run(claim.found, job, settings, out, **about)
        report = search_program(program, settings, out, **about)
        if report.summary.status == "complete" and not report.failed and not report.lost:
            claim.keep(report.directory, report.results, "complete")
        return report


def write_stored_run(
    found: RecalledEntry, job: Job, settings: Settings, out: Path, **about: Unpack[RunArguments]
) -> RunReport:
    """Write a stored result to the directory ``out``, under the program name that the caller asks for.

    Raises:
        RunError: ``clear_earlier_search`` refuses the directory.
    """
    begin = time.monotonic()
    files, earlier = evidence_of(found.entry), found.replayed.record
    assert isinstance(earlier, RunRecord)
    named = {"name": about.get("name", "program"), "source": escape_undecodable(about.get("source", ""))}
    record = to_indented_json(msgspec.structs.replace(earlier, **named))
    clear_earlier_search(out, force=settings.force)
    write_atomic(out / RUN_FILE, record)
    summary = open_sealed(files.pop(SUMMARY_FILE), SummaryRecord, SUMMARY_FILE)
    write_files(out, {**files, RUN_FILE: record})
    manifest = {**summary.manifest, RUN_FILE: sha256(record)}
    about_it = {"program": named["name"], "recalled": True, "wall_s": round(time.monotonic() - begin, 3)}
    sealed = seal_record(msgspec.structs.replace(summary, manifest=manifest, **about_it))
    write_atomic(out / SUMMARY_FILE, sealed)
    written = open_sealed(sealed, SummaryRecord, SUMMARY_FILE)
    when = datetime.fromtimestamp(found.entry.path.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M")
    remark = f"searched before, on {when}: recalled from the store; --no-cache searches again"
    remarks = [remark, *describe_choice(job.options.choice)]
    return report_of(move_replay(found.replayed, found.entry.path / EVIDENCE, out), written, out, job.target, remarks)


def search_program(program: KernelGraph, settings: Settings, out: Path, **about: Unpack[RunArguments]) -> RunReport:
    """Search a program, verify the candidates and write them to ``out``.

    Ctrl-C during the search stops the search; the candidates found so far are verified and written. A second Ctrl-C
    stops verification; the candidates verified so far are written.

    Raises:
        MirageError: A mistake in the program, the settings or the directory.
    """
    job = make_job(program, settings)
    record = _run_record(job, about.get("name", "program"), about.get("source", ""))
    with keep_results_on_stop(), lock_directory(out):
        store = RunStore.open(out, record, resume=settings.resume, force=settings.force)
        with open_executor(settings, about, out) as workers:
            sought = preprocess_job(job)
            return _Run(sought, settings, store, record, about, workers).report()


def _run_record(job: Job, name: str, source: str) -> RunRecord:
    who = identity(job)
    return RunRecord(
        name=name,
        source=escape_undecodable(source),
        config=job.config,
        identity=who,
        key=key_of(who),
        program=embed(job.program),
        space=space_fields(job.space),
        versions=versions(),
        host=host(),
    )


class _Run:
    def __init__(
        self,
        job: SearchJob,
        settings: Settings,
        store: RunStore,
        record: RunRecord,
        about: RunArguments,
        executor: Executor[Any],
    ) -> None:
        self.ahead = about.get("ahead", NextSearches())
        self.job = job
        self.key = record.key
        self.settings = settings
        self.store = store
        self.name = record.name
        self.watch = about.get("watch", ignore_progress)
        self.executor = executor
        self.remarks: list[str] = []
        self.begin = time.monotonic()
        self.limits = TimeLimits.of(settings, self.begin)
        self.status: Status = "complete"
        self.units = 0
        self.own = 0  # tasks that are units of this run
        self.planned = False
        self.left = 0  # those that are not done
        self.bounds: tuple[BoundRecord, ...] | None = None
        self.unfused_us = estimate(job.program, job.target).us
        self.most_us: float | None = None
        self.counts = RunCounters(store.units.values())
        self.times = SearchClock(store.units.values())
        self.evidence: CandidateVerifier | None = None
        self.prepared: PreparedWorker | None = None
        self.audits = UnitAudits(self._complete, record.versions["z3-solver"])

    def report(self) -> RunReport:
        try:
            self._search()
        except KeyboardInterrupt:
            self.status = "interrupted"
        if self.prepared is not None and self.status != "complete":
            self.prepared.failed |= self.prepared.milliseconds is None  # it ended with the search
        ranked = rank(self._records())
        found = len(ranked)
        if not self.settings.narrowed and self.settings.keep is None:
            self.most_us = highest_reported_estimate(ranked, self.unfused_us)
            ranked = [found for found in ranked if found.estimated_us <= self.most_us]
        elif self.settings.part and kernel_count(self.job.program) == 1:
            # The part's own kernel exists: a candidate that is not faster is not worth a proof.
            self.most_us = nextafter(self.unfused_us, 0.0)
            ranked = [found for found in ranked if found.estimated_us <= self.most_us]
        self.evidence = evidence = CandidateVerifier(
            self.job, self.executor, self.limits, self._show, self.prepared, self.audits
        )
        try:
            verified = evidence.reported(ranked)
        except KeyboardInterrupt:
            self.status = "interrupted"
            verified = evidence.verified_among(ranked)
        if evidence.late and self.status == "complete":
            self.status = "time-limit"
        self._audit_remaining_units()
        self._bounds_of_estimates()
        return self._write(verified, evidence, found)

    def _search(self) -> None:
        self._show(RunPhase.PLAN, 0, 1)
        units = self._plan()
        if units is None:
            return
        self._show(RunPhase.PLAN, 1, 1)
        self.planned = True
        self.units = len(units)
        done = self.store.units
        todo = [unit for unit in units if unit.index not in done or done[unit.index].status == "failed"]
        self.times.start()
        early = self.ahead.found.pop(self.job, None)
        if early is not None and early.value.record is not None and todo:
            early_unit = msgspec.structs.replace(cast(Any, early), value=early.value.record)
            self._record(todo.pop(), cast(TaskDone[UnitRecord | SearchedUnit], early_unit))
        self.left = self.own = len(todo)
        tasks: list[SearchTask] = [*self._unit_tasks(todo), *self._tasks_beside(self.left)]
        later: list[SearchTask] = []

        def propose() -> None:
            """Add searches of later runs, once, if this run leaves a worker idle."""
            if 0 < self.left < self.executor.workers:
                proposed, self.ahead.propose = self.ahead.propose(), list
                later.extend(proposed)
                tasks.extend(proposed)

        if tasks:
            self.executor.work_meanwhile([propose])
        for outcome in self._outcomes(tasks):
            if self.left == 0 and not later and not any(record.candidates for record in self._records()):
                break  # there is nothing to verify
            if outcome is not None:
                tasks += self._record_outcome(outcome, tasks[outcome.index])
            propose()
            self.times.look(self._standing())
            self._show(RunPhase.SEARCH, len(units) - self.left, len(units))
        if self.left:
            self.status = "time-limit"

    def _prepare(self, outcome: TaskDone[Any] | TaskFailed) -> None:
        """Take note that a worker is prepared for verification, or never will be."""
        if self.prepared is not None:
            match outcome:
                case TaskDone(value=milliseconds):
                    self.prepared.place, self.prepared.milliseconds = outcome.place, milliseconds
                case TaskFailed():
                    self.prepared.failed = True

    def _unit_tasks(self, todo: Sequence[Unit]) -> list[UnitTask]:
        """Return the tasks to search units.

        The last units that are given to workers are audited while others are searched or candidates are verified.
        """
        share, rest = divmod(self.settings.audit, self.units or 1)
        workers = self.executor.workers
        first = len(todo) - workers if workers > 1 else len(todo)
        return [
            UnitTask(self.job, self.key, unit, share + (unit.index < rest), place >= first)
            for place, unit in enumerate(todo)
        ]

    def _tasks_beside(self, left: int) -> list[SearchTask]:
        """Return the tasks for workers that the search of ``left`` units leaves idle."""
        tasks: list[SearchTask] = [] if self.bounds is not None else [BoundsTask(self.job)]
        if left and self.executor.prepares and self.executor.workers > 1 and not self.settings.part:
            tasks.append(PreparationTask(self.job))
            self.prepared = PreparedWorker()
        return tasks

    def _outcomes(self, tasks: Sequence[SearchTask]) -> Iterator[TaskDone[Any] | TaskFailed | TaskOverdue | None]:
        """Yield the outcomes of tasks of the search, which does not wait for the preparation of verification."""
        last = {len(tasks) - 1: self._prepare}
        with nullcontext() if self.prepared is None else self.executor.outlasting_tasks(last):
            limit_s, deadline = self.limits.unit_s, self.limits.search
            yield from self.executor.run(run_search_task, tasks, limit_s=limit_s, deadline=deadline)

    def _record_outcome(
        self, outcome: TaskDone[SearchResult] | TaskFailed | TaskOverdue, task: SearchTask
    ) -> Sequence[AuditTask]:
        """Record the outcome of a task of the search phase; return the audits that it leaves to idle workers."""
        match task, outcome:
            case UnitTask(unit=unit), TaskOverdue():
                self.remarks.append(_slow_unit_remark(unit, outcome))
            case UnitTask(unit=unit), TaskDone() | TaskFailed():
                self.left -= 1
                self._record(unit, cast(TaskDone[UnitRecord | SearchedUnit] | TaskFailed, outcome))
                return [one for one in self.audits.tasks if one.unit == unit.index] if self.left else []
            case AuditTask(), TaskDone(value=AuditRecord() as result) | (TaskFailed() as result):
                self.audits.answer(task, result)
            case BoundsTask(), TaskDone(value=tuple() as bounds):
                self.bounds = bounds
            case PreparationTask(), TaskDone() | TaskFailed():
                self._prepare(outcome)
            case NextSearchTask(job=job), TaskDone(value=NextSearch() as found) if found.plan is not None:
                self.ahead.found[job] = cast(TaskDone[NextSearch], outcome)
            case _:
                pass  # nothing is lost: the run of a later search makes it itself
        return []

    def _standing(self) -> dict[int, UnitProgress]:
        """Return the progress of the units that are being searched, without searches of later runs."""
        return {index: said for index, said in self.executor.said.items() if index < self.own}

    def _plan(self) -> list[Unit] | None:
        """Return the units of the search; None if the time limit ends it before it is planned."""
        if (early := self.ahead.found.get(self.job)) is not None and early.value.plan is not None:
            self.bounds = early.value.plan.bounds
            return early.value.plan.units
        for outcome in self.executor.run(plan, [self.job], limit_s=_PLAN_LIMIT_S, deadline=self.limits.search):
            match outcome:
                case TaskDone(value=planned):
                    return planned
                case TaskFailed(reason=reason):
                    last = (reason.strip().splitlines() or ["its worker died"])[-1]
                    hint = "if memory is short: fewer --workers, or more --worker-memory"
                    raise WorkerError(f"expected a plan of the search, got: {last}", where=self.name, hint=hint)
                case TaskOverdue() | None:
                    self._show(RunPhase.PLAN, 0, 1)
        self.status = "time-limit"
        return None

    def _record(self, unit: Unit, outcome: TaskDone[UnitRecord | SearchedUnit] | TaskFailed) -> None:
        """Record a unit; one whose decisions are still to be audited is complete after its audit."""
        audit: AuditTask | None = None
        match outcome:
            case TaskDone(value=UnitRecord() as found):
                record = msgspec.structs.replace(found, attempts=outcome.attempts)
            case TaskDone(value=SearchedUnit(record=found, decisions=decisions)):
                record = msgspec.structs.replace(found, attempts=outcome.attempts)
                audit = AuditTask(unit.index, decisions, self.job.options.choice) if decisions else None
            case TaskFailed():
                record = _failed_unit_record(self.key, unit, outcome)
        record = msgspec.structs.replace(record, times=self.times.times_of_unit(outcome, record.stats))
        self.counts.add(record)
        if audit is None:
            self._complete(record)
        else:
            self.audits.add(record, audit)

    def _records(self) -> list[UnitRecord]:
        """Return the records of all searched units, also of those that are not audited yet."""
        return [*self.store.units.values(), *self.audits.records]

    def _audit_remaining_units(self) -> None:
        """Make the audits that were not made beside verification, as where there is no candidate."""
        tasks = self.audits.tasks
        for outcome in self.executor.run(audit_unit, tasks, limit_s=self.limits.unit_s) if tasks else ():
            match outcome:
                case TaskDone(value=result) | (TaskFailed() as result):
                    self.audits.answer(tasks[outcome.index], result)
        self.remarks += [f"audit of unit {unit} failed: {why}" for unit, why in sorted(self.audits.failed.items())]

    def _bounds_of_estimates(self) -> None:
        """Compute the bounds of the program, if the search ended between its plan and them."""
        tasks = [BoundsTask(self.job)] if self.planned and self.bounds is None else []
        for outcome in self.executor.run(bounds_of_estimates, tasks, limit_s=self.limits.unit_s) if tasks else ():
            if isinstance(outcome, TaskDone):
                self.bounds = outcome.value

    def _contradiction(self, question: str) -> RunError:
        """Write the question on which the engine and z3 differ to a file and return the error that names it."""
        path = self.store.root / CONTRADICTION_FILE
        write_atomic(path, question.encode())
        return RunError(
            "expected z3 to confirm a pruning decision of the search under the axioms, got the opposite",
            where=display_path(path),
            hint="the file has the question; --audit 0 searches without asking",
        )

    def _complete(self, record: UnitRecord) -> None:
        """Write the record of a unit to the journal.

        Raises:
            RunError: z3 contradicts one of its decisions.
        """
        if record.audit is not None and record.audit.contradictions:
            raise self._contradiction(record.audit.contradictions[0])
        self.store.append(record)

    def _show(self, phase: RunPhase, done: int, total: int) -> None:
        live = self._standing().values() if phase is RunPhase.SEARCH else ()
        verified = (0, 0) if self.evidence is None else (self.evidence.accepted, len(self.evidence.rejected))
        progress = self.counts.progress((phase, done, total), live, verified)
        self.watch(replace(progress, remark=self.remarks[-1]) if self.remarks else progress)

    def _write(self, verified: Sequence[CandidateEvidence], evidence: CandidateVerifier, found: int) -> RunReport:
        self._show(RunPhase.WRITE, 0, len(verified))
        records = [self.store.units[index] for index in sorted(self.store.units)]
        failed = tuple(r for r in records if r.status == "failed")
        results, items = self._reported(verified)
        summary = SummaryRecord(
            program=self.name,
            program_digest=self.store.run.identity.program,
            config=self.job.config,
            key=self.key,
            status=self.status,
            units=max(self.units, len(records)),
            units_done=len(records) - len(failed),
            units_failed=len(failed),
            states=sum(r.stats.get("states", 0) for r in records),
            stats=_sum_counts(r.stats for r in records),
            pruned=_sum_counts(r.pruned for r in records),
            found=found,
            fingerprint_tests=sum(r.fingerprint_tests for r in records) + evidence.tests,
            wall_s=round(time.monotonic() - self.begin, 3),
            recalled=False,
            workers=self.executor.workers,
            candidates=items,
            rejected=tuple(evidence.rejected.values()),
            most_us=self.most_us,
            audit=sum_audits(r.audit for r in records),
            manifest={},
        )
        files = [(item.directory, v.found.digest, v.files) for item, v in zip(items, verified, strict=True)]
        remarks = (*describe_choice(self.job.options.choice), *self.remarks, *dict.fromkeys(self.executor.remarks))
        exhausted: ExhaustedRecord | None = None
        if self.bounds is not None:
            figures, left_out = msgspec.json.encode(self.job.target), list_incompleteness(self.job.engine)
            exhausted = exhausted_record(self.store.run, summary, figures, left_out, self.bounds)
        written = self.store.finish(files, summary, exhausted)
        self._show(RunPhase.WRITE, len(verified), len(verified))
        return RunReport(written, results, self.store.root, failed, self.unfused_us, remarks, evidence.lost)

    def _reported(
        self, verified: Sequence[CandidateEvidence]
    ) -> tuple[tuple[Result, ...], tuple[CandidateRecord, ...]]:
        if not verified:
            return (), ()
        from mirage_formal.kernel_build.built_kernels import COUNT
        from mirage_formal.kernel_build.candidate_preference import Alternatives  # not needed before there are results

        results: list[Result] = []
        items: list[CandidateRecord] = []
        for number, v in enumerate(verified, 1):
            found = v.found
            behind = tuple((w.found.digest[:12], w.found.graph) for w in verified[number - 1 : number - 1 + COUNT])
            alternatives = Alternatives(behind, self.job.program, self.job.target)
            directory = f"{CANDIDATES}/{number:03}-{found.digest[:12]}"
            verdict = verdict_of(v)
            path = self.store.root / directory
            results.append(
                Result(decode_graph(found.graph), found.digest, number, verdict, found.estimated_us, path, alternatives)
            )
            items.append(
                CandidateRecord(
                    id=found.digest[:12],
                    digest=found.digest,
                    rank=number,
                    verdict="equivalent" if isinstance(verdict, Equivalent) else "probable",
                    error_bound_log2=v.verdict.bound_log2,
                    kernels=found.kernels,
                    estimated_us=found.estimated_us,
                    outside=None if v.foreseen is None else v.foreseen.outside,
                    rounding=None if v.foreseen is None else v.foreseen.rounding,
                    directory=directory,
                )
            )
        return tuple(results), tuple(items)


def _slow_unit_remark(unit: Unit, slow: TaskOverdue) -> str:
    again = ", now computed by a second worker as well" if slow.again else ""
    return f"slow: unit {unit.index} ({unit.label}): {slow.seconds:.0f} s, others {slow.typical_s:.1f} s{again}"


def _failed_unit_record(key: str, unit: Unit, outcome: TaskFailed) -> UnitRecord:
    return UnitRecord(
        key=key,
        unit=unit.index,
        label=unit.label,
        status="failed",
        attempts=outcome.attempts,
        stats={},
        pruned={},
        fingerprint_tests=0,
        candidates=(),
        milliseconds=0.0,
        error=outcome.reason,
    )


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


__all__ = [
    "Result",
    "RunArguments",
    "RunReport",
    "Status",
    "open_executor",
    "run_search",
    "search_program",
    "write_stored_run",
]

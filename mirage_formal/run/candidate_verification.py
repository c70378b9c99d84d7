"""Verification of ranked candidates, and the evidence files of the verified ones.

A candidate is reported only if it passes two tests. First, each of its tensors has a certificate whose negation z3 and
cvc5 both refute. Second, the policy of run.verify.certify accepts it. With the policy "equivalent" it is proved equal
to the program, the checker's proof kernel has replayed the proof, and both solvers refute the obligations that the
proof leaves to them. With the policy "probable" it is enough that its final fingerprint agrees. The next candidate in
rank takes the place of one that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Any, Final, TypeVar

import msgspec

from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.formats.json import decode_graph, embed, to_json
from mirage_formal.graph.graph import GraphDefined, Op
from mirage_formal.graph.verdict import Equivalent, Probable
from mirage_formal.records import (
    EQUIVALENCE_FILE,
    GRAPH_FILE,
    PATIENCE,
    PROOF_DIR,
    PROOF_FILE,
    VERIFICATION_FILE,
    AuditRecord,
    CertificateRecord,
    ClosingRecord,
    DigitRecord,
    EquivalenceRecord,
    FoundRecord,
    RejectedKind,
    RejectedRecord,
    SolverRecord,
    VerdictRecord,
    VerificationRecord,
    digits_file,
    json_line,
    sha256,
    to_indented_json,
)
from mirage_formal.run.progress import RunPhase
from mirage_formal.run.ranking import (
    graph_pattern,
    is_unfused,
    order_by_rounding_error,
    rounding_candidates,
    select_candidates,
    uses_library_products_only,
)
from mirage_formal.run.settings import SearchJob, TimeLimits
from mirage_formal.run.task_entry_points import (
    VerificationTask,
    certify,
    discharge_texts,
    predict_rounding_error,
    run_verification_task,
)
from mirage_formal.run.task_values import (
    AcceptedCandidate,
    AuditTask,
    CandidateTask,
    CertificateClaim,
    Proof,
    RejectedCandidate,
    RoundingTask,
    UncertifiedTensor,
)
from mirage_formal.run.verify.unit_audits import UnitAudits
from mirage_formal.workers.dispatch import Executor, TaskDone, TaskFailed, TaskOverdue

P = TypeVar("P")
R = TypeVar("R")

#: Obligations discharged by one task. The first task of a worker starts a process of the solvers, which takes as long
#: as the answers to so many.
_CHUNK: Final = 32
#: Milliseconds of the verification of a candidate, before so many are verified: the first one of a worker takes longer.
_USUAL_CANDIDATE_MS: Final = 25.0
_SAMPLE: Final = 3
#: Milliseconds until a new process of the solvers answers.
_SOLVERS_START_MS: Final = 60.0


@dataclass(frozen=True, slots=True)
class CandidateEvidence:
    """A verified candidate: its verdict, its proof, and the files of its directory by relative path.

    ``foreseen`` is the estimate of its rounding error; None if none was computed.
    """

    found: FoundRecord
    verdict: VerdictRecord
    proof: bytes | None
    files: dict[str, bytes]
    foreseen: PredictedNumerics | None = None


@dataclass(slots=True)
class PreparedWorker:
    """A worker that evaluates the program for final fingerprints, and starts its solver process.

    Attributes:
        place: Number of its place; -1 before it is prepared.
        milliseconds: Processor time of its preparation, which another worker takes for its first candidate; None before
            it is prepared.
        failed: Whether it will never be prepared.
    """

    place: int = -1
    milliseconds: float | None = None
    failed: bool = False


class CandidateVerifier:
    """Verifier of candidates, with a cache of the candidates that it has verified.

    Attributes:
        rejected: Rejected candidates by digest, in rank order.
        tests: Number of final fingerprints computed.
        lost: Whether a task failed, by its time limit or because its worker died.
        late: Whether the run's time limit ended verification before all candidates were verified.
    """

    def __init__(
        self,
        job: SearchJob,
        pool: Executor[Any],
        limits: TimeLimits,
        show: Callable[[RunPhase, int, int], None],
        prepared: PreparedWorker | None = None,
        audits: UnitAudits | None = None,
    ) -> None:
        self._prepared = prepared
        self._audits = audits
        self._candidate_ms: list[float] = []
        self._evaluated: set[int] = set()  # places of workers that have verified a candidate
        self._solving: set[int] = set()  # places of workers that have a process of the solvers
        self.rejected: dict[str, RejectedRecord] = {}
        self.tests = 0
        self.lost = False
        self.late = False
        self._job = job
        self._pool = pool
        self._limits = limits
        self._show = show
        self._done: Counter[RunPhase] = Counter()
        self._tasks: Counter[RunPhase] = Counter()
        self._verified: dict[str, CandidateEvidence] = {}
        self._rounding: dict[str, PredictedNumerics | None] = {}
        self._accepted = 0  # accepted candidates whose obligations are still open
        self._discharged: dict[str, tuple[SolverRecord, SolverRecord]] = {}
        self._program = embed(job.program)
        seen = job.sought.whole
        self._sought = msgspec.Raw(b"null") if seen == job.program else embed(seen)
        self._program_digest = digest(job.program)

    @property
    def accepted(self) -> int:
        """Number of candidates that are verified so far."""
        return len(self._verified) + self._accepted

    def choose(self, ranked: Sequence[FoundRecord]) -> list[CandidateEvidence]:
        """Return the verified candidates to report, best first, and verify candidates as needed.

        Sound: only what the policy accepts, with a certificate for every tensor and every obligation of both unsat for
        both solvers, gets through.
        """
        while True:
            left = [found for found in ranked if found.digest not in self.rejected]
            todo = [
                found
                for found in select_candidates(
                    left,
                    self._job.space.keep,
                    lambda f: _graph_pattern(f.graph),
                    lambda f: _kernel_keys(f.graph),
                    lambda f: _similarity_key(f.graph),
                    (lambda f: _library_and_unfused(f.graph)[0], lambda f: _library_and_unfused(f.graph)[1]),
                )
                if found.digest not in self._verified
            ]
            if not todo or self.late or len(self.rejected) > PATIENCE * self._job.space.keep:
                return self.verified_among(ranked)
            self._verify(todo)

    def verified_among(self, ranked: Sequence[FoundRecord]) -> list[CandidateEvidence]:
        """Return the candidates among ``ranked`` that are verified so far, best first."""
        order = [found.digest for found in ranked]
        self.rejected = {name: self.rejected[name] for name in order if name in self.rejected}
        return [self._verified[name] for name in order if name in self._verified and name not in self.rejected]

    def reported(self, ranked: Sequence[FoundRecord]) -> list[CandidateEvidence]:
        """Return the verified candidates in report order, which takes their estimated rounding errors into account.

        If every verified candidate is outside its tolerance, the next candidates in rank are verified instead.
        """
        while True:
            verified = self.choose(ranked)
            found = self.by_numerics(verified)
            if found or not verified or len(self.rejected) > PATIENCE * self._job.space.keep:
                return found

    def by_numerics(self, verified: Sequence[CandidateEvidence]) -> list[CandidateEvidence]:
        """Return verified candidates in report order, or none if all of them are outside their tolerances.

        In that case all of them are rejected, because the program's own operators are more accurate.
        """
        order, known = order_by_rounding_error(
            [one.found for one in verified], self._foreseen, lambda found: _graph_pattern(found.graph)
        )
        if order and all(one.digest in known and known[one.digest].outside for one in order):
            for one in order:
                scales = ", ".join(f"{scale:g}" for scale in known[one.digest].outside)
                self._reject(one, "numerics", f"outside at scale {scales}, where the program's own operators are not")
            return []
        by_digest = {one.found.digest: one for one in verified}
        return [replace(by_digest[one.digest], foreseen=known.get(one.digest)) for one in order]

    def _foreseen(self, found: FoundRecord) -> PredictedNumerics | None:
        if found.digest not in self._rounding:
            task = RoundingTask(CandidateTask(self._job, found.graph))
            outcomes = list(self._outcomes(RunPhase.FORESEE, predict_rounding_error, [task], self._limits.proof_s))
            known = (value for _, value in outcomes if isinstance(value, PredictedNumerics))
            self._rounding[found.digest] = next(known, None)
        return self._rounding[found.digest]

    def _verify(self, todo: Sequence[FoundRecord]) -> None:
        tasks = [CandidateTask(self._job, found.graph) for found in todo]
        claims: dict[str, list[CertificateClaim]] = {}
        until = self._limits.proofs
        for index, outcome in self._outcomes(RunPhase.CERTIFY, certify, tasks, until=until):
            if (certified := self._certified(todo[index], outcome)) is not None:
                claims[todo[index].digest] = certified
        holders = [found for found in todo if found.digest in claims]
        texts = [claim.text for found in holders for claim in claims[found.digest]]
        judged: list[tuple[FoundRecord, AcceptedCandidate | RejectedCandidate | TaskFailed]] = []
        try:
            for found, result in self._verified_beside(texts, holders):
                judged.append((found, result))
                self._accepted += isinstance(result, AcceptedCandidate)
        finally:  # accepted candidates survive an interrupt
            self._discharge(RunPhase.CERTIFY, texts)  # what the end of proofs has left
            left = {found.digest for found in holders if self._refuted_by_both(found, claims)}
            accepted = self._judge([(found, result) for found, result in judged if found.digest in left])
            proofs = [result.proof for _, result in accepted if result.proof is not None]
            self._discharge(RunPhase.PROVE, (o.text for proof in proofs for o in proof.obligations))
            self._accepted = 0
            for found, result in accepted:
                if result.proof is None or self._obligations_hold(found, result.proof):
                    self._verified[found.digest] = self._files(found, claims[found.digest], result)

    def _verified_beside(
        self, texts: Sequence[str], certified: Sequence[FoundRecord]
    ) -> Iterator[tuple[FoundRecord, AcceptedCandidate | RejectedCandidate | TaskFailed]]:
        """Yield the outcome of verification of each candidate, while the solvers answer obligations.

        Hardly any certificate fails, so that no candidate waits for the answers. The obligations of a proof are asked
        once it is there, and the rounding errors that the order of the report is likely to need are estimated. Units of
        the search that are not audited yet are audited.
        """
        asked: list[VerificationTask] = [*self._chunks(texts), *([] if self._audits is None else self._audits.tasks)]
        wanted = rounding_candidates(certified, lambda found: _graph_pattern(found.graph))
        sent = set(texts)
        tasks: list[VerificationTask] = [
            *asked,
            *(CandidateTask(self._job, found.graph) for found in certified),
            *(RoundingTask(CandidateTask(self._job, found.graph)) for found in wanted),
        ]
        first, behind = len(asked), len(asked) + len(certified)
        limit, until = self._limits.proof_s, self._limits.proofs

        def refuses(task: int, place: int, waiting: Sequence[int]) -> bool:
            candidates = sum(isinstance(tasks[each], CandidateTask) for each in waiting)
            return self._leaves_to_another(tasks[task], place, candidates)

        with nullcontext() if self._prepared is None else self._pool.leaving_tasks(refuses):
            for index, result in self._outcomes(RunPhase.PROVE, run_verification_task, tasks, limit, until=until):
                match tasks[index], result:
                    case AuditTask() as task, AuditRecord() | TaskFailed():
                        if self._audits is not None:
                            self._audits.answer(task, result)
                    case tuple() as obligations, list():
                        self._record_answers(obligations, result)
                    case RoundingTask(), PredictedNumerics() | TaskFailed() | None:
                        known = result if isinstance(result, PredictedNumerics) else None
                        self._rounding[wanted[index - behind].digest] = known
                    case CandidateTask(), AcceptedCandidate() | RejectedCandidate() | TaskFailed():
                        if isinstance(result, AcceptedCandidate) and result.proof is not None:
                            new = [one.text for one in result.proof.obligations if one.text not in sent]
                            tasks += self._chunks(new)
                            sent.update(new)
                        yield certified[index - first], result

    def _leaves_to_another(self, task: VerificationTask, place: int, candidates: int) -> bool:
        """Return whether a worker leaves a task to another one, which is better prepared for it.

        Only the prepared worker has evaluated the program. Another one verifies candidates only if evaluating the
        program again takes less than half of the time for all waiting candidates: it slows down the prepared one. One
        that has done so goes on. Workers that verify no candidates solve obligations and audit units; without any, the
        prepared one does, which has a process of the solvers.

        Where no candidate waits, a worker without a process of the solvers leaves obligations to one that has it, if
        that one is free before a new process would answer.

        Args:
            task: The task. Any worker estimates rounding errors.
            place: The worker's place.
            candidates: Number of waiting candidates.
        """
        prepared = self._prepared
        if prepared is None or prepared.failed or isinstance(task, RoundingTask):
            return False
        known = self._candidate_ms
        typical = median(known) if len(known) >= _SAMPLE else _USUAL_CANDIDATE_MS
        if not candidates:
            brief = len(known) >= _SAMPLE and typical < _SOLVERS_START_MS
            return brief and isinstance(task, tuple) and self._lacks_solvers(place)
        costly = prepared.milliseconds is None or 2 * prepared.milliseconds >= typical * candidates
        ready = {*self._evaluated, prepared.place}
        if isinstance(task, CandidateTask):
            return costly and place not in ready
        if place == prepared.place:
            return costly and len(ready) < self._pool.workers
        return not costly or place in ready

    def _lacks_solvers(self, place: int) -> bool:
        """Return whether a worker has no process of the solvers, but another one has."""
        prepared, started = self._prepared, set(self._solving)
        if prepared is not None and prepared.milliseconds is not None:
            started.add(prepared.place)
        return bool(started) and place not in started

    def _judge(
        self, judged: Sequence[tuple[FoundRecord, AcceptedCandidate | RejectedCandidate | TaskFailed]]
    ) -> list[tuple[FoundRecord, AcceptedCandidate]]:
        """Return the accepted candidates among those with certificates, and reject the others."""
        accepted: list[tuple[FoundRecord, AcceptedCandidate]] = []
        for found, result in judged:
            self.tests += 1
            match result:
                case AcceptedCandidate():
                    accepted.append((found, result))
                case RejectedCandidate(kind, reason):
                    self._reject(found, kind, reason)
                case TaskFailed(overdue=True):
                    reason = f"time limit of {self._limits.proof_s:g} s for one proof"
                    self._reject(found, "unknown", reason)
                case TaskFailed(reason=reason):
                    self._reject(found, "unknown", reason)
        return accepted

    def _outcomes(
        self,
        phase: RunPhase,
        function: Callable[[P], R],
        tasks: Sequence[P],
        limit_s: float | None = None,
        *,
        until: float | None = None,
    ) -> Iterator[tuple[int, R | TaskFailed]]:
        """Yield the index and outcome of each task as it completes, and show progress.

        With ``limit_s``, a task that exceeds it is not retried. Tasks that are not complete at the deadline yield
        nothing and set ``late``, but for estimates of rounding errors: a candidate without one is reported as well.
        Counts are those of all tasks of the phase so far, so that they never go back.
        """
        before, ended = self._tasks[phase], set[int]()
        self._tasks[phase] += len(tasks)
        self._show(phase, self._done[phase], self._tasks[phase])
        most = self._limits.unit_s if limit_s is None else limit_s
        end = self._limits.verified if until is None else until
        for outcome in self._pool.run(function, tasks, limit_s=most, once=limit_s is not None, deadline=end):
            match outcome:
                case TaskDone(index, value):
                    ended.add(index)
                    if isinstance(value, AcceptedCandidate | RejectedCandidate):
                        self._candidate_ms.append(outcome.cpu_milliseconds)
                        self._evaluated.add(outcome.place)
                    elif isinstance(tasks[index], tuple):
                        self._solving.add(outcome.place)
                    yield index, value
                case TaskFailed(index):
                    ended.add(index)
                    self.lost = True
                    yield index, outcome
                case TaskOverdue() | None:
                    self._done[phase] -= 1
            self._done[phase] += 1
            self._tasks[phase] = before + len(tasks)
            self._show(phase, self._done[phase], self._tasks[phase])
        optional = (RoundingTask, AuditTask)
        self.late |= any(index not in ended and not isinstance(task, optional) for index, task in enumerate(tasks))

    def _certified(
        self, found: FoundRecord, outcome: list[CertificateClaim | UncertifiedTensor] | TaskFailed
    ) -> list[CertificateClaim] | None:
        if isinstance(outcome, TaskFailed):
            self._reject(found, "unknown", outcome.reason)
            return None
        claims = [claim for claim in outcome if isinstance(claim, CertificateClaim)]
        for claim in outcome:
            if isinstance(claim, UncertifiedTensor):
                what = f"{claim.tensor}: {claim.expression} is not known to be part of an output's expression"
                self._reject(found, "certificate", what)
                return None
        return claims

    def _discharge(self, phase: RunPhase, obligations: Iterable[str]) -> None:
        """Send each distinct obligation that has no answer yet to both solvers."""
        chunks = self._chunks(obligations)

        def refuses(_: int, place: int, waiting: Sequence[int]) -> bool:
            # A process of the solvers takes as long to start as one task.
            return len(waiting) == 1 and self._lacks_solvers(place)

        with nullcontext() if self._prepared is None else self._pool.leaving_tasks(refuses):
            for index, answers in self._outcomes(phase, discharge_texts, chunks):
                if not isinstance(answers, TaskFailed):
                    self._record_answers(chunks[index], answers)

    def _chunks(self, obligations: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the distinct obligations that have no answer yet, as tasks."""
        texts = [text for text in dict.fromkeys(obligations) if sha256(text.encode()) not in self._discharged]
        return [tuple(texts[i : i + _CHUNK]) for i in range(0, len(texts), _CHUNK)]

    def _record_answers(self, texts: Sequence[str], answers: Sequence[tuple[SolverRecord, SolverRecord]]) -> None:
        for text, answer in zip(texts, answers, strict=True):
            self._discharged[sha256(text.encode())] = answer

    def _refuted_by_both(self, found: FoundRecord, claims: dict[str, list[CertificateClaim]]) -> bool:
        if found.digest not in claims or self._unanswered(claim.text for claim in claims[found.digest]):
            return False
        for claim in claims[found.digest]:
            if (fault := self._fault(claim.text)) is not None:
                self._reject(found, "certificate", f"{claim.tensor}: {fault}")
                return False
        return True

    def _obligations_hold(self, found: FoundRecord, proof: Proof) -> bool:
        """Return whether both solvers refute the obligations that the proof leaves to them."""
        if self._unanswered(obligation.text for obligation in proof.obligations):
            return False
        for obligation in proof.obligations:
            if (fault := self._fault(obligation.text)) is not None:
                answers = self._discharged.get(sha256(obligation.text.encode()), ())
                wrong = any(answer.answer == "sat" for answer in answers)
                self._reject(
                    found,
                    "proof-refused" if wrong else "unknown",
                    f"digits {obligation.extents}, {obligation.lemma}: {fault}",
                )
                return False
        return True

    def _unanswered(self, obligations: Iterable[str]) -> bool:
        """Return whether the time limit left one of these obligations unsolved; then the candidate stays undecided."""
        return self.late and not all(sha256(text.encode()) in self._discharged for text in obligations)

    def _fault(self, text: str) -> str | None:
        """Return the fault in the solvers' answers to an obligation, or None if both say unsat."""
        answers = self._discharged.get(sha256(text.encode()))
        if answers is None:
            return "expected unsat from both solvers, got nothing"
        if any(answer.answer != "unsat" for answer in answers):
            return f"expected unsat from both solvers, got {answers[0].answer} (z3), {answers[1].answer} (cvc5)"
        return None

    def _reject(self, found: FoundRecord, kind: RejectedKind, reason: str) -> None:
        self.rejected[found.digest] = RejectedRecord(digest=found.digest, kind=kind, reason=reason)

    def _files(
        self, found: FoundRecord, claims: Sequence[CertificateClaim], result: AcceptedCandidate
    ) -> CandidateEvidence:
        """Return a verified candidate with all files of its directory except the manifest."""
        files = {GRAPH_FILE: to_json(decode_graph(found.graph)).encode()}
        names: dict[str, str] = {}
        log: list[bytes] = []
        for claim in claims:
            text = claim.text.encode()
            code = sha256(text)
            name = names.setdefault(code, f"{PROOF_DIR}/{len(names) + 1:03}.smt2")
            files[name] = text
            z3, cvc5 = self._discharged[code]
            log.append(
                json_line(
                    CertificateRecord(
                        tensor=claim.tensor,
                        expression=claim.expression,
                        output=claim.output,
                        file=name,
                        sha256=code,
                        z3=z3,
                        cvc5=cvc5,
                    )
                )
            )
        proved = [] if result.proof is None else [self._equivalence(result.verdict, result.proof, files)]
        closing = ClosingRecord(
            certificates=len(log),
            obligations=len(names),
            equivalences=len(proved),
            digits=sum(len(record.digits) for record in proved),
            graph=found.digest,
            program=self._program_digest,
            axioms=self._job.options.choice.statements or msgspec.UNSET,
        )
        files[PROOF_FILE] = b"".join([*log, *map(json_line, proved), json_line(closing)])
        verification = VerificationRecord(
            candidate=found.digest,
            program_digest=self._program_digest,
            program=self._program,
            sought=self._sought,
            verdict=result.verdict,
            fingerprint=msgspec.Raw(result.fingerprint),
            special=result.special,
        )
        files[VERIFICATION_FILE] = to_indented_json(verification)
        return CandidateEvidence(found, result.verdict, None if result.proof is None else result.proof.data, files)

    def _equivalence(self, verdict: VerdictRecord, proof: Proof, files: dict[str, bytes]) -> EquivalenceRecord:
        """Return the record of an equivalence proof, and add the proof's files to ``files``."""
        files[EQUIVALENCE_FILE] = proof.data
        digits: list[DigitRecord] = []
        for number, obligation in enumerate(proof.obligations, 1):
            name = digits_file(number)
            text = files[name] = obligation.text.encode()
            code = sha256(text)
            z3, cvc5 = self._discharged[code]
            digits.append(
                DigitRecord(
                    extents=obligation.extents, lemma=obligation.lemma, file=name, sha256=code, z3=z3, cvc5=cvc5
                )
            )
        return EquivalenceRecord(
            file=EQUIVALENCE_FILE,
            sha256=sha256(proof.data),
            steps=proof.steps,
            lemmas=proof.lemmas,
            conditions=verdict.conditions,
            added=verdict.added,
            digits=tuple(digits),
        )


@lru_cache(maxsize=1 << 16)
def _kernel_keys(graph: bytes) -> tuple[Hashable, ...]:
    """Return the operators, the grid and the loop range of each graph-defined kernel of an encoded candidate."""
    kernels = (op.graph for op in decode_graph(graph).ops if isinstance(op, GraphDefined))
    return tuple((block.ops, block.grid, block.forloop_range) for block in kernels)


@lru_cache(maxsize=1 << 16)
def _library_and_unfused(graph: bytes) -> tuple[bool, bool]:
    """Return ``uses_library_products_only`` and ``is_unfused`` of an encoded µGraph."""
    decoded = decode_graph(graph)
    return uses_library_products_only(decoded), is_unfused(decoded)


@lru_cache(maxsize=1 << 16)
def _similarity_key(graph: bytes) -> Hashable:
    """Return a key that is equal for candidates expected to take about the same time.

    The key has the operator kinds of each kernel, and the dims that its grid axes and its loop split. It ignores the
    order of grid axes and of a sum's operands.
    """
    kernels: list[Hashable] = []
    for op in decode_graph(graph).ops:
        if isinstance(op, GraphDefined):
            block = inline_blocks(op.graph)
            kinds = sorted(inner.kind.value for inner in block.ops if isinstance(inner, Op))
            axes = [
                (extent, *(item.imap[axis] for item in block.inputs), *(item.omap[axis] for item in block.outputs))
                for axis, extent in enumerate(block.grid)
                if extent > 1
            ]
            loop = (block.forloop_range, *(item.fmap for item in block.inputs))
            kernels.append((op.operands, tuple(kinds), tuple(sorted(axes, key=repr)), loop))
        else:
            kernels.append(op.kind)
    return tuple(kernels)


@lru_cache(maxsize=1 << 16)
def _graph_pattern(graph: bytes) -> Hashable:
    """Return ``graph_pattern`` of an encoded µGraph: its pattern without grids, maps and loop ranges."""
    return graph_pattern(decode_graph(graph))


def verdict_of(v: CandidateEvidence) -> Equivalent | Probable:
    """Return the verdict of a verified candidate as a value for the user."""
    if v.proof is not None:
        return Equivalent(v.proof, v.verdict.conditions, v.verdict.added)
    return Probable(v.verdict.rounds, v.verdict.bound_log2, v.verdict.reason)

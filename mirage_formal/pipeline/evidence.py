"""From ranked candidates to reported ones: which are verified, how, and the files that say so.

A candidate is reported only if its final fingerprint agrees and each of its tensors has a certificate that z3 and cvc5
both refute. One that fails makes room for the next in rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeVar

import msgspec

from mirage_formal.ir.canonical import digest
from mirage_formal.ir.graph import GraphDefined
from mirage_formal.ir.serialize import decode, to_json
from mirage_formal.journal import (
    GRAPH_FILE,
    PROOF_DIR,
    PROOF_FILE,
    VERIFICATION_FILE,
    CertificateRecord,
    ClosingRecord,
    FoundRecord,
    RejectedRecord,
    SolverRecord,
    VerdictRecord,
    VerificationRecord,
    line,
    pretty,
    sha256,
)
from mirage_formal.pipeline.progress import Phase
from mirage_formal.pipeline.settings import Job
from mirage_formal.pipeline.tasks import (
    CandidateTask,
    Claim,
    Fingerprinted,
    Uncertified,
    certify,
    discharge_texts,
    fingerprint_candidate,
)
from mirage_formal.search.parallel import Done, Failed, Pool

P = TypeVar("P")
R = TypeVar("R")

#: Obligations that one task discharges: small enough to share among workers, large enough to be worth a message.
_CHUNK: Final = 16
#: After so many rejections for every candidate that is kept, no more replacements are tried.
_PATIENCE: Final = 4


@dataclass(frozen=True, slots=True)
class Verified:
    """A candidate that may be reported: its verdict, and the files of its directory by relative path."""

    found: FoundRecord
    verdict: VerdictRecord
    files: dict[str, bytes]


class Evidence:
    """Verifies candidates, and remembers what it has verified.

    Attributes:
        rejected: Candidates that failed, by digest, in the order of their ranks.
        tests: Final fingerprints computed.
    """

    def __init__(self, job: Job, pool: Pool, limit_s: float, show: Callable[[Phase, int, int], None]) -> None:
        self.rejected: dict[str, RejectedRecord] = {}
        self.tests = 0
        self._job = job
        self._pool = pool
        self._limit_s = limit_s
        self._show = show
        self._verified: dict[str, Verified] = {}
        self._discharged: dict[str, tuple[SolverRecord, SolverRecord]] = {}
        self._program = msgspec.Raw(to_json(job.program).strip().encode())
        self._program_digest = digest(job.program)

    def choose(self, ranked: Sequence[FoundRecord]) -> list[Verified]:
        """The candidates to report, verified, best first.

        Sound: only a Probable verdict with a certificate for every tensor, unsat for both solvers, gets through.
        """
        while True:
            left = [found for found in ranked if found.digest not in self.rejected]
            todo = [
                found
                for found in select(left, self._job.space.keep, lambda f: _operators(f.graph))
                if found.digest not in self._verified
            ]
            if not todo or len(self.rejected) > _PATIENCE * self._job.space.keep:
                return self.chosen(ranked)
            self._verify(todo)

    def chosen(self, ranked: Sequence[FoundRecord]) -> list[Verified]:
        """Those of the candidates that are verified by now, best first."""
        order = [found.digest for found in ranked]
        self.rejected = {name: self.rejected[name] for name in order if name in self.rejected}
        return [self._verified[name] for name in order if name in self._verified]

    def _verify(self, todo: Sequence[FoundRecord]) -> None:
        tasks = [CandidateTask(self._job, found.graph) for found in todo]
        claims: dict[str, list[Claim]] = {}
        for index, outcome in self._outcomes(Phase.CERTIFY, certify, tasks):
            if (certified := self._certified(todo[index], outcome)) is not None:
                claims[todo[index].digest] = certified
        self._discharge(claims)
        left = [found for found in todo if self._refuted_by_both(found, claims)]
        tasks = [CandidateTask(self._job, found.graph) for found in left]
        for index, result in self._outcomes(Phase.FINGERPRINT, fingerprint_candidate, tasks):
            found = left[index]
            self.tests += 1
            if isinstance(result, Failed):
                self._reject(found, "unknown", result.reason)
            elif result.verdict.kind != "probable":
                self._reject(found, result.verdict.kind, result.verdict.reason)
            else:
                self._verified[found.digest] = self._files(found, claims[found.digest], result)

    def _outcomes(
        self, phase: Phase, function: Callable[[P], R], tasks: Sequence[P]
    ) -> Iterator[tuple[int, R | Failed]]:
        """Outcomes of tasks as they come, with progress shown."""
        done = 0
        self._show(phase, done, len(tasks))
        for outcome in self._pool.run(function, tasks, limit_s=self._limit_s):
            match outcome:
                case Done(index, value):
                    yield index, value
                case Failed(index):
                    yield index, outcome
                case None:
                    done -= 1
            done += 1
            self._show(phase, done, len(tasks))

    def _certified(self, found: FoundRecord, outcome: list[Claim | Uncertified] | Failed) -> list[Claim] | None:
        if isinstance(outcome, Failed):
            self._reject(found, "unknown", outcome.reason)
            return None
        claims = [claim for claim in outcome if isinstance(claim, Claim)]
        for claim in outcome:
            if isinstance(claim, Uncertified):
                what = f"{claim.tensor}: {claim.expression} is not known to be part of an output's expression"
                self._reject(found, "certificate", what)
                return None
        return claims

    def _discharge(self, claims: dict[str, list[Claim]]) -> None:
        """Put every distinct new obligation to both solvers, once in a run."""
        distinct = dict.fromkeys(claim.text for those in claims.values() for claim in those)
        texts = [text for text in distinct if sha256(text.encode()) not in self._discharged]
        chunks = [tuple(texts[i : i + _CHUNK]) for i in range(0, len(texts), _CHUNK)]
        for index, answers in self._outcomes(Phase.CERTIFY, discharge_texts, chunks):
            if isinstance(answers, Failed):
                continue
            for text, answer in zip(chunks[index], answers, strict=True):
                self._discharged[sha256(text.encode())] = answer

    def _refuted_by_both(self, found: FoundRecord, claims: dict[str, list[Claim]]) -> bool:
        if found.digest not in claims:
            return False
        for claim in claims[found.digest]:
            answers = self._discharged.get(sha256(claim.text.encode()))
            if answers is None or any(answer.answer != "unsat" for answer in answers):
                said = "nothing" if answers is None else f"{answers[0].answer} (z3), {answers[1].answer} (cvc5)"
                self._reject(found, "certificate", f"{claim.tensor}: expected unsat from both solvers, got {said}")
                return False
        return True

    def _reject(self, found: FoundRecord, kind: Literal["different", "unknown", "certificate"], reason: str) -> None:
        self.rejected[found.digest] = RejectedRecord(digest=found.digest, kind=kind, reason=reason)

    def _files(self, found: FoundRecord, claims: Sequence[Claim], result: Fingerprinted) -> Verified:
        """Everything that is written about a candidate, except its manifest."""
        files = {GRAPH_FILE: to_json(decode(found.graph)).encode()}
        names: dict[str, str] = {}
        log: list[bytes] = []
        for claim in claims:
            text = claim.text.encode()
            code = sha256(text)
            name = names.setdefault(code, f"{PROOF_DIR}/{len(names) + 1:03}.smt2")
            files[name] = text
            z3, cvc5 = self._discharged[code]
            log.append(
                line(
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
        closing = ClosingRecord(
            certificates=len(log), obligations=len(names), graph=found.digest, program=self._program_digest
        )
        files[PROOF_FILE] = b"".join([*log, line(closing)])
        verification = VerificationRecord(
            candidate=found.digest,
            program_digest=self._program_digest,
            program=self._program,
            verdict=result.verdict,
            fingerprint=msgspec.Raw(result.record),
        )
        files[VERIFICATION_FILE] = pretty(verification)
        return Verified(found, result.verdict, files)


def select(
    ranked: Sequence[FoundRecord], keep: int, pattern: Callable[[FoundRecord], Hashable] | None = None
) -> list[FoundRecord]:
    """The ``keep`` best candidates, and the best of every number of kernels, in the order of rank.

    With ``pattern``, at most a quarter of the places go to candidates of one pattern as long as there are others, so
    that the list shows different kernels and not one kernel on different grids.
    """
    places = max(1, keep // 4)
    taken: Counter[Hashable] = Counter()
    first: list[str] = []
    for found in ranked:
        key = found.digest if pattern is None else pattern(found)
        if taken[key] < places or pattern is None:
            taken[key] += 1
            first.append(found.digest)
    listed = set(first)
    rest = [found.digest for found in ranked if found.digest not in listed]
    best = set([*first, *rest][:keep])
    seen: set[int] = set()
    for found in ranked:
        if found.kernels not in seen:
            seen.add(found.kernels)
            best.add(found.digest)
    return [found for found in ranked if found.digest in best]


@lru_cache(maxsize=1 << 16)
def _operators(graph: bytes) -> Hashable:
    """What a candidate's kernels read and do, apart from grids, maps and loop ranges."""
    kernels: list[Hashable] = []
    for op in decode(graph).ops:
        if isinstance(op, GraphDefined):
            kernels.append((op.operands, op.graph.ops, op.graph.forloop_range > 1))
        else:
            kernels.append(op)
    return tuple(kernels)

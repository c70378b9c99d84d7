"""Acceptance policy of candidates: the verdicts that suffice, and the order in which they are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown
from mirage_formal.prove.counterexamples.definedness import check_conditions
from mirage_formal.prove.counterexamples.refute import find_counterexample
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession
from mirage_formal.records.fingerprint import FingerprintRecord
from mirage_formal.run.verify.policy import Policy


class CheckerResult(Protocol):
    """Interface of the proof checker's result for a proof that it accepts."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """Return the conditions that program and candidate need to be defined."""

    @property
    def added(self) -> tuple[str, ...]:
        """Return the conditions of the candidate that the program does not have."""

    @property
    def doubtful(self) -> bool:
        """Return whether some condition is not always true by its form."""


T = TypeVar("T", bound=CheckerResult)

#: Rounds of the search for a counterexample; most are found in the first.
_ATTEMPTS: Final = 2

#: Replay of a proof of (program, candidate); Unknown if it is refused, which is a bug of prover or kernel.
Replay = Callable[[KernelGraph, KernelGraph, bytes], T | Unknown]


class VerifiedCandidate(Struct, Generic[T], frozen=True):
    """A candidate that the policy accepts.

    Attributes:
        graph: The candidate.
        verdict: Its verdict.
        theorem: The checker's result for the proof of an equivalent candidate.
        record: Log of the fingerprint; no part of the verdict of an equivalent candidate.
    """

    graph: KernelGraph
    verdict: Equivalent | Probable
    theorem: T | None
    record: FingerprintRecord


class UnacceptedCandidate(Struct, frozen=True):
    """A candidate that is not accepted: refuted, unknown, or accepted by a weaker policy only.

    Attributes:
        graph: The candidate.
        kind: "different" and "unknown" are the fingerprint's verdict, "unproved" is the prover's Unknown where the
            policy asks for a proof, "proof-refused" is a proof that the kernel does not accept. "different" is also a
            candidate without a proof that has a counterexample, "unknown" a proof whose conditions no known input
            meets.
        verdict: The verdict that does not suffice.
        reason: Reason why there is no better one.
        record: Log of the fingerprint.
    """

    graph: KernelGraph
    kind: Literal["different", "unknown", "unproved", "proof-refused"]
    verdict: Different | Unknown
    reason: str
    record: FingerprintRecord


def is_proved(
    session: FingerprintSession, candidate: KernelGraph, replay: Replay[T], via: Sequence[KernelGraph] = ()
) -> bool:
    """Return whether the prover finds a proof that ``replay`` accepts, under conditions that some input meets.

    Sound: it accepts nothing; who refuses a candidate for another reason asks whether it would be refused without.

    Args:
        session: Fingerprints of the program; none is computed.
        candidate: The candidate.
        replay: The checker's replay of a proof.
        via: As in ``verify_by_policy``.
    """
    proved = prove(session.program, candidate, via)
    if not isinstance(proved, Equivalent):
        return False
    theorem = replay(session.program, candidate, proved.proof)
    if isinstance(theorem, Unknown):
        return False
    return check_conditions(session.program, candidate, theorem.doubtful, seed=session.settings.seed) is None


def verify_by_policy(
    session: FingerprintSession,
    candidate: KernelGraph,
    policy: Policy,
    replay: Replay[T],
    via: Sequence[KernelGraph] = (),
) -> VerifiedCandidate[T] | UnacceptedCandidate:
    """Verify a candidate for the session's program: first the fingerprint, which is cheap and refutes, then the proof.

    Sound: Equivalent rests on a proof that ``replay`` accepts and on nothing else: no number of a finite field and no
    floating-point number is a part of it. A fingerprint alone is accepted only where the policy says so, as Probable;
    that it has no answer refuses nothing that is proved. A proof that is refused is believed by no policy, nor is one
    whose conditions no input met. A counterexample is sought for what is refused anyway, to say why.

    Args:
        session: Fingerprints of the program.
        candidate: The candidate.
        policy: The acceptance policy.
        replay: The checker's replay of a proof.
        via: Graphs that the search looked for, which may be closer to the candidate than the program; see ``prove``.

    Raises:
        GraphError: The candidate is not well-formed or has other inputs or outputs than the program.
    """
    result = session.check(candidate)
    seen, record = result.verdict, result.record
    if isinstance(seen, Different):
        where = f"output {seen.output} at {list(seen.index)}: expected {seen.expected}, got {seen.got}"
        return UnacceptedCandidate(candidate, "different", seen, f"seed {seen.seed}: {where}", record)
    proved = prove(session.program, candidate, via)
    if isinstance(proved, Equivalent):
        theorem = replay(session.program, candidate, proved.proof)
        if isinstance(theorem, Unknown):
            return UnacceptedCandidate(candidate, "proof-refused", theorem, theorem.reason, record)
        if (never := check_conditions(session.program, candidate, theorem.doubtful, seed=record.seed)) is not None:
            return UnacceptedCandidate(candidate, "unknown", never, never.reason, record)
        verdict = replace(proved, conditions=theorem.conditions, added=theorem.added)
        return VerifiedCandidate(candidate, verdict, theorem, record)
    if policy is Policy.PROBABLE and isinstance(seen, Probable):
        return VerifiedCandidate(candidate, seen, None, record)
    found = find_counterexample(session.program, candidate, seed=record.seed, attempts=_ATTEMPTS)
    if found is not None:
        different = Different(record.seed, found.output, found.index, found.expected, found.got, found)
        where = f"output {found.output} at {list(found.index)}: expected {found.expected:g}, got {found.got:g}"
        return UnacceptedCandidate(
            candidate, "different", different, f"counterexample of seed {record.seed}: {where}", record
        )
    if policy is Policy.PROBABLE and isinstance(seen, Unknown):
        return UnacceptedCandidate(candidate, "unknown", seen, f"{seen.reason}; not proved: {proved.reason}", record)
    return UnacceptedCandidate(candidate, "unproved", proved, proved.reason, record)

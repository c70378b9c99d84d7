"""Policy: which verdicts make a candidate one that may be returned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirage_formal.ir.graph import KernelGraph
from mirage_formal.ir.verdict import Different, Probable, Unknown
from mirage_formal.verify.fingerprint import FingerprintSession
from mirage_formal.verify.record import FingerprintRecord


class Policy(StrEnum):
    """What is accepted.

    PROBABLE: candidates that agree with the program at random points of a finite field.
    BOUNDED: the same, but only where the theorem gives an error bound below 1.
    """

    PROBABLE = "probable"
    BOUNDED = "bounded"


@dataclass(frozen=True, slots=True)
class Verified:
    """A candidate that the policy accepts, with the verdict and the log that it rests on."""

    graph: KernelGraph
    verdict: Probable
    record: FingerprintRecord


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that is not accepted: refuted, unknown, or accepted by a weaker policy only."""

    graph: KernelGraph
    verdict: Probable | Different | Unknown
    record: FingerprintRecord


def certify(
    session: FingerprintSession, candidate: KernelGraph, policy: Policy = Policy.PROBABLE
) -> Verified | Refused:
    """Judge a candidate for the session's program.

    Sound: only Probable is ever accepted, and Probable is not a proof: it says so by its name, its number of rounds and
    its error bound, which are part of the result. Different and Unknown are refused under every policy.

    Raises:
        GraphError: The candidate is not well-formed or has other inputs or outputs than the program.
    """
    result = session.check(candidate)
    match result.verdict:
        case Probable(bound_log2=bound) if policy is Policy.PROBABLE or bound is not None:
            return Verified(candidate, result.verdict, result.record)
        case _:
            return Refused(candidate, result.verdict, result.record)

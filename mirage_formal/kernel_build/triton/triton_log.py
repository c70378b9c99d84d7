"""Verification logs of Triton files: what is established about a file, and what is not.

Established are the verdict on the candidate and its program, whose evidence is in the run, and the bounds of each load
and store whose index could be decided. That the text computes the µGraph is tested, and nothing is claimed about races.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, assert_never

from mirage_formal.codegen.safety.obligation_types import DischargedObligation, UndecidedObligation, ViolatedObligation
from mirage_formal.codegen.triton.access_bounds import AccessBounds, discharge_access_bounds, find_violated_bounds
from mirage_formal.codegen.triton.file import TritonFile
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.records import (
    CANDIDATES,
    VERIFICATION_FILE,
    TritonAccessRecord,
    TritonLogRecord,
    VerificationRecord,
    decode,
    read_file,
    sha256,
)
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.support.errors import FormatError

VerdictName = Literal["equivalent", "probable"]


def access_records(file: TritonFile) -> tuple[TritonAccessRecord, ...]:
    """Return what is known about the bounds of each load and store of a file.

    Sound: a file with an access that is known to be out of bounds is not written. An undecided one is in the log.

    Raises:
        KernelRejected: An access is out of bounds; names it and the values at which it is.
    """
    found = discharge_access_bounds(file)
    if (one := find_violated_bounds(found)) is not None:
        assert isinstance(one.discharged.finding, ViolatedObligation)
        values = ", ".join(f"{name} = {value}" for name, value in one.discharged.finding.model)
        stated = one.discharged.obligation
        what = f"expected accesses in bounds, got one of {stated.subject} in {stated.path} that is not: {values}"
        raise KernelRejected(what[:900], where="triton")
    return tuple(map(_access_record, found))


def _access_record(one: AccessBounds) -> TritonAccessRecord:
    stated = one.discharged.obligation
    means, reason = "", ""
    match one.discharged.finding:
        case DischargedObligation(settled):
            means = settled.value
        case UndecidedObligation(why):
            reason = why[:900]
        case ViolatedObligation():
            raise AssertionError("a file with it is rejected")
        case _:
            assert_never(one.discharged.finding)
    return TritonAccessRecord(
        function=one.function,
        line=one.line,
        access=one.access,
        pointer=stated.subject,
        claim=stated.claim,
        finding="held" if means else "undecided",
        means="solver" if means == "solver" else "interval" if means else "",
        reason=reason,
    )


def triton_log(
    text: str, graph: str, verdict: VerdictName, accesses: tuple[TritonAccessRecord, ...]
) -> TritonLogRecord:
    """Return the log of a file.

    Args:
        text: Its text.
        graph: Digest of the µGraph that it is written from.
        verdict: The verdict that the run's evidence has on the candidate.
        accesses: From ``access_records``.
    """
    return TritonLogRecord(file=sha256(text.encode()), graph=graph, verdict=verdict, accesses=accesses)


def read_verdict(root: Path, name: str) -> VerdictName:
    """Return the verdict on a run's candidate or a whole program's cover, as its verification log has it.

    Raises:
        MirageError: There is no such log, or it is not that of a reported candidate.
    """
    if (root / WHOLE_FILE).is_file():
        return "equivalent"  # a candidate that is only probable is part of no cover
    path = root / CANDIDATES / name / VERIFICATION_FILE
    kind = decode(read_file(path), VerificationRecord, str(path)).verdict.kind
    if kind == "different" or kind == "unknown":
        raise FormatError(f"expected the verdict on a reported candidate, got {kind!r}", where=str(path))
    return kind


__all__ = ["VerdictName", "access_records", "read_verdict", "triton_log"]

"""The records of a whole program that was searched part by part (docs/whole-models.md)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from mirage_formal.records.run import (
    NO_SEAL,
    Count,
    Figure,
    Identity,
    Record,
    Sha256,
    Title,
    VersionedRecord,
)

WHOLE_FILE: Final = "whole.json"
PARTS: Final = "parts"

Ops = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]


def cover_name(rank: int, digest: str) -> str:
    """The directory of a cover's kernels below ``kernels``; ranks count from 1."""
    return f"{rank:03}-{digest[:12]}"


class PartRecord(Record, frozen=True, kw_only=True):
    """One part of the program.

    Attributes:
        operators: Numbers of its operators in the program, ascending.
        run: Directory of the search for it, relative to the file's; empty if no search takes it.
        candidate: Digest of the candidate that takes its place; null if its operators stay as they are.
        directory: Directory of that candidate, relative to the file's; empty if there is none.
        kernels, estimated_us: Of what takes its place.
        unfused_kernels, unfused_us: Of its own operators, one kernel each.
        conditions: What it needs to be defined, by its own operators' numbers.
        added: Those that its own operators do not need.
    """

    operators: Ops
    run: str
    candidate: Sha256 | None
    directory: str
    kernels: Count
    estimated_us: Figure
    unfused_kernels: Count
    unfused_us: Figure
    conditions: tuple[str, ...]
    added: tuple[str, ...]


class CoverRecord(Record, frozen=True, kw_only=True):
    """The program in parts, what takes the place of each, and the whole that is put together.

    Attributes:
        parts: In the order in which they are computed.
        graph: The whole, in the form of mugraph.json.
        graph_digest: Its digest.
        kernels, estimated_us: Of the whole.
        conditions: Those of all parts, each with its part's number.
        added: Those of them that the parts' own operators do not need.
    """

    parts: Annotated[tuple[PartRecord, ...], msgspec.Meta(min_length=1)]
    graph: msgspec.Raw
    graph_digest: Sha256
    kernels: Count
    estimated_us: Figure
    conditions: tuple[str, ...]
    added: tuple[str, ...]


class WholeRecord(VersionedRecord, frozen=True, kw_only=True):
    """whole.json: covers of a program, each proved equal to it.

    Attributes:
        program: Name of the program.
        source: File it came from, as the user named it, or empty.
        config: Name or path of the search space that the user named; null if each part has the one for its operators.
        identity: Of the whole: program, space, target and options, which --resume compares. A part's search has the
            same one but for its program and, where ``config`` is null, its space.
        graph_of_program: The program, in the form of mugraph.json.
        status: "complete"; "interrupted" (Ctrl-C) and "time-limit" may be resumed.
        unfused_kernels, unfused_us: Of the program, one kernel for each operator.
        covers: By ascending estimate; none if the run was interrupted.
        wall_s: Seconds of the session that wrote this.
        manifest: Relative path to sha256 of every part's summary.json, which lists the part's other files.
        seal: Sha256 of this file's bytes with the seal's 64 digits written as zeros.
    """

    program: Title
    source: Title
    config: Title | None
    identity: Identity
    graph_of_program: msgspec.Raw
    status: Literal["complete", "interrupted", "time-limit"]
    unfused_kernels: Count
    unfused_us: Figure
    covers: tuple[CoverRecord, ...]
    wall_s: Figure
    manifest: dict[str, Sha256]
    seal: Sha256 = NO_SEAL

    @property
    def best(self) -> CoverRecord:
        """The cover of least estimate; there is one unless the run was interrupted."""
        return self.covers[0]


__all__ = ["PARTS", "WHOLE_FILE", "CoverRecord", "PartRecord", "WholeRecord", "cover_name"]

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
    Release,
    Sha256,
    Title,
    VerdictRecord,
    VersionedRecord,
)

WHOLE_FILE: Final = "whole.json"
PARTS: Final = "parts"
COVERS: Final = "covers"

Ops = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
#: Directory of a part's candidate in that of a cover, or empty.
PartDirectory = Annotated[str, msgspec.Meta(pattern="^(parts/[0-9]{3,6}-[0-9a-f]{12})?$", max_length=32)]


def cover_name(rank: int, digest: str) -> str:
    """The directory of a cover below ``covers``, and of its kernels below ``kernels``; ranks count from 1."""
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
        manifest: Relative path to sha256 of every search's summary.json and every cover's manifest.json, which list the
            other files. Earlier versions wrote no directories of covers.
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


class PartProofRecord(VersionedRecord, frozen=True, kw_only=True, tag="part", tag_field="record"):
    """One line of a cover's proof.jsonl: a part of the program, what takes its place, and where it is put.

    Attributes:
        operators: Numbers of its operators in the program, ascending.
        reads: Tensors of the program that are the inputs of the part's program, in order.
        results: Tensors of the program that are its outputs, in order.
        candidate: Digest of the candidate that takes its place; null if its operators stay as they are.
        directory: Directory of that candidate with all of its evidence, relative to the cover's, always
            parts/NNN-<id>; empty if there is none. Parts with equal programs and candidates share one.
        manifest: Sha256 of manifest.json there, which ties every file of its evidence; null if there is none.
        proof: Sha256 of proof/equivalence.json there: the proof that the candidate computes the part; null likewise.
        kernels: Numbers of the operators of mugraph.json that compute the part.
        inputs: Tensors of mugraph.json that stand for ``reads``.
        outputs: Tensors of mugraph.json that stand for ``results``.
        conditions: What the part and its replacement need to be defined, by the part's own operators' numbers.
        added: Those that the part's own operators do not need.
    """

    operators: Ops
    reads: tuple[Count, ...]
    results: tuple[Count, ...]
    candidate: Sha256 | None
    directory: PartDirectory
    manifest: Sha256 | None
    proof: Sha256 | None
    kernels: tuple[Count, ...]
    inputs: tuple[Count, ...]
    outputs: tuple[Count, ...]
    conditions: tuple[str, ...]
    added: tuple[str, ...]


class CompositionRecord(VersionedRecord, frozen=True, kw_only=True, tag="composition", tag_field="record"):
    """Last line of a cover's proof.jsonl: counts of the lines before it, and digests of the whole and its program.

    Attributes:
        parts: Lines about parts.
        replaced: Parts whose place a candidate takes.
        proofs: Distinct directories that they name.
        graph: Digest of mugraph.json.
        program: Digest of the program.
    """

    parts: Count
    replaced: Count
    proofs: Count
    graph: Sha256
    program: Sha256


class SolverVersionRecord(Record, frozen=True, kw_only=True):
    """A solver that was called for a part's evidence, with its version."""

    name: Literal["z3-solver", "cvc5"]
    version: Release


class CoverVerificationRecord(VersionedRecord, frozen=True, kw_only=True):
    """verification.json of a cover.

    Attributes:
        candidate: Digest of the graph in mugraph.json.
        program_digest: Digest of ``program``.
        program: The program, so that a cover's directory can be checked alone.
        verdict: The verdict, with the conditions of all parts, each with its part's number.
        basis: What the verdict rests on: the parts' proofs, and that the parts are a partition of the program. No
            fingerprint of the whole was computed; those of the parts are in their logs.
        policy: What a part's candidate needs to take its place: a proof that was replayed, whatever the search accepts.
        tools: Solvers that the logs of the parts name, by name and version; none where all operators stay.
    """

    candidate: Sha256
    program_digest: Sha256
    program: msgspec.Raw
    verdict: VerdictRecord
    basis: Literal["composition"] = "composition"
    policy: Literal["equivalent"] = "equivalent"
    tools: tuple[SolverVersionRecord, ...]


__all__ = [
    "COVERS",
    "PARTS",
    "WHOLE_FILE",
    "CompositionRecord",
    "CoverRecord",
    "CoverVerificationRecord",
    "PartProofRecord",
    "PartRecord",
    "SolverVersionRecord",
    "WholeRecord",
    "cover_name",
]

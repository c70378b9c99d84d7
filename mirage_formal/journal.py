"""The records of a run directory and the rules for writing and reading them.

One Struct per JSON object of docs/run-directory.md, and nothing else knows the format: the pipeline writes these
records, the independent checker reads them. Reading is strict (unknown fields are refused) and bounded; a path inside a
record never leads out of the directory that the record is in.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from mirage_formal.errors import FormatError, RunError

SCHEMA_VERSION: Final = 1

RUN_FILE: Final = "run.json"
SEARCH_FILE: Final = "search.jsonl"
SUMMARY_FILE: Final = "summary.json"
CANDIDATES: Final = "candidates"
GRAPH_FILE: Final = "mugraph.json"
PROOF_FILE: Final = "proof.jsonl"
PROOF_DIR: Final = "proof"
VERIFICATION_FILE: Final = "verification.json"
MANIFEST_FILE: Final = "manifest.json"

#: Largest file that is read, in bytes; a journal of a long search may be larger and is read line by line.
MAX_FILE_BYTES: Final = 64 << 20
MAX_LINE_BYTES: Final = 64 << 20

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Version = Literal[1]
_NO_SEAL: Final = "0" * 64


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every record: frozen, strict about unknown fields."""


class Identity(Record, frozen=True, kw_only=True):
    """Everything that decides what a run finds; two runs with equal identities find the same candidates.

    Attributes:
        program: Digest of the program, over topology, shapes, strides, dtypes and names.
        space: Sha256 over the search space with every bound in it, after command-line overrides.
        engine: "guided" or "exhaustive".
        oracle: "normal-form" or "z3".
        prune: Whether branches are pruned by abstract expressions.
        target: Name of the target that candidates are ranked for.
        target_digest: Sha256 over the target's figures.
        seed: Seed of the fingerprints.
    """

    program: Sha256
    space: Sha256
    engine: str
    oracle: str
    prune: bool
    target: str
    target_digest: Sha256
    seed: Count


class RunRecord(Record, frozen=True, kw_only=True):
    """run.json: what was asked for, written before the search starts and never changed.

    Attributes:
        schema_version: 1.
        name: Name of the program (a variable of the file it came from).
        source: File that the program came from, as the user named it, or empty.
        config: Name of the search space, or its path as the user gave it.
        identity: See Identity.
        key: Sha256 over the canonical JSON of ``identity``; --resume compares it.
        program: The program as a µGraph, in the form of mugraph.json.
        space: The search space, every bound in it, as a JSON object.
        versions: Package name to version, of everything whose version can change a result.
        host: What the run was made on: python, system, machine, cpus. For information.
    """

    schema_version: Version = SCHEMA_VERSION
    name: str
    source: str
    config: str
    identity: Identity
    key: Sha256
    program: msgspec.Raw
    space: dict[str, msgspec.Raw]
    versions: dict[str, str]
    host: dict[str, str]


class FoundRecord(Record, frozen=True, kw_only=True):
    """A candidate as a unit found it.

    Attributes:
        digest: Digest of the graph.
        graph: Compact encoding of the graph, in base64.
        kernels: Kernels launched.
        estimated_us: The cost model's estimate for the run's target, in microseconds.
    """

    digest: Sha256
    graph: bytes
    kernels: Count
    estimated_us: float


class UnitRecord(Record, frozen=True, kw_only=True):
    """One line of search.jsonl: one finished unit of work.

    Attributes:
        schema_version: 1.
        key: The run's key, so that a line never counts for another run.
        unit: Index of the unit.
        label: What the unit is about, readable.
        status: "done", or "failed" after its worker died or hung in every try.
        attempts: Tries that it took.
        stats: Counters by name (states, oracle_calls, ...).
        pruned: Branches cut, by reason.
        fingerprint_tests: Search-time fingerprints computed; what they did not confirm is counted in ``stats``.
        candidates: What it found, in the engine's order.
        milliseconds: Time the worker took.
        error: Why it failed, or empty.
    """

    schema_version: Version = SCHEMA_VERSION
    key: Sha256
    unit: Count
    label: str
    status: Literal["done", "failed"]
    attempts: Count
    stats: dict[str, int]
    pruned: dict[str, int]
    fingerprint_tests: Count
    candidates: tuple[FoundRecord, ...]
    milliseconds: float
    error: str = ""


class SolverRecord(Record, frozen=True, kw_only=True):
    """One solver's answer to one obligation."""

    answer: Literal["unsat", "sat", "unknown"]
    version: str
    milliseconds: float


class CertificateRecord(Record, frozen=True, kw_only=True, tag="certificate", tag_field="record"):
    """One line of proof.jsonl: one tensor's abstract expression is a subexpression of an output's.

    Attributes:
        schema_version: 1.
        tensor: "k<i>" is tensor i of the kernel graph, "b<j>.<i>" tensor i of the block graph of kernel operator j.
        expression: The tensor's abstract expression, as text.
        output: Position in the program's outputs of the target that it is a subexpression of.
        file: Path of the obligation, relative to the candidate's directory, always proof/<name>.smt2.
        sha256: Of that file.
        z3: z3's answer.
        cvc5: cvc5's answer.
    """

    schema_version: Version = SCHEMA_VERSION
    tensor: Annotated[str, msgspec.Meta(pattern=r"^(k|b[0-9]{1,4}\.)[0-9]{1,5}$")]
    expression: str
    output: Count
    file: str
    sha256: Sha256
    z3: SolverRecord
    cvc5: SolverRecord


class ClosingRecord(Record, frozen=True, kw_only=True, tag="end", tag_field="record"):
    """Last line of proof.jsonl: how many lines and distinct obligations precede it, and for which graph."""

    schema_version: Version = SCHEMA_VERSION
    certificates: Count
    obligations: Count
    graph: Sha256
    program: Sha256


ProofRecord = CertificateRecord | ClosingRecord


class VerdictRecord(Record, frozen=True, kw_only=True):
    """A verdict as data; ``kind`` names the class of ir/verdict and the other fields are that class's.

    In the logs of a reported candidate the kind is always "probable".
    """

    kind: Literal["probable", "different", "unknown"]
    rounds: Count = 0
    bound_log2: float | None = None
    reason: str = ""


class VerificationRecord(Record, frozen=True, kw_only=True):
    """verification.json: the verification log of one candidate.

    Attributes:
        schema_version: 1.
        candidate: Digest of the graph in mugraph.json.
        program_digest: Digest of ``program``.
        program: The program as a µGraph, so that a candidate's directory can be checked alone.
        verdict: The verdict.
        fingerprint: Everything that an independent re-draw needs, see docs/fingerprint.md.
    """

    schema_version: Version = SCHEMA_VERSION
    candidate: Sha256
    program_digest: Sha256
    program: msgspec.Raw
    verdict: VerdictRecord
    fingerprint: msgspec.Raw


class ManifestRecord(Record, frozen=True, kw_only=True):
    """manifest.json: sha256 of every other file of the candidate's directory, by relative path, and a seal.

    ``seal`` is the sha256 of the file's own bytes with the seal's 64 digits written as zeros.
    """

    schema_version: Version = SCHEMA_VERSION
    candidate: Sha256
    files: dict[str, Sha256]
    seal: Sha256 = _NO_SEAL


class CandidateRecord(Record, frozen=True, kw_only=True):
    """One item of summary.json's ``candidates``.

    Attributes:
        id: First 12 digits of ``digest``.
        digest: Digest of the graph.
        rank: 1 is the best.
        verdict: "probable".
        error_bound_log2: log2 of the error probability, null where the theorem gives no bound.
        kernels: Kernels launched.
        estimated_us: The cost model's estimate, in microseconds.
        measured_us: Null: nothing is measured on a device yet.
        max_relative_error: Null: nothing is measured on a device yet.
        directory: Relative to the run's directory.
    """

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")]
    digest: Sha256
    rank: Annotated[int, msgspec.Meta(ge=1)]
    verdict: Literal["probable"]
    error_bound_log2: float | None
    kernels: Count
    estimated_us: float
    measured_us: float | None = None
    max_relative_error: float | None = None
    directory: str


class RejectedRecord(Record, frozen=True, kw_only=True):
    """A candidate that was proposed but is not reported, and why; "different" is a bug of the search."""

    digest: Sha256
    kind: Literal["different", "unknown", "certificate"]
    reason: str


class SummaryRecord(Record, frozen=True, kw_only=True):
    """summary.json: what the run found.

    Attributes:
        schema_version: 1.
        program: Name of the program.
        program_digest: Its digest.
        config: Name of the search space.
        key: The run's key.
        status: "complete", "interrupted" (Ctrl-C) or "time-limit"; the latter two may be resumed.
        units: Units of work of the search.
        units_done: Units finished.
        units_failed: Units given up after repeated deaths of their workers.
        states: States visited.
        stats: All counters of the search, by name.
        pruned: Branches cut, by reason.
        found: Candidates that the engine proposed, distinct by digest.
        fingerprint_tests: Fingerprints computed, in the search and at the end.
        wall_s: Seconds of the session that wrote this.
        workers: Worker processes.
        candidates: The reported ones, best first.
        rejected: Proposed ones that are not reported because a check failed.
        manifest: Relative path to sha256, for every other file of the run that is evidence.
        seal: Sha256 of this file's bytes with the seal's 64 digits written as zeros.
    """

    schema_version: Version = SCHEMA_VERSION
    program: str
    program_digest: Sha256
    config: str
    key: Sha256
    status: Literal["complete", "interrupted", "time-limit"]
    units: Count
    units_done: Count
    units_failed: Count
    states: Count
    stats: dict[str, int]
    pruned: dict[str, int]
    found: Count
    fingerprint_tests: Count
    wall_s: float
    workers: Count
    candidates: tuple[CandidateRecord, ...]
    rejected: tuple[RejectedRecord, ...]
    manifest: dict[str, Sha256]
    seal: Sha256 = _NO_SEAL


AnyRecord = TypeVar("AnyRecord", bound=Record)
Sealed = TypeVar("Sealed", ManifestRecord, SummaryRecord)


def sha256(data: bytes) -> str:
    """Sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def key_of(identity: Identity) -> str:
    """Sha256 over an identity: its fields in declared order as compact JSON."""
    return sha256(msgspec.json.encode(identity))


def pretty(record: Record) -> bytes:
    """A record as indented JSON text that ends with a newline."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def line(record: Record) -> bytes:
    """A record as one line of JSON that ends with a newline."""
    return msgspec.json.encode(record) + b"\n"


def sealed(record: Sealed) -> bytes:
    """A record as indented JSON, with its seal computed and filled in."""
    blank = pretty(msgspec.structs.replace(record, seal=_NO_SEAL))
    mark = f'"seal": "{_NO_SEAL}"\n}}\n'.encode()
    assert blank.endswith(mark)
    return blank[: -len(mark)] + mark.replace(_NO_SEAL.encode(), sha256(blank).encode())


def unsealed(data: bytes, kind: type[Sealed], where: str) -> Sealed:
    """Decode a sealed record and check its seal.

    Sound: the seal covers every byte of the file except its own digits, and those are compared, so any changed byte is
    refused.

    Raises:
        FormatError: Not a record of this kind, or the seal does not fit.
    """
    record = decode(data, kind, where)
    blank = re.sub(rb'"seal": "[0-9a-f]{64}"\n\}\n\Z', f'"seal": "{_NO_SEAL}"\n}}\n'.encode(), data)
    if sha256(blank) != record.seal:
        what = f"expected the seal {sha256(blank)}, got {record.seal}"
        raise FormatError(what, where=where, hint="the file was changed after it was written; repeat the search")
    return record


def decode(data: bytes, kind: type[AnyRecord], where: str) -> AnyRecord:
    """Decode one record strictly.

    Raises:
        FormatError: Not JSON, not this record, or another schema version.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"expected a {kind.__name__}: {error}", where=where, hint=_hint(data)) from None


def decode_proof(data: bytes, where: str) -> ProofRecord:
    """Decode one line of proof.jsonl strictly.

    Raises:
        FormatError: Not a line of a proof log.
    """
    try:
        return _PROOF.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"expected a line of a proof log: {error}", where=where, hint=_hint(data)) from None


_PROOF: Final[msgspec.json.Decoder[ProofRecord]] = msgspec.json.Decoder(ProofRecord)


def _hint(data: bytes) -> str:
    if b"schema_version" in data:
        return f"this version reads schema_version {SCHEMA_VERSION}; see docs/run-directory.md"
    return "see docs/run-directory.md"


def read(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Bytes of a regular file of bounded size; symbolic links are refused.

    Raises:
        RunError: Missing, not a regular file, or too large.
    """
    hint = "give a directory that a search has written"
    if path.is_symlink():
        raise RunError("expected a regular file, got a symbolic link", where=str(path), hint=hint)
    if not path.is_file():
        got = "a directory" if path.is_dir() else "nothing there"
        raise RunError(f"expected a regular file, got {got}", where=str(path), hint=hint)
    size = path.stat().st_size
    if size > limit:
        raise RunError(f"expected at most {limit} bytes, got {size}", where=str(path), hint=hint)
    return path.read_bytes()


def confined(root: Path, relative: str) -> Path:
    """The path of ``relative`` under ``root``, which it cannot leave.

    Sound: only plain relative POSIX paths are accepted, no component is "..", and no component below ``root`` is a
    symbolic link.

    Raises:
        FormatError: A path that is absolute, climbs up, is not normal, or runs over a link.
    """
    pure = PurePosixPath(relative)
    normal = relative == str(pure) and "\\" not in relative and "\0" not in relative and relative not in ("", ".")
    if not normal or pure.is_absolute() or ".." in pure.parts or len(relative) > 512:
        what = f"expected a path inside the directory, got {relative[:200]!r}"
        raise FormatError(what, where=str(root), hint="evidence must lie beside the file that names it")
    path = root
    for part in pure.parts:
        path = path / part
        if path.is_symlink():
            raise FormatError("expected a plain file or directory, got a symbolic link", where=str(path))
    return path


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that readers and crashes see the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)

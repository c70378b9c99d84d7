"""Check of one cover's directory: a whole program, and all evidence of the parts that it is composed of.

It needs no other file: the program is in the verification log, and each candidate that takes the place of a part lies
below ``parts`` with its proof, certificates and fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mirage_formal.check.candidate import EstablishedCandidate, check_candidate
from mirage_formal.check.check_steps import check_manifest, expect_equal, step
from mirage_formal.check.equivalence import own_conditions
from mirage_formal.check.partitioning.subgraphs import (
    EqualPart,
    ExtractedPart,
    compose_equal_parts,
    partition,
    place_parts,
)
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verifier import faults
from mirage_formal.records import (
    EQUIVALENCE_FILE,
    GRAPH_FILE,
    MANIFEST_FILE,
    PROOF_FILE,
    VERIFICATION_FILE,
    ManifestRecord,
    VerdictRecord,
    VerificationRecord,
    decode,
    open_sealed,
    read_file,
    read_lines,
    resolve_inside,
    sha256,
)
from mirage_formal.records.partition import (
    PARTS,
    CompositionRecord,
    CoverVerificationRecord,
    PartProofRecord,
    SolverVersionRecord,
)
from mirage_formal.support.errors import FormatError


@dataclass(frozen=True, slots=True)
class CoverFiles:
    """The parsed files of a cover, and its parts, which partition the program.

    Attributes:
        root: Its directory.
        graph: The whole.
        code: Digest of ``graph``.
        program: The program.
        log: The verification log.
        parts: Lines of the proof log about the parts.
        closing: Its last line.
        pieces: The parts' programs, extracted from the program here.
    """

    root: Path
    graph: KernelGraph
    code: str
    program: KernelGraph
    log: CoverVerificationRecord
    parts: tuple[PartProofRecord, ...]
    closing: CompositionRecord
    pieces: tuple[ExtractedPart, ...]

    @property
    def directories(self) -> tuple[str, ...]:
        """Return the directories of the candidates, each once, in the order of their first parts."""
        return tuple(dict.fromkeys(part.directory for part in self.parts if part.directory))


@dataclass(frozen=True, slots=True)
class EstablishedCover:
    """Facts that the check established about a cover from its directory alone.

    Attributes:
        name: Name of its directory.
        digest: Digest of its graph.
        program: Digest of its program.
        operators: Operators of each part.
        replaced: Number of parts that a proved candidate replaces.
        kernels: Number of kernels of the cover.
        unfused: Number of kernels of the program's own operators.
        conditions: Side conditions of the whole.
        added: Those of them that the parts' own operators do not need.
        candidates: Facts about the candidates that it is composed of.
    """

    name: str
    digest: str
    program: str
    operators: tuple[tuple[int, ...], ...]
    replaced: int
    kernels: int
    unfused: int
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    candidates: tuple[EstablishedCandidate, ...]


def check_cover(root: Path, known: Mapping[str, EstablishedCandidate] | None = None) -> EstablishedCover:
    """Check everything about one cover, from its directory alone.

    Sound: see ``verify_cover``; each candidate below ``parts`` is checked like any other, with its certificates, proof
    and fingerprint. One whose manifest is, byte for byte, that of a candidate that was established before has the same
    files, for this manifest is compared with them here, and is not checked twice.

    Args:
        root: The directory.
        known: Facts about candidates that were established elsewhere, by the sha256 of their manifests.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    files = read_cover(root)
    held: dict[str, EstablishedCandidate] = {}
    for name in files.directories:
        with step(root / name / MANIFEST_FILE, "read the manifest", corrupt=True):
            data = read_file(root / name / MANIFEST_FILE)
            manifest = decode(data, ManifestRecord, MANIFEST_FILE)
        if known is not None and (one := known.get(sha256(data))) is not None:
            check_manifest(root / name, MANIFEST_FILE, manifest.files)
            held[name] = one
        else:
            held[name] = check_candidate(root / name)
    equal: dict[str, EqualPart] = {}
    for name, one in held.items():
        with step(root / name / VERIFICATION_FILE, "verdict of a part"):
            expect_equal("verdict", "equivalent", one.verdict)
            equal[name] = EqualPart(from_json(read_file(root / name / GRAPH_FILE), name), one.conditions, one.added)
    whole = verify_cover(files, equal)
    with step(root / VERIFICATION_FILE, "tools"):
        expect_equal("tools", solver_records(pair for one in held.values() for pair in one.solvers), files.log.tools)
    return EstablishedCover(
        root.name,
        files.code,
        files.log.program_digest,
        tuple(part.operators for part in files.parts),
        files.closing.replaced,
        kernel_count(whole.graph),
        kernel_count(files.program),
        whole.conditions,
        whole.added,
        tuple(held.values()),
    )


def read_cover(root: Path) -> CoverFiles:
    """Read a cover's files and establish that its parts partition its program.

    Sound: see ``partition``; every file is listed in the manifest, with its digest.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    with step(root / MANIFEST_FILE, "read the manifest", corrupt=True):
        manifest = open_sealed(read_file(root / MANIFEST_FILE), ManifestRecord, MANIFEST_FILE)
    check_manifest(root, MANIFEST_FILE, manifest.files)
    with step(root / GRAPH_FILE, "read the graph", corrupt=True):
        graph = from_json(read_file(root / GRAPH_FILE), GRAPH_FILE)
    with step(root / PROOF_FILE, "read the proof log", corrupt=True):
        texts = [text for _, text in read_lines(root / PROOF_FILE)]
        if not texts:
            raise FormatError("expected a line for each part and a last one, got none")
        parts = tuple(decode(text, PartProofRecord, f"line {n}") for n, text in enumerate(texts[:-1], 1))
        closing = decode(texts[-1], CompositionRecord, f"line {len(texts)}")
        for part in parts:
            if (part.candidate is None) == bool(part.directory):
                raise FormatError(f"expected a directory for a candidate and for nothing else, got {part.directory!r}")
            if part.directory:
                resolve_inside(root, part.directory)
    with step(root / VERIFICATION_FILE, "read the verification log", corrupt=True):
        log = decode(read_file(root / VERIFICATION_FILE), CoverVerificationRecord, VERIFICATION_FILE)
        program = from_json(bytes(log.program), "program")
    with step(root / MANIFEST_FILE, "manifest"):
        own = {GRAPH_FILE, PROOF_FILE, VERIFICATION_FILE}
        named = {part.directory for part in parts if part.directory}
        for name in sorted(manifest.files.keys() - own):
            if "/".join(name.split("/")[:2]) not in named or not name.startswith(f"{PARTS}/"):
                raise FormatError(f"expected only files of a cover and of its parts, got {name} as well")
    for name, one, code in ((GRAPH_FILE, graph, manifest.candidate), (VERIFICATION_FILE, program, log.program_digest)):
        with step(root / name, "well-formed graph"):
            if found := faults(one):
                raise FormatError("; ".join(found)[:600])
            expect_equal("digest", digest(one), code)
    with step(root / VERIFICATION_FILE, "program"):
        if any(isinstance(op, GraphDefined) for op in program.ops):
            raise FormatError("expected predefined operators only, got a graph-defined one")
        expect_equal("candidate", manifest.candidate, log.candidate)
    with step(root / PROOF_FILE, "partition"):
        pieces = partition(program, [part.operators for part in parts])
    return CoverFiles(root, graph, manifest.candidate, program, log, parts, closing, pieces)


def verify_cover(files: CoverFiles, equal: Mapping[str, EqualPart]) -> EqualPart:
    """Establish that a cover computes its program, and that its logs say how.

    Sound: see ``compose_equal_parts``. A part's graph is either its own operators, or a candidate for the very program
    that was extracted here, whose proof was replayed; and the composed graph is the one in mugraph.json.

    Args:
        files: The files.
        equal: For each directory below ``parts``, the graph in it, which was established to compute the program in its
            verification log wherever the conditions hold.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    path = files.root / PROOF_FILE
    parts: list[EqualPart] = []
    for number, (line, piece) in enumerate(zip(files.parts, files.pieces, strict=True), 1):
        with step(path, f"part {number}: candidate"):
            parts.append(_equal_part(files.root, line, piece, equal))
    with step(files.root / GRAPH_FILE, "the whole is put together from the parts"):
        whole = compose_equal_parts(files.program, files.pieces, parts)
        expect_equal("graph", whole.graph, files.graph)
    with step(path, "evidence of the parts"):
        replaced = [
            ReplacedPart(line.operators, part, _evidence(files.root, line))
            for line, part in zip(files.parts, parts, strict=True)
        ]
        lines = part_lines(files.program, replaced)
    for number, (line, stated) in enumerate(zip(lines, files.parts, strict=True), 1):
        with step(path, f"part {number}: claims"):
            for name, value in msgspec.structs.asdict(line).items():
                expect_equal(name, value, getattr(stated, name))
    with step(path, "closing line"):
        expect_equal("closing line", closing_line(lines, files.code, files.log.program_digest), files.closing)
    with step(files.root / VERIFICATION_FILE, "verdict"):
        verdict = VerdictRecord(kind="equivalent", conditions=whole.conditions, added=whole.added)
        expect_equal("verdict", verdict, files.log.verdict)
    return whole


def _equal_part(root: Path, line: PartProofRecord, piece: ExtractedPart, equal: Mapping[str, EqualPart]) -> EqualPart:
    """Return the replacement of a part: its proved candidate, or without one the part itself.

    Raises:
        FormatError: The candidate is another, or its proof is about another program.
    """
    if line.candidate is None:
        return EqualPart(piece.program, own_conditions(piece.program), ())
    found, where = equal[line.directory], root / line.directory / VERIFICATION_FILE
    expect_equal("digest of the candidate", line.candidate, digest(found.graph))
    log = decode(read_file(where), VerificationRecord, VERIFICATION_FILE)
    # Equal digests do not suffice: conditions name operators by their numbers in the proved program.
    expect_equal("program of the proof", piece.program, from_json(bytes(log.program), "program"))
    return found


@dataclass(frozen=True, slots=True)
class ReplacedPart:
    """A part of a program, and what takes its place.

    Attributes:
        operators: Numbers of its operators.
        equal: The graph that takes its place.
        evidence: Of a candidate its digest, its directory in the cover's, and the sha256 of manifest and proof there;
            None if the operators stay.
    """

    operators: tuple[int, ...]
    equal: EqualPart
    evidence: tuple[str, str, str, str] | None


def _evidence(root: Path, line: PartProofRecord) -> tuple[str, str, str, str] | None:
    if line.candidate is None:
        return None
    manifest, proof = (sha256(read_file(root / line.directory / name)) for name in (MANIFEST_FILE, EQUIVALENCE_FILE))
    return line.candidate, line.directory, manifest, proof


def part_lines(program: KernelGraph, parts: Sequence[ReplacedPart]) -> tuple[PartProofRecord, ...]:
    """Return the lines of a cover's proof log about its parts.

    Raises:
        FormatError: The parts are no partition of the program.
    """
    pieces = partition(program, [part.operators for part in parts])
    _, places = place_parts(program, pieces, [part.equal.graph for part in parts])
    found: list[PartProofRecord] = []
    for part, piece, place in zip(parts, pieces, places, strict=True):
        candidate, directory, manifest, proof = part.evidence or (None, "", None, None)
        found.append(
            PartProofRecord(
                operators=part.operators,
                reads=piece.reads,
                results=piece.results,
                candidate=candidate,
                directory=directory,
                manifest=manifest,
                proof=proof,
                kernels=place.kernels,
                inputs=place.inputs,
                outputs=place.outputs,
                conditions=part.equal.conditions,
                added=part.equal.added,
            )
        )
    return tuple(found)


def closing_line(lines: Sequence[PartProofRecord], graph: str, program: str) -> CompositionRecord:
    """Return the last line of a cover's proof log, given the digests of the whole and of the program."""
    replaced = [line.directory for line in lines if line.candidate is not None]
    return CompositionRecord(
        parts=len(lines), replaced=len(replaced), proofs=len(set(replaced)), graph=graph, program=program
    )


def solver_records(asked: Iterable[tuple[str, str]]) -> tuple[SolverVersionRecord, ...]:
    """Return packages and versions of solvers, in order and each once, as records."""
    found = [{"name": name, "version": version} for name, version in sorted(set(asked))]
    return msgspec.convert(found, tuple[SolverVersionRecord, ...])


__all__ = [
    "CoverFiles",
    "EstablishedCover",
    "ReplacedPart",
    "check_cover",
    "closing_line",
    "part_lines",
    "read_cover",
    "solver_records",
    "verify_cover",
]

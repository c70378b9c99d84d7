"""Evidence of covers: a directory for each, composed from the evidence of its parts, that can be checked alone."""

from __future__ import annotations

from pathlib import Path

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import embed, from_json, to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import (
    EQUIVALENCE_FILE,
    GRAPH_FILE,
    MANIFEST_FILE,
    PROOF_FILE,
    VERIFICATION_FILE,
    VerdictRecord,
    decode_proof,
    json_line,
    read_directory,
    sha256,
    to_indented_json,
)
from mirage_formal.records.partition import COVERS, PARTS, CoverRecord, CoverVerificationRecord, cover_name
from mirage_formal.run_directory.directory_layout import COVER_SET
from mirage_formal.run_directory.run_writer import replace_evidence


def write_cover_evidence(root: Path, program: KernelGraph, covers: tuple[CoverRecord, ...]) -> dict[str, str]:
    """Write the directories of a whole program's covers, from the directories of the candidates of their parts.

    Args:
        root: Directory of the whole program.
        program: The program.
        covers: Its covers, best first; at least one.

    Returns:
        Digests of the manifests of all covers, by paths relative to the root.
    """
    evidence = [
        (f"{COVERS}/{cover_name(rank, one.graph_digest)}", one.graph_digest, _cover_files(root, program, one))
        for rank, one in enumerate(covers, 1)
    ]
    manifest = replace_evidence(root, COVERS, COVER_SET, evidence)
    return {name: manifest[name] for name in (f"{place}/{MANIFEST_FILE}" for place, _, _ in evidence)}


def _cover_files(root: Path, program: KernelGraph, cover: CoverRecord) -> dict[str, bytes]:
    """Return the files of a cover's directory, but its manifest."""
    from mirage_formal.check.candidate import solver_versions  # loads numerical packages
    from mirage_formal.check.partitioning.cover_directory import ReplacedPart, closing_line, part_lines, solver_records
    from mirage_formal.check.partitioning.subgraphs import EqualPart, partition

    files: dict[str, bytes] = {}
    places: dict[str, str] = {}
    parts: list[ReplacedPart] = []
    pieces = partition(program, [part.operators for part in cover.parts])
    for part, piece in zip(cover.parts, pieces, strict=True):
        graph, evidence = piece.program, None
        if part.candidate is not None:
            if part.directory not in places:
                place = places[part.directory] = f"{PARTS}/{cover_name(len(places) + 1, part.candidate)}"
                files |= {f"{place}/{name}": data for name, data in read_directory(root / part.directory).items()}
            place = places[part.directory]
            graph = from_json(files[f"{place}/{GRAPH_FILE}"], GRAPH_FILE)
            manifest, proof = (sha256(files[f"{place}/{name}"]) for name in (MANIFEST_FILE, EQUIVALENCE_FILE))
            evidence = part.candidate, place, manifest, proof
        parts.append(ReplacedPart(part.operators, EqualPart(graph, part.conditions, part.added), evidence))
    lines = part_lines(program, parts)
    own = digest(program)
    logs = (data for name, data in files.items() if name.endswith(f"/{PROOF_FILE}"))
    asked = solver_versions(decode_proof(text, PROOF_FILE) for data in logs for text in data.splitlines())
    log = CoverVerificationRecord(
        candidate=cover.graph_digest,
        program_digest=own,
        program=embed(program),
        verdict=VerdictRecord(kind="equivalent", conditions=cover.conditions, added=cover.added),
        tools=solver_records(asked),
    )
    return {
        GRAPH_FILE: to_json(from_json(bytes(cover.graph), "graph")).encode(),
        PROOF_FILE: b"".join(json_line(line) for line in (*lines, closing_line(lines, cover.graph_digest, own))),
        VERIFICATION_FILE: to_indented_json(log),
        **files,
    }


__all__ = ["write_cover_evidence"]

"""Check of a whole program that was searched in subgraphs: its covers, their subgraphs and the stitched graphs.

It is independent of the code that partitions and stitches: ``subgraphs`` extracts the subgraphs' programs from the
program, and stitches the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mirage_formal.check.candidate import EstablishedCandidate
from mirage_formal.check.check_steps import expect_equal, list_files, step
from mirage_formal.check.cuda.manifest import EstablishedKernels
from mirage_formal.check.equivalence import own_conditions
from mirage_formal.check.partitioning.cover_directory import check_cover
from mirage_formal.check.partitioning.subgraphs import EqualPart, ExtractedPart, compose_equal_parts, partition
from mirage_formal.check.run_check import Run
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verifier import faults
from mirage_formal.records import (
    GRAPH_FILE,
    KERNELS,
    MANIFEST_FILE,
    RUN_FILE,
    SUMMARY_FILE,
    decode,
    open_sealed,
    read_file,
    resolve_inside,
    sha256,
)
from mirage_formal.records.partition import COVERS, PARTS, WHOLE_FILE, PartRecord, WholeRecord, cover_name
from mirage_formal.support.errors import FormatError, RunError


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """A whole program's record, and the subgraphs of each cover, which partition the program."""

    root: Path
    record: WholeRecord
    program: KernelGraph
    covers: tuple[tuple[ExtractedPart, ...], ...]

    @property
    def runs(self) -> list[str]:
        """Return the directories of the searches, relative to the root; some may be used by no cover."""
        names = (name for name in self.record.manifest if not name.startswith(f"{COVERS}/"))
        return sorted(name.removesuffix(f"/{SUMMARY_FILE}") for name in names)

    @property
    def cover_directories(self) -> list[str]:
        """Return the directories of the covers, best first, relative to the root; earlier versions wrote none."""
        return sorted(name.rpartition("/")[0] for name in self.record.manifest if name.startswith(f"{COVERS}/"))

    @property
    def kernels(self) -> dict[str, int]:
        """Return the names of the existing directories of kernels, each with the position of its cover."""
        names = {cover_name(i + 1, one.graph_digest): i for i, one in enumerate(self.record.covers)}
        return {name: i for name, i in names.items() if (self.root / KERNELS / name).is_dir()}


@dataclass(frozen=True, slots=True)
class EstablishedWhole:
    """Facts that the check established about a cover of a whole program.

    Attributes:
        name: Name of its directory.
        rank: Its place among the covers, from 1; 0 of a cover's directory alone.
        digest: Digest of its graph.
        parts: Number of its subgraphs.
        replaced: Number of subgraphs that a proved candidate replaces.
        kernels: Number of kernels of the cover.
        unfused: Number of kernels of the unfused program.
        conditions: Side conditions of the whole.
        added: Those of them that the subgraphs' own operators do not need.
    """

    name: str
    rank: int
    digest: str
    parts: int
    replaced: int
    kernels: int
    unfused: int
    conditions: tuple[str, ...]
    added: tuple[str, ...]


def read_whole(root: Path) -> WholeProgram:
    """Read whole.json and establish that the subgraphs of each cover partition its program.

    Sound: see ``check.partitioning.subgraphs.partition``.

    Raises:
        CheckFailed: Names the first file and step that fails.
        RunError: The run has not finished.
    """
    path = root / WHOLE_FILE
    with step(path, "read the whole", corrupt=True):
        record = decode(read_file(path), WholeRecord, WHOLE_FILE)
        parts = [part for one in record.covers for part in one.parts]
        for name in (*record.manifest, *(d for part in parts for d in (part.run, part.directory) if d)):
            resolve_inside(root, name)
        program = from_json(bytes(record.graph_of_program), "program")
    with step(path, "seal"):
        open_sealed(read_file(path), WholeRecord, WHOLE_FILE)
    if record.status == "interrupted":
        hint = "--resume the search"
        raise RunError("expected a whole program, got a run that has not finished", where=str(root), hint=hint)
    with step(path, "program"):
        if found := faults(program):
            raise FormatError("; ".join(found)[:600])
        expect_equal("digest of the program", digest(program), record.identity.program)
        if any(isinstance(op, GraphDefined) for op in program.ops):
            raise FormatError("expected predefined operators only, got a graph-defined one")
    with step(path, "covers"):
        if not record.covers:
            raise FormatError("expected at least one cover, got none")
        digests = [one.graph_digest for one in record.covers]
        expect_equal("distinct covers", len(digests), len(set(digests)))
        figures = [one.estimated_us for one in record.covers]
        expect_equal("order of covers", sorted(figures), figures)
    with step(path, "partition"):
        covers = tuple(partition(program, [part.operators for part in one.parts]) for one in record.covers)
    whole = WholeProgram(root, record, program, covers)
    _check_files(whole)
    return whole


def _check_files(whole: WholeProgram) -> None:
    """Check that the searches' summaries are those that were sealed, and that there are no other files."""
    path = whole.root / WHOLE_FILE
    with step(path, "manifest"):
        covers = [f"{name}/{MANIFEST_FILE}" for name in whole.cover_directories]
        summaries = [f"{run}/{SUMMARY_FILE}" for run in whole.runs]
        expect_equal("summaries and covers", sorted([*summaries, *covers]), sorted(whole.record.manifest))
        used = {part.run for one in whole.record.covers for part in one.parts if part.run}
        expect_equal("searches that are not listed", [], sorted(used - set(whole.runs)))
        empty = set() if whole.runs else {f"{PARTS}/"}
        listed = (*whole.runs, *whole.cover_directories, *(f"{KERNELS}/{name}" for name in whole.kernels))
        ours = tuple(f"{name}/" for name in listed)
        for name in sorted(list_files(whole.root) - {WHOLE_FILE} - empty):
            if not name.startswith(ours):
                raise FormatError(
                    f"expected only files of the parts' searches, of covers and of their kernels, got {name} as well"
                )
    for name, code in whole.record.manifest.items():
        with step(whole.root / name, "digest of the file"):
            expect_equal("sha256", code, sha256(read_file(resolve_inside(whole.root, name))))


def check_whole(
    whole: WholeProgram, found: Mapping[str, tuple[Run, Sequence[EstablishedCandidate]]]
) -> list[EstablishedWhole]:
    """Establish that each cover computes the program, from the facts established about its subgraphs' searches.

    Sound: by induction over the parts. Each part's graph is either its own operators, or a candidate for the very
    program that was taken out here, whose proof the kernel replayed; so on equal tensors it yields the tensors
    that the part yields. The whole is those graphs one after another, put together here. The conditions are those of
    all parts, about the tensors that they read, which are the program's.

    Args:
        whole: The whole program.
        found: For each directory of a search, the run and the facts established about its candidates.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    for run, _ in found.values():
        with step(run.root / RUN_FILE, "search for a part of this whole"):
            _check_search(whole.record, run)
    with step(whole.root / WHOLE_FILE, "claims about the program"):
        expect_equal("kernels", kernel_count(whole.program), whole.record.unfused_kernels)
    return [_check_cover(whole, rank, found) for rank in range(1, len(whole.covers) + 1)]


def _check_cover(
    whole: WholeProgram, rank: int, found: Mapping[str, tuple[Run, Sequence[EstablishedCandidate]]]
) -> EstablishedWhole:
    path, record, pieces = whole.root / WHOLE_FILE, whole.record.covers[rank - 1], whole.covers[rank - 1]
    parts: list[EqualPart] = []
    for number, (part, piece) in enumerate(zip(record.parts, pieces, strict=True), 1):
        at = f"cover {rank}, part {number}"
        parts.append(one := _replacement(whole, at, part, piece, found))
        with step(path, f"{at}: claims"):
            expect_equal("conditions", one.conditions, part.conditions)
            expect_equal("conditions that its operators have not", one.added, part.added)
            own = (part.kernels, part.unfused_kernels)
            expect_equal("kernels", (kernel_count(one.graph), kernel_count(piece.program)), own)
    with step(path, f"cover {rank}: the whole is put together from the parts"):
        together = compose_equal_parts(whole.program, pieces, parts)
        expect_equal("graph", together.graph, from_json(bytes(record.graph), "graph"))
        expect_equal("digest of the graph", digest(together.graph), record.graph_digest)
    with step(path, f"cover {rank}: claims about the whole"):
        expect_equal("conditions", together.conditions, record.conditions)
        expect_equal("conditions that the parts' operators have not", together.added, record.added)
        expect_equal("kernels", kernel_count(together.graph), record.kernels)
    replaced = sum(bool(part.candidate) for part in record.parts)
    counts = (len(pieces), replaced, record.kernels, whole.record.unfused_kernels)
    return EstablishedWhole(whole.root.name, rank, record.graph_digest, *counts, record.conditions, record.added)


def check_kernels_of_covers(whole: WholeProgram, results: Mapping[str, EstablishedKernels]) -> None:
    """Check that kernels are those of the cover whose directory has the same name, of this program.

    Args:
        whole: The covers.
        results: Facts established about the kernels, by the names of their directories.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    who = whole.record.identity
    for name, result in results.items():
        with step(whole.root / KERNELS / name / MANIFEST_FILE, "whose kernels"):
            expect_equal("candidate", whole.record.covers[whole.kernels[name]].graph_digest, result.candidate)
            expect_equal("program", who.program, result.program)
            expect_equal("target", (who.target, who.target_digest), (result.target, result.target_digest))


def check_cover_directories(whole: WholeProgram, known: Mapping[str, EstablishedCandidate]) -> None:
    """Check the directories of the covers, each by itself, and that they are those of whole.json.

    Args:
        whole: The whole program, whose covers were established.
        known: Facts about the candidates of its searches, by the sha256 of their manifests.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    names = [f"{COVERS}/{cover_name(i, one.graph_digest)}" for i, one in enumerate(whole.record.covers, 1)]
    with step(whole.root / WHOLE_FILE, "directories of covers"):
        if whole.cover_directories:
            expect_equal("directories", names, whole.cover_directories)
    for name, record in zip(whole.cover_directories, whole.record.covers, strict=False):
        held = check_cover(whole.root / name, known)
        with step(whole.root / name / MANIFEST_FILE, "cover of this whole"):
            expect_equal("graph", record.graph_digest, held.digest)
            expect_equal("program", whole.record.identity.program, held.program)
            expect_equal("operators of the parts", tuple(part.operators for part in record.parts), held.operators)
            expect_equal("conditions", (record.conditions, record.added), (held.conditions, held.added))


def _check_search(record: WholeRecord, run: Run) -> None:
    """Check that a subgraph was searched with the options of the whole, except for its own search space."""
    who = run.record.identity
    space = who.space if record.config is None else record.identity.space
    asked = msgspec.structs.replace(record.identity, program=who.program, space=space)
    expect_equal("identity", msgspec.structs.asdict(asked), msgspec.structs.asdict(who))


def _replacement(
    whole: WholeProgram,
    at: str,
    part: PartRecord,
    piece: ExtractedPart,
    found: Mapping[str, tuple[Run, Sequence[EstablishedCandidate]]],
) -> EqualPart:
    """Return a part's replacement, its definedness conditions, and those that the part's operators lack."""
    path = whole.root / WHOLE_FILE
    if part.run:
        with step(whole.root / part.run / RUN_FILE, f"program of {at}"):
            expect_equal("digest of the part's program", digest(piece.program), digest(found[part.run][0].program))
            # Equal digests do not suffice: conditions name operators by their numbers in the searched program.
            expect_equal("the part's program", piece.program, found[part.run][0].program)
    if not part.candidate:
        with step(path, f"{at}: operators that stay"):
            expect_equal("directory", "", part.directory)
            return EqualPart(piece.program, own_conditions(piece.program), ())
    with step(path, f"{at}: candidate"):
        if not part.run:
            raise FormatError("expected the search that found the candidate, got none")
        run, results = found[part.run]
        listed = {item.digest: item for item in run.summary.candidates}
        if part.candidate not in listed:
            raise FormatError(f"expected a candidate of {part.run}, got digest {part.candidate}")
        item = listed[part.candidate]
        expect_equal("directory", f"{part.run}/{item.directory}", part.directory)
        expect_equal("estimate", item.estimated_us, part.estimated_us)
        held = {result.digest: result for result in results}[part.candidate]
        expect_equal("verdict", "equivalent", held.verdict)
    file = whole.root / part.directory / GRAPH_FILE
    with step(file, f"graph of {at}"):
        graph = from_json(read_file(file), GRAPH_FILE)
        expect_equal("digest", part.candidate, digest(graph))
        expect_equal("inputs", piece.program.inputs, graph.inputs)
        expect_equal("outputs", len(piece.results), len(graph.outputs))
    return EqualPart(graph, held.conditions, held.added)


__all__ = [
    "EstablishedWhole",
    "WholeProgram",
    "check_cover_directories",
    "check_kernels_of_covers",
    "check_whole",
    "read_whole",
]

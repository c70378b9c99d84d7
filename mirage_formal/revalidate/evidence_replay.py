"""Replay of the evidence in a directory, without a search and without a solver.

A candidate's directory has a proof, which the checker's kernel replays here. The directory of a run has several, and
the checker composes a whole program from them. ``check`` establishes more (certificates, the solvers' answers, the
journal); none of that makes two graphs equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirage_formal.check.check_steps import CheckFailed, check_manifest, expect_equal, list_files, step
from mirage_formal.check.equivalence import describe_theorem, own_conditions
from mirage_formal.check.minimal_check import establish_equality
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verdict import Equivalent, Probable
from mirage_formal.graph.verifier import faults, output_types
from mirage_formal.records import (
    CANDIDATES,
    EQUIVALENCE_FILE,
    EXHAUSTED_FILE,
    GRAPH_FILE,
    KERNELS,
    MANIFEST_FILE,
    PROOF_DIR,
    PROOF_FILE,
    RUN_FILE,
    SEARCH_FILE,
    SUMMARY_FILE,
    VERIFICATION_FILE,
    ManifestRecord,
    RunRecord,
    SummaryRecord,
    VerificationRecord,
    decode,
    is_cover,
    key_of,
    open_sealed,
    read_file,
    resolve_inside,
    sha256,
)
from mirage_formal.records.partition import COVERS, PARTS, WHOLE_FILE, CoverRecord, PartRecord, WholeRecord
from mirage_formal.support.errors import FormatError, RunError

if TYPE_CHECKING:
    from mirage_formal.check.partitioning.subgraphs import EqualPart

_HINT: Final = (
    "give the directory of a finished run, a candidate, a whole program, a cover, or of an entry of the store"
)


@dataclass(frozen=True, slots=True)
class ReplayedCandidate:
    """A candidate whose evidence holds.

    Attributes:
        graph: The µGraph.
        digest: Its digest.
        verdict: The verdict of its evidence, with conditions as the checker states them now.
        us: Estimated microseconds as they were written down; None in a candidate's directory alone.
        directory: The directory of its evidence.
    """

    graph: KernelGraph
    digest: str
    verdict: Equivalent | Probable
    us: float | None
    directory: Path


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of replaying the evidence in a directory.

    Attributes:
        program: The program.
        shown: Its candidates, or its covers, best first.
        record: run.json or whole.json; None for a candidate alone.
        runs: Of a whole program, the summaries of its parts' searches, by directory.
        parts: Of a whole program, the candidates that its covers are made of, by directory.
        left: Number of the run's further candidates, whose proofs were not replayed. Nothing is known of them.
    """

    program: KernelGraph
    shown: tuple[ReplayedCandidate, ...]
    record: RunRecord | WholeRecord | None
    runs: Mapping[str, SummaryRecord]
    parts: Mapping[str, ReplayedCandidate]
    left: int = 0


def replay_directory(root: Path, most: int | None = None) -> ReplayResult:
    """Replay a directory's evidence and return the candidates that it establishes.

    Sound: nothing that a file says about equality is believed. The checker reads program and candidates from the files
    and its kernel replays every proof; covers are put together from these candidates by the checker. What is only
    probable is evaluated again at the points that its seed gives. Estimates and everything else that orders candidates
    are as they were written down: they make nothing equal. A candidate that is not replayed is not returned.

    Args:
        root: The directory.
        most: Number of a run's first candidates that are replayed; None for all. Of other directories all are.

    Raises:
        MirageError: It is no such directory, or something in it does not hold; names the file and step.
    """
    try:
        return _replay(root, most)
    except CheckFailed as failure:
        what, where = f"{failure.step}: {failure.what}", os.path.join(root, failure.file)
        hint = "the evidence is not what a search wrote: repeat the search"
        raise FormatError(what, where=where, hint=hint) from None


def _replay(root: Path, most: int | None) -> ReplayResult:
    if (root / WHOLE_FILE).is_file():
        return _replay_whole(root)
    if (root / RUN_FILE).is_file() or (root / SUMMARY_FILE).is_file():
        return _replay_run(root, most)
    if (root / MANIFEST_FILE).is_file() and (root / GRAPH_FILE).is_file():
        program, shown = (_replay_cover_alone if is_cover(root) else _replay_candidate)(root)
        return ReplayResult(program, (shown,), None, {}, {})
    got = "one without evidence" if root.is_dir() else "a file" if root.exists() else "nothing there"
    raise RunError(f"expected a directory of results, got {got}", where=str(root), hint=_HINT)


def _replay_candidate(root: Path, us: float | None = None) -> tuple[KernelGraph, ReplayedCandidate]:
    """Return a candidate, and the program that it is proved equal to.

    Sound: see ``check.minimal_check.establish_equality``; the verdict's conditions are those that the kernel states.
    """
    with step(root / MANIFEST_FILE, "read the manifest", corrupt=True):
        manifest = open_sealed(read_file(root / MANIFEST_FILE), ManifestRecord, MANIFEST_FILE)
    check_manifest(root, MANIFEST_FILE, manifest.files)
    _check_file_names(
        root / MANIFEST_FILE, manifest.files, (GRAPH_FILE, PROOF_FILE, VERIFICATION_FILE, f"{PROOF_DIR}/")
    )
    with step(root / VERIFICATION_FILE, "read the verification log", corrupt=True):
        log = decode(read_file(root / VERIFICATION_FILE), VerificationRecord, VERIFICATION_FILE)
    if log.verdict.kind != "equivalent":
        return _replay_fingerprint(root, manifest, log, us)
    with step(root / EQUIVALENCE_FILE, "replay the proof"):
        proved = establish_equality(root)
        told = describe_theorem(proved.theorem)
    with step(root / VERIFICATION_FILE, "conditions"):
        expect_equal("conditions", told.conditions, log.verdict.conditions)
        expect_equal("conditions that the program has not", told.added, log.verdict.added)
    verdict = Equivalent(read_file(root / EQUIVALENCE_FILE), told.conditions, told.added)
    _expect_digests(root, proved.program, proved.candidate, manifest, log)
    return proved.program, ReplayedCandidate(proved.candidate, manifest.candidate, verdict, us, root)


def _replay_fingerprint(
    root: Path, manifest: ManifestRecord, log: VerificationRecord, us: float | None
) -> tuple[KernelGraph, ReplayedCandidate]:
    """Return a candidate without a proof, after its fingerprint is drawn again.

    Sound: see ``check.fingerprint.fingerprint.check_fingerprint``; the verdict says that it is no proof.
    """
    from mirage_formal.check.fingerprint.fingerprint import check_fingerprint  # loads NumPy
    from mirage_formal.records.fingerprint import FingerprintRecord

    with step(root / VERIFICATION_FILE, "read the fingerprint", corrupt=True):
        program = from_json(bytes(log.program), "program")
        candidate = from_json(read_file(root / GRAPH_FILE), GRAPH_FILE)
        record = decode(bytes(log.fingerprint), FingerprintRecord, "fingerprint")
    with step(root / VERIFICATION_FILE, "fingerprint"):
        expect_equal("verdict", ("probable", "probable"), (log.verdict.kind, record.verdict))
        if found := [*faults(program), *faults(candidate)]:
            raise FormatError("; ".join(found)[:600])
        expect_equal("inputs", program.inputs, candidate.inputs)
        expect_equal("outputs", output_types(program), output_types(candidate))
        check_fingerprint(program, candidate, record)
    _expect_digests(root, program, candidate, manifest, log)
    verdict = Probable(record.rounds, record.bound_log2, record.bound_reason)
    return program, ReplayedCandidate(candidate, manifest.candidate, verdict, us, root)


def _check_file_names(path: Path, names: Iterable[str], ours: tuple[str, ...]) -> None:
    """Refuse files that no search writes: names that are not listed, nor below a listed directory."""
    below = tuple(name for name in ours if name.endswith("/"))
    with step(path, "files of a search"):
        for name in sorted(names):
            if name not in ours and not name.startswith(below):
                raise FormatError(f"expected only files that a search writes, got {name} as well")


def _expect_digests(
    root: Path, program: KernelGraph, candidate: KernelGraph, manifest: ManifestRecord, log: VerificationRecord
) -> None:
    with step(root / GRAPH_FILE, "digests of the graphs"):
        expect_equal("digest of the candidate", digest(candidate), manifest.candidate)
        expect_equal("candidate", manifest.candidate, log.candidate)
        expect_equal("digest of the program", digest(program), log.program_digest)


# --- runs ------------------------------------------------------------------------------------------------------------


def _replay_run(root: Path, most: int | None) -> ReplayResult:
    """Replay a finished run: its files have their digests, its first candidates are proved equal to its program."""
    summary, record, program = _records(root)
    shown = []
    for item in summary.candidates[:most]:
        where = resolve_inside(root, item.directory)
        own, one = _replay_candidate(where, item.estimated_us)
        with step(where / VERIFICATION_FILE, "program of the run"):
            expect_equal("program", program, own)
            expect_equal("candidate", item.digest, one.digest)
            expect_equal("verdict", item.verdict, type(one.verdict).__name__.lower())
        shown.append(one)
    return ReplayResult(program, tuple(shown), record, {}, {}, len(summary.candidates) - len(shown))


def _records(root: Path) -> tuple[SummaryRecord, RunRecord, KernelGraph]:
    if not (root / SUMMARY_FILE).is_file():
        hint = "--resume finishes it"
        raise RunError("expected a finished run, got one without a summary", where=str(root), hint=hint)
    with step(root / SUMMARY_FILE, "read the summary", corrupt=True):
        summary = open_sealed(read_file(root / SUMMARY_FILE), SummaryRecord, SUMMARY_FILE)
    # The journal only records the course of the search; no result depends on it.
    listed = {name: code for name, code in summary.manifest.items() if name != SEARCH_FILE}
    empty = () if summary.candidates else (f"{CANDIDATES}/",)  # a run that reports none leaves the directory empty
    check_manifest(root, SUMMARY_FILE, listed, [f"{KERNELS}/", SEARCH_FILE, *empty])
    _check_file_names(root / SUMMARY_FILE, summary.manifest, (RUN_FILE, SEARCH_FILE, EXHAUSTED_FILE, f"{CANDIDATES}/"))
    with step(root / RUN_FILE, "read the run", corrupt=True):
        record = decode(read_file(root / RUN_FILE), RunRecord, RUN_FILE)
        program = from_json(bytes(record.program), "program")
    with step(root / RUN_FILE, "program of the run"):
        if found := faults(program):
            raise FormatError("; ".join(found)[:600])
        expect_equal("digest of the program", digest(program), record.identity.program)
        expect_equal("key", key_of(record.identity), record.key)
        expect_equal("run", (record.key, record.identity.program), (summary.key, summary.program_digest))
    return summary, record, program


# --- whole programs --------------------------------------------------------------------------------------------------


def _replay_whole(root: Path) -> ReplayResult:
    """Replay a whole program: each cover consists of the program's own operators and of proved candidates.

    Sound: the parts of a cover are a partition of the program, taken out by the checker; a candidate takes the place of
    exactly the program that its proof is about; the checker puts them together, and that is the cover's graph.
    """
    path = root / WHOLE_FILE
    with step(path, "read the whole", corrupt=True):
        record = open_sealed(read_file(path), WholeRecord, WHOLE_FILE)
        program = from_json(bytes(record.graph_of_program), "program")
    with step(path, "program"):
        if found := faults(program):
            raise FormatError("; ".join(found)[:600])
        if any(isinstance(op, GraphDefined) for op in program.ops):
            raise FormatError("expected a program of predefined operators only, got a graph-defined one")
        expect_equal("digest of the program", digest(program), record.identity.program)
        if not record.covers:
            raise FormatError("expected at least one cover, got a run that has not finished")
    runs: dict[str, SummaryRecord] = {}
    for name, code in record.manifest.items():
        with step(root / name, "summary of a part, or manifest of a cover", corrupt=True):
            data = read_file(resolve_inside(root, name))
            expect_equal("sha256", code, sha256(data))
            if not name.startswith(f"{COVERS}/"):
                runs[name.rpartition("/")[0]] = open_sealed(data, SummaryRecord, name)
    places = (f"{name.rpartition('/')[0]}/" for name in record.manifest)
    _check_file_names(path, list_files(root), (WHOLE_FILE, f"{KERNELS}/", f"{PARTS}/", *places))
    used: dict[str, tuple[KernelGraph, ReplayedCandidate]] = {}
    for name in dict.fromkeys(part.directory for one in record.covers for part in one.parts if part.candidate):
        listed = {f"{run}/{item.directory}": item for run, held in runs.items() for item in held.candidates}
        with step(path, "candidates of the parts' searches"):
            if name not in listed:
                raise FormatError(f"expected a candidate of a part's search, got {name}")
        used[name] = _replay_candidate(resolve_inside(root, name), listed[name].estimated_us)
    shown = tuple(_replay_cover(path, program, one, used) for one in record.covers)
    return ReplayResult(program, shown, record, runs, {name: one for name, (_, one) in used.items()})


def _replay_cover(
    path: Path, program: KernelGraph, cover: CoverRecord, used: Mapping[str, tuple[KernelGraph, ReplayedCandidate]]
) -> ReplayedCandidate:
    from mirage_formal.check.partitioning.subgraphs import compose_equal_parts, partition  # loads numerical packages

    with step(path, "partition"):
        pieces = partition(program, [part.operators for part in cover.parts])
    parts: list[EqualPart] = []
    for number, (part, piece) in enumerate(zip(cover.parts, pieces, strict=True), 1):
        with step(path, f"part {number}"):
            parts.append(_replay_part(part, piece.program, used))
    with step(path, "the whole is put together from the parts"):
        together = compose_equal_parts(program, pieces, parts)
        expect_equal("graph", together.graph, from_json(bytes(cover.graph), "graph"))
        expect_equal("digest of the graph", digest(together.graph), cover.graph_digest)
        expect_equal("conditions", together.conditions, cover.conditions)
        expect_equal("conditions that the program has not", together.added, cover.added)
    verdict = Equivalent(read_file(path), together.conditions, together.added)
    return ReplayedCandidate(together.graph, cover.graph_digest, verdict, cover.estimated_us, path.parent)


def _replay_part(
    part: PartRecord, program: KernelGraph, used: Mapping[str, tuple[KernelGraph, ReplayedCandidate]]
) -> EqualPart:
    """Return a part's replacement, its conditions, and those conditions that the part's operators do not need."""
    from mirage_formal.check.partitioning.subgraphs import EqualPart  # loads numerical packages

    if part.candidate is None:
        expect_equal("directory", "", part.directory)
        return EqualPart(program, own_conditions(program), ())
    own, one = used[part.directory]
    expect_equal("program of the part's candidate", program, own)
    expect_equal("candidate", part.candidate, one.digest)
    return _equal_part(one)


def _equal_part(one: ReplayedCandidate) -> EqualPart:
    """Return a proved candidate as what takes the place of a part.

    Raises:
        FormatError: It is only probable.
    """
    from mirage_formal.check.partitioning.subgraphs import EqualPart

    if not isinstance(one.verdict, Equivalent):
        raise FormatError("expected a candidate that is proved, got one that is probable")
    return EqualPart(one.graph, one.verdict.conditions, one.verdict.added)


def _replay_cover_alone(root: Path) -> tuple[KernelGraph, ReplayedCandidate]:
    """Return a cover of whose directory the parts' proofs were replayed, and its program.

    Sound: see ``check.partitioning.cover_directory.verify_cover``.
    """
    from mirage_formal.check.partitioning.cover_directory import read_cover, verify_cover

    files = read_cover(root)
    equal: dict[str, EqualPart] = {}
    for name in files.directories:
        _, one = _replay_candidate(root / name)
        with step(root / name / VERIFICATION_FILE, "verdict of a part"):
            equal[name] = _equal_part(one)
    whole = verify_cover(files, equal)
    verdict = Equivalent(read_file(root / PROOF_FILE), whole.conditions, whole.added)
    return files.program, ReplayedCandidate(whole.graph, files.code, verdict, None, root)


__all__ = ["ReplayResult", "ReplayedCandidate", "replay_directory"]

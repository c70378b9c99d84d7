"""Check of a directory of kernels: bound to its candidate, complete, and launched as its µGraph says.

This module does not interpret the text of kernels. ``revalidate.rederive``, which is outside the checker, compares the
directory's text, plans, obligations and questions with those of code generation and its analysis. Texts of questions
are only returned for that comparison; no solver is asked about a text from a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from mirage_formal.check.check_steps import check_manifest, expect_equal, step
from mirage_formal.check.cuda.cubin import Resources
from mirage_formal.check.cuda.gpu_record_check import Numerics, check_measure, check_numerics
from mirage_formal.check.cuda.launches import check_launches, check_plans
from mirage_formal.check.partitioning.subgraphs import ReplacedGraph, Replacement, replace_parts
from mirage_formal.check.solvers import directory_budget, expect_unsat
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import faults
from mirage_formal.records import (
    DEVICE_FILES,
    LAUNCH_FILE,
    MANIFEST_FILE,
    OBLIGATIONS_FILE,
    PLAN_FILE,
    PROGRAMS_FILE,
    QUESTIONS_FILE,
    REALIZES_FILE,
    STABILIZED_FILE,
    STABILIZED_PROOF_FILE,
    FormPartRecord,
    FormRecord,
    KernelLaunch,
    KernelManifestRecord,
    LaunchRecord,
    MeasureRecord,
    ObligationRecord,
    PlanRecord,
    ProductLaunch,
    RealizesRecord,
    decode,
    launched_kernels,
    open_sealed,
    read_file,
    read_lines,
    resolve_inside,
    sha256,
    unpack_texts,
)
from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import MAX_QUESTIONS

#: Means of an obligation that holds because both solvers refuted the negation of its whole claim.
SOLVERS: Final = "z3 and cvc5"


@dataclass(frozen=True, slots=True)
class EstablishedKernels:
    """Facts that the check established about the kernels of a candidate.

    Attributes:
        name: Name of their directory.
        candidate: Digest of the candidate's graph.
        program: Digest of its program.
        target, target_digest: Name and figures of the target that the kernels are planned for, as in a run's identity.
        stabilized: Whether they compute another form of the candidate, whose proofs were replayed.
        conditions: Side conditions of these proofs: those of the candidate's changed parts and of their replacements.
            Empty for the candidate's own form, whose proof has its own.
        added: Those that the candidate does not have.
        kernels: Number of generated kernels that are launched.
        products: Number of predefined products that cuBLAS computes.
        obligations: Number of safety obligations, all of which were settled when the kernels were made.
        again: Number of obligations that were derived and settled again in this check, by means; none without
            ``derive``.
        recorded: Number of the other obligations, by reason.
        realized: Number of kernels that realize their operators, as decided again in this check; none without
            ``derive``.
        tested: Number of the other kernels whose record says that they do not, or that it is not known.
        read_back: Number of kernels whose CUDA C++ was read and states its Program; none without ``derive``.
        compiled: Number of machine code files that were compiled again in this check, byte for byte; none without
            ``derive``.
        written: Number of the other machine code files, by the reason why they were not compiled again.
        compiler: Compiler that compiled them again, or "".
        code: Resource usage in the machine code of each architecture: the most registers and stack of all kernels.
        numerics: Numerics recorded on a device; None without a record.
        measure: Time recorded on a device; None without a record.
        seconds: Duration of the check.
    """

    name: str
    candidate: str
    program: str
    target: str
    target_digest: str
    stabilized: bool
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    kernels: int
    products: int
    obligations: int
    again: Mapping[str, int]
    recorded: Mapping[str, int]
    realized: int
    tested: int
    read_back: int
    compiled: int
    written: Mapping[str, int]
    compiler: str
    code: Mapping[str, Resources]
    numerics: Numerics | None
    measure: MeasureRecord | None
    seconds: float


@dataclass(frozen=True, slots=True)
class BoundKernels:
    """Kernels whose files belong together, with the contents of those files.

    Attributes:
        root: Their directory.
        about: Facts established so far; none about obligations and machine code.
        graph: The µGraph that they compute.
        manifest, launch, plans, obligations, realizes: The records; of ``realizes`` None in directories of before.
        questions: The texts of the obligations' questions, in the order of their digests; not interpreted.
    """

    root: Path
    about: EstablishedKernels
    graph: KernelGraph
    manifest: KernelManifestRecord
    launch: LaunchRecord
    plans: PlanRecord
    obligations: tuple[ObligationRecord, ...]
    realizes: RealizesRecord | None
    questions: tuple[str, ...]


@directory_budget()
def check_kernels(root: Path, *, solvers: bool = True) -> BoundKernels:
    """Check a directory of kernels as far as possible without interpreting the text of kernels.

    Sound: digests tie every file to the manifest, which names the candidate. The µGraph of the launches is the
    candidate's own, or one whose equality with the candidate is established here. No obligation counts as established.
    That the candidate is one of the run is for ``check.run_check`` to see.

    Args:
        root: The directory.
        solvers: Whether solvers are asked about the digit lemmas of another form's proofs; the kernel of the checker
            computes them with integers in any case.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    begin = perf_counter()
    path = root / MANIFEST_FILE
    with step(path, "read the manifest of kernels", corrupt=True):
        manifest = decode(read_file(path), KernelManifestRecord, MANIFEST_FILE)
        for name in manifest.files:
            resolve_inside(root, name)
    with step(path, "seal"):
        open_sealed(read_file(path), KernelManifestRecord, MANIFEST_FILE)
    check_manifest(root, MANIFEST_FILE, manifest.files, DEVICE_FILES)
    with step(root / LAUNCH_FILE, "read the launches", corrupt=True):
        launch = decode(read_file(root / LAUNCH_FILE), LaunchRecord, LAUNCH_FILE)
        graph, program = from_json(bytes(launch.graph), "graph"), from_json(bytes(launch.program), "program")
    _check_graphs(root, manifest, launch, graph, program)
    form = _check_form(root, manifest, graph, solvers=solvers)
    check_launches(root, launch, graph)
    with step(root / PLAN_FILE, "read the plans", corrupt=True):
        plans = decode(read_file(root / PLAN_FILE), PlanRecord, PLAN_FILE)
    code = check_plans(root, plans, launch.launches, graph)
    _check_names(root, manifest, launch, form is not None)
    kernels = {x.name: x for x in launched_kernels(launch.launches)}
    obligations, questions = _check_obligations(root, kernels)
    realizes = _check_realizes(root, manifest, list(kernels))
    bound = sha256(read_file(path))
    about = EstablishedKernels(
        name=root.name,
        candidate=manifest.candidate,
        program=manifest.program,
        target=manifest.target.name,
        target_digest=sha256(msgspec.json.encode(manifest.target)),
        stabilized=form is not None,
        conditions=() if form is None else form.conditions,
        added=() if form is None else form.added,
        kernels=len(kernels),
        products=sum(isinstance(x, ProductLaunch) for x in launch.launches),
        obligations=len(obligations),
        again={},
        recorded=dict(sorted(Counter(record.means for record in obligations).items())),
        realized=0,
        tested=0 if realizes is None else sum(one.verdict != "realizes" for one in realizes.kernels),
        read_back=0,
        compiled=0,
        written={"not compiled again": files} if (files := sum(len(x.cubins) for x in kernels.values())) else {},
        compiler="",
        code=code,
        numerics=check_numerics(root, bound, manifest.graph, graph),
        measure=check_measure(root, bound, program),
        seconds=perf_counter() - begin,
    )
    return BoundKernels(root, about, graph, manifest, launch, plans, obligations, realizes, questions)


def _check_graphs(
    root: Path, manifest: KernelManifestRecord, launch: LaunchRecord, graph: KernelGraph, program: KernelGraph
) -> None:
    with step(root / LAUNCH_FILE, "well-formed graphs"):
        if found := [*faults(graph), *faults(program)]:
            raise FormatError("; ".join(found)[:600])
    with step(root / LAUNCH_FILE, "digests of the graphs"):
        expect_equal("digest of the µGraph", digest(graph), launch.digest)
        expect_equal("µGraph of the manifest", digest(graph), manifest.graph)
        expect_equal("program of the manifest", digest(program), manifest.program)


def _check_form(
    root: Path, manifest: KernelManifestRecord, graph: KernelGraph, *, solvers: bool
) -> ReplacedGraph | None:
    """Return the theorem of the kernels' µGraph, where that is not the candidate's own.

    Sound: the µGraph of the launches is put together here from the parts of the candidate that the manifest names and
    from what takes the place of some, of each of which the kernel of the checker replays the proof; both solvers refute
    the digit lemmas that these use.
    """
    own = manifest.graph == manifest.candidate
    with step(root / MANIFEST_FILE, "form of the candidate"):
        there = [name in manifest.files for name in (STABILIZED_FILE, STABILIZED_PROOF_FILE)]
        expect_equal("files of another form", [not own] * 2, there)
    if own:
        return None
    with step(root / STABILIZED_FILE, "form of the candidate"):
        expect_equal("digest", manifest.graph, digest(from_json(read_file(root / STABILIZED_FILE), STABILIZED_FILE)))
    path = root / STABILIZED_PROOF_FILE
    with step(path, "read the proofs of the form", corrupt=True):
        record = decode(read_file(path), FormRecord, STABILIZED_PROOF_FILE)
        candidate = from_json(bytes(record.candidate), "candidate")
        parts = [(part.operators, _compose_form(number, part)) for number, part in enumerate(record.parts, 1)]
    with step(path, "candidate"):
        if wrong := faults(candidate):
            raise FormatError("; ".join(wrong)[:600])
        expect_equal("digest of the candidate", manifest.candidate, digest(candidate))
    with step(path, "replay the proofs of parts"):
        found = replace_parts(candidate, parts)
        for one in found.obligations if solvers else ():
            expect_unsat(f"answers to digits {one.extents}, {one.lemma}", one.text)
    with step(path, "the form is put together from the parts"):
        if found.graph != graph:
            raise FormatError("expected the µGraph of the launches, got another one")
    return found


def _compose_form(number: int, part: FormPartRecord) -> Replacement | None:
    if part.form is None:
        return None
    return Replacement(from_json(bytes(part.form.graph), f"graph of part {number}"), bytes(part.form.proof))


def _check_names(root: Path, manifest: KernelManifestRecord, launch: LaunchRecord, stabilized: bool) -> None:
    """Check that the directory has no file that no other step reads."""
    used = {LAUNCH_FILE, PROGRAMS_FILE, PLAN_FILE, OBLIGATIONS_FILE, QUESTIONS_FILE}
    used |= {STABILIZED_FILE, STABILIZED_PROOF_FILE} if stabilized else set()
    used |= {REALIZES_FILE} & manifest.files.keys()  # directories of before the claim have none
    for item in launch.launches:
        if isinstance(item, KernelLaunch):
            used |= {item.source, *(binary.file for binary in item.cubins.values())}
    with step(root / MANIFEST_FILE, "files of kernels"):
        expect_equal("files", sorted(used), sorted(manifest.files))


def _check_realizes(root: Path, manifest: KernelManifestRecord, kernels: list[str]) -> RealizesRecord | None:
    """Return the record of the claim that the kernels realize their operators: one entry for each, in order."""
    if REALIZES_FILE not in manifest.files:
        return None
    with step(root / REALIZES_FILE, "read the claim on what kernels compute", corrupt=True):
        record = decode(read_file(root / REALIZES_FILE), RealizesRecord, REALIZES_FILE)
    with step(root / REALIZES_FILE, "a claim on each kernel"):
        expect_equal("kernels", kernels, [one.kernel for one in record.kernels])
    return record


# --- obligations -----------------------------------------------------------------------------------------------------


def _check_obligations(
    root: Path, kernels: Mapping[str, KernelLaunch]
) -> tuple[tuple[ObligationRecord, ...], tuple[str, ...]]:
    """Check the obligations and the texts of their questions: every kernel has some, and every text is named."""
    path = root / OBLIGATIONS_FILE
    with step(path, "read the proof log of kernels", corrupt=True):
        records = [decode(text, ObligationRecord, f"line {number}") for number, text in read_lines(path)]
    with step(root / QUESTIONS_FILE, "read the questions of obligations", corrupt=True):
        texts = unpack_texts(read_file(root / QUESTIONS_FILE), QUESTIONS_FILE)
        if len(texts) > MAX_QUESTIONS:
            raise FormatError(f"expected at most {MAX_QUESTIONS} questions, got {len(texts)}")
    with step(path, "complete proof log of kernels"):
        named = {record.sha256 for record in records if record.sha256 is not None}
        expect_equal("digests of the questions", [sha256(text.encode()) for text in texts], sorted(named))
        for name, launch in kernels.items():
            _check_complete([record for record in records if record.kernel == name], launch)
        expect_equal("kernels with obligations", sorted(kernels), sorted({record.kernel for record in records}))
    return tuple(records), tuple(texts)


def _check_complete(records: list[ObligationRecord], launch: KernelLaunch) -> None:
    """Check that every kernel has an obligation on its form, and two on each output.

    Every recorded answer is unsat, and an obligation that a solver settled has its question. Further obligations depend
    on the kernel's statements, which are not read here.
    """
    kinds = Counter(record.kind for record in records)
    written = sum(argument.written for argument in launch.arguments)
    expect_equal(f"{launch.name}: obligations of form", 1, kinds["structure"])
    expect_equal(f"{launch.name}: obligations of coverage", written, kinds["coverage"])
    single, covered = ({r.subject for r in records if r.kind == kind} for kind in ("single writer", "coverage"))
    expect_equal(f"{launch.name}: single writers", sorted(covered), sorted(single))
    for record in records:
        expect_equal(
            f"{launch.name}: a question where a solver settled it", True, bool(record.sha256 or not record.solvers)
        )
        expect_equal(
            f"{launch.name}: answers of solvers", {"unsat"} if record.solvers else set(), _recorded_answers(record)
        )
        # z3 is asked first, cvc5 only about what z3 refutes quickly.
        expect_equal(f"{launch.name}: asked solvers", record.means == "solver", "z3" in record.solvers)
        expect_equal(f"{launch.name}: asked z3 first", bool(record.solvers), "z3" in record.solvers)


def _recorded_answers(record: ObligationRecord) -> set[str]:
    return {answer.answer for answer in record.solvers.values()}

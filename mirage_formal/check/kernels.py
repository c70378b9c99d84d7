"""A directory of kernels: bound to its candidate, whole, and its obligations put to the solvers again.

What is not established: that the CUDA C++ does what the µGraph says, and that the obligations are all that its safety
needs. Code generation is not proved (docs/trust.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Final

from mirage_formal.check.cubin import Resources
from mirage_formal.check.device import Numerics, check_measure, check_numerics
from mirage_formal.check.equivalence import replayed
from mirage_formal.check.launches import check_launches, check_plans
from mirage_formal.check.solvers import UNSAT, answers, directory, expect_unsat
from mirage_formal.check.steps import check_manifest, expect, step
from mirage_formal.errors import FormatError
from mirage_formal.ir.canonical import digest
from mirage_formal.ir.check import faults
from mirage_formal.ir.graph import KernelGraph
from mirage_formal.ir.serialize import from_json
from mirage_formal.journal import (
    DEVICE_FILES,
    LAUNCH_FILE,
    MANIFEST_FILE,
    OBLIGATIONS_FILE,
    PLAN_FILE,
    QUESTIONS_FILE,
    STABILIZED_FILE,
    STABILIZED_PROOF_FILE,
    KernelLaunch,
    KernelManifestRecord,
    LaunchRecord,
    MeasureRecord,
    ObligationRecord,
    PlanRecord,
    confined,
    decode,
    read,
    read_lines,
    sha256,
    unpack_texts,
    unsealed,
)
from mirage_formal.smt.bounds import MAX_QUESTIONS
from mirage_formal.smt.script import Script, parse

#: Kinds whose text is only a part of the claim: that every element is written also rests on a count of the writes.
_PARTLY: Final = frozenset({"coverage"})
_DECLARED: Final = re.compile(
    r"\(declare-const (tid|bx|by|bz)(?:~2)? \(_ BitVec (\d+)\)\)\n"
    r"(?:\(assert \(bvult \S+ \(_ bv(\d+) \d+\)\)\))?"
)


@dataclass(frozen=True, slots=True)
class EstablishedKernels:
    """What holds about the kernels of a candidate.

    Attributes:
        name: Name of their directory.
        candidate: Digest of the candidate's graph.
        program: Digest of its program.
        target: Name of the target that the kernels are planned for.
        stabilized: Whether they compute the running-maximum form, whose own proof was replayed.
        kernels: Generated kernels that are launched.
        products: Predefined products that cuBLAS computes.
        obligations: Safety obligations, all of which were settled when the kernels were made.
        again: Those whose whole claim z3 and cvc5 refuted the negation of just now.
        recorded: The others, by why: how they were settled then, or that a solver did not answer now.
        code: What the machine code of each architecture states: the most registers and stack of all kernels.
        numerics: Recorded on a device; None without one.
        measure: Recorded on a device; None without one.
        seconds: Time it took.
    """

    name: str
    candidate: str
    program: str
    target: str
    stabilized: bool
    kernels: int
    products: int
    obligations: int
    again: int
    recorded: Mapping[str, int]
    code: Mapping[str, Resources]
    numerics: Numerics | None
    measure: MeasureRecord | None
    seconds: float


@directory()
def check_kernels(root: Path) -> EstablishedKernels:
    """Establish about a directory of kernels what can be established from its files.

    Sound: digests tie every file to the manifest, which names the candidate. The µGraph of the launches is the
    candidate's own, or one whose proof of equality with the program is replayed here. An obligation counts as
    established only if z3 and cvc5 refute its text just now. That the text asks what its line says is not established.
    That the candidate is one of the run is for ``check.run`` to see.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    begin = perf_counter()
    path = root / MANIFEST_FILE
    with step(path, "read the manifest of kernels", corrupt=True):
        manifest = decode(read(path), KernelManifestRecord, MANIFEST_FILE)
        for name in manifest.files:
            confined(root, name)
    with step(path, "seal"):
        unsealed(read(path), KernelManifestRecord, MANIFEST_FILE)
    check_manifest(root, MANIFEST_FILE, manifest.files, DEVICE_FILES)
    with step(root / LAUNCH_FILE, "read the launches", corrupt=True):
        launch = decode(read(root / LAUNCH_FILE), LaunchRecord, LAUNCH_FILE)
        graph, program = from_json(bytes(launch.graph), "graph"), from_json(bytes(launch.program), "program")
    _check_graphs(root, manifest, launch, graph, program)
    stabilized = _check_form(root, manifest, graph, program)
    check_launches(root, launch, graph)
    with step(root / PLAN_FILE, "read the plans", corrupt=True):
        plans = decode(read(root / PLAN_FILE), PlanRecord, PLAN_FILE)
    code = check_plans(root, plans, launch.launches, graph)
    _check_names(root, manifest, launch, stabilized)
    kernels = {x.name: x for x in launch.launches if isinstance(x, KernelLaunch)}
    count, again, recorded = _check_obligations(root, kernels)
    bound = sha256(read(path))
    return EstablishedKernels(
        name=root.name,
        candidate=manifest.candidate,
        program=manifest.program,
        target=manifest.target,
        stabilized=stabilized,
        kernels=len(kernels),
        products=len(launch.launches) - len(kernels),
        obligations=count,
        again=again,
        recorded=recorded,
        code=code,
        numerics=check_numerics(root, bound, manifest.graph, graph),
        measure=check_measure(root, bound, program),
        seconds=perf_counter() - begin,
    )


def _check_graphs(
    root: Path, manifest: KernelManifestRecord, launch: LaunchRecord, graph: KernelGraph, program: KernelGraph
) -> None:
    with step(root / LAUNCH_FILE, "well-formed graphs"):
        if found := [*faults(graph), *faults(program)]:
            raise FormatError("; ".join(found)[:600])
    with step(root / LAUNCH_FILE, "digests of the graphs"):
        expect("digest of the µGraph", digest(graph), launch.digest)
        expect("µGraph of the manifest", digest(graph), manifest.graph)
        expect("program of the manifest", digest(program), manifest.program)


def _check_form(root: Path, manifest: KernelManifestRecord, graph: KernelGraph, program: KernelGraph) -> bool:
    """Whether the kernels compute another µGraph than the candidate's; then it has a proof of its own.

    Sound: the kernel of the checker replays the proof for the µGraph of the launches, and both solvers refute the
    digit lemmas that it used.
    """
    own = manifest.graph == manifest.candidate
    with step(root / MANIFEST_FILE, "running-maximum form"):
        there = [name in manifest.files for name in (STABILIZED_FILE, STABILIZED_PROOF_FILE)]
        expect("files of a running-maximum form", [not own] * 2, there)
    if own:
        return False
    with step(root / STABILIZED_FILE, "running-maximum form"):
        expect("digest", manifest.graph, digest(from_json(read(root / STABILIZED_FILE), STABILIZED_FILE)))
    with step(root / STABILIZED_PROOF_FILE, "replay the proof"):
        found = replayed(program, graph, read(root / STABILIZED_PROOF_FILE))
        for one in found.obligations:
            expect_unsat(f"answers to digits {one.extents}, {one.lemma}", one.text)
    return True


def _check_names(root: Path, manifest: KernelManifestRecord, launch: LaunchRecord, stabilized: bool) -> None:
    """Nothing lies in the directory that no other step looks at."""
    used = {LAUNCH_FILE, PLAN_FILE, OBLIGATIONS_FILE, QUESTIONS_FILE}
    used |= {STABILIZED_FILE, STABILIZED_PROOF_FILE} if stabilized else set()
    for item in launch.launches:
        if isinstance(item, KernelLaunch):
            used |= {item.source, *(binary.file for binary in item.cubins.values())}
    with step(root / MANIFEST_FILE, "files of kernels"):
        expect("files", sorted(used), sorted(manifest.files))


# --- obligations -----------------------------------------------------------------------------------------------------


def _check_obligations(root: Path, kernels: Mapping[str, KernelLaunch]) -> tuple[int, int, dict[str, int]]:
    """How many obligations there are, how many hold again, and why the others are only recorded."""
    path = root / OBLIGATIONS_FILE
    with step(path, "read the proof log of kernels", corrupt=True):
        records = [decode(text, ObligationRecord, f"line {number}") for number, text in read_lines(path)]
    with step(root / QUESTIONS_FILE, "read the questions of obligations", corrupt=True):
        questions = unpack_texts(read(root / QUESTIONS_FILE), QUESTIONS_FILE)
        if len(questions) > MAX_QUESTIONS:
            raise FormatError(f"expected at most {MAX_QUESTIONS} questions, got {len(questions)}")
        texts = {sha256(text.encode()): text for text in questions}
    with step(path, "complete proof log of kernels"):
        named = {record.sha256 for record in records if record.sha256 is not None}
        expect("digests of the questions", sorted(texts), sorted(named))
        for name, launch in kernels.items():
            _check_complete([record for record in records if record.kernel == name], launch)
        expect("kernels with obligations", sorted(kernels), sorted({record.kernel for record in records}))
    again = 0
    recorded: Counter[str] = Counter()
    for number, record in enumerate(records, 1):
        why: str = record.means
        if record.sha256 is not None:
            with step(root / QUESTIONS_FILE, f"question of line {number} of {OBLIGATIONS_FILE}"):
                why = _ask(texts[record.sha256], kernels[record.kernel], record)
        if why:
            recorded[why] += 1
        else:
            again += 1
    return len(records), again, dict(sorted(recorded.items()))


def _check_complete(records: list[ObligationRecord], launch: KernelLaunch) -> None:
    """Every kernel has an obligation about its form, and two about everything that it writes.

    Sound: every answer that is recorded is unsat, and an obligation that a solver settled has its question. What else
    the safety of a kernel needs depends on its statements, which are not read here.
    """
    kinds = Counter(record.kind for record in records)
    written = sum(argument.written for argument in launch.arguments)
    expect(f"{launch.name}: obligations of form", 1, kinds["structure"])
    expect(f"{launch.name}: obligations of coverage", written, kinds["coverage"])
    single, covered = ({r.subject for r in records if r.kind == kind} for kind in ("single writer", "coverage"))
    expect(f"{launch.name}: single writers", sorted(covered), sorted(single))
    for record in records:
        expect(f"{launch.name}: a question where a solver settled it", True, bool(record.sha256 or not record.solvers))
        expect(f"{launch.name}: answers of solvers", {"unsat"} if record.solvers else set(), _said(record))
        # z3 is asked first, cvc5 only about what z3 refutes quickly.
        expect(f"{launch.name}: asked solvers", record.means == "solver", "z3" in record.solvers)
        expect(f"{launch.name}: asked z3 first", bool(record.solvers), "z3" in record.solvers)


def _said(record: ObligationRecord) -> set[str]:
    return {answer.answer for answer in record.solvers.values()}


def _ask(text: str, launch: KernelLaunch, record: ObligationRecord) -> str:
    """Why an obligation is only recorded, or "" if it holds again.

    Sound: "" only if the obligation rests on its text alone, and both solvers say unsat. Whether the text asks what its
    line says is not decided here: whoever writes other texts and signs them again is believed (docs/trust.md).

    Raises:
        FormatError: A solver has an answer to what must have none, or the text is about another launch.
    """
    found = answers(_question(text, (launch.threads, *launch.grid)))
    if "sat" in found.said.values():
        what = f"{record.kind} of {record.subject} at {record.path}"
        raise FormatError(f"{what}: expected unsat from z3 and cvc5, got {found.said}")
    if found.said != UNSAT:
        return "undecided now" if found.asked else f"undecided now, as {found.why}"
    return "count" if record.kind in _PARTLY else ""


@lru_cache(maxsize=4096)
def _question(text: str, extents: tuple[int, int, int, int]) -> Script:
    """The question that a text writes about a launch with these threads and blocks.

    Raises:
        FormatError: It is no question of the closed form that solvers are asked, or one about another launch.
    """
    script = parse(text)
    expect("logic of an obligation", "QF_BV", script.logic)
    sizes = dict(zip(("tid", "bx", "by", "bz"), extents, strict=True))
    for name, bits, below in _DECLARED.findall(text):
        expect(f"values of {name}", sizes[name], int(below) if below else 1 << int(bits))
    return script

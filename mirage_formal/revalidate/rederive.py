"""Regeneration of kernels' evidence from the µGraph and the target alone, compared with every file.

A directory of kernels names the µGraph that its kernels compute and their target. From these two, code generation makes
the Programs. From the Programs follow the CUDA C++, the launches, the plans, the safety obligations and their queries.
Each must equal the directory's. Only then are obligations settled: by the safety analysis, as when the kernels were
made, and, where there is a query, by z3 and cvc5 on the text derived here, never on a text from a file.

So the statements of ``check`` on kernels rest on code generation (``optimize``, ``gpu``) and on the analysis
(codegen/safety): they show that the files come from these, not that these are right (docs/trust.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from mirage_formal.check.check_steps import expect_equal, step
from mirage_formal.check.cuda.manifest import SOLVERS, BoundKernels, EstablishedKernels, check_kernels
from mirage_formal.check.solvers import UNSAT, directory_budget, query_solvers
from mirage_formal.codegen.generate import generate, plan_record, requested_options
from mirage_formal.codegen.generated_launches import (
    GeneratedKernel,
    GeneratedLaunch,
    GeneratedLaunches,
    launched_programs,
)
from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram
from mirage_formal.codegen.joined_launches.joined_printer import emit_launched
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.program.serialization import decode_programs
from mirage_formal.codegen.realization_record import realization_record
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    Obligation,
    ObligationKind,
)
from mirage_formal.codegen.safety.safety import safety_obligations
from mirage_formal.codegen.target import Target
from mirage_formal.logic.script import parse_script
from mirage_formal.records import (
    LAUNCH_FILE,
    MANIFEST_FILE,
    OBLIGATIONS_FILE,
    PLAN_FILE,
    PROGRAMS_FILE,
    QUESTIONS_FILE,
    REALIZES_FILE,
    KernelLaunch,
    Launch,
    read_file,
    resolve_inside,
    sha256,
)
from mirage_formal.revalidate.cuda_reader import has_cuda_grammar, read_cuda, text_of_program
from mirage_formal.revalidate.joined_reader import read_joined, text_of_joined
from mirage_formal.revalidate.machine_code_comparison import compare_machine_code
from mirage_formal.support.errors import FormatError

#: Means of a coverage claim: a count of the writes, together with a query that no element is written twice.
COUNT = "count"


@dataclass(frozen=True, slots=True)
class _DerivedClaim:
    """Derived obligation, with the fields that its recorded line must have."""

    obligation: Obligation
    text: str
    line: tuple[str | None, ...]

    @property
    def means(self) -> DischargeMethod | None:
        """Return how the analysis alone settles the obligation; None if a solver must."""
        return self.obligation.finding.means if isinstance(self.obligation.finding, DischargedObligation) else None


@directory_budget()
def derive_kernels(root: Path, *, recompile: bool = True, arch: str = "", solvers: bool = True) -> EstablishedKernels:
    """Check a directory of kernels by deriving all of its files again.

    Sound: see ``check_kernels`` for what binds the directory to its candidate. An obligation counts as holding again
    only if it was derived here and is settled here, by the analysis or because both solvers refute the derived text; a
    file of machine code only if the compiler makes it here, byte for byte. Everything else is counted as recorded.
    That a kernel realizes its operator counts only if it is decided here, at points drawn here. CUDA C++ is read back
    and compared with its Program where tree-sitter's grammar of CUDA is installed.

    Args:
        root: The directory.
        recompile: Whether machine code is compiled again, where its compiler is installed.
        arch: The only architecture whose machine code is compiled again; all, if left out.
        solvers: Whether z3 and cvc5 are installed. Without them the digit lemmas of a form are taken from the proof
            kernel, which computes with integers, and a query is only compared, and counts as recorded.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    begin = perf_counter()
    bound = check_kernels(root, solvers=solvers)
    recorded_programs = _recorded(root)
    made = _with_recorded_registers(_generated(bound), recorded_programs)
    kernels = [one for one in made.steps if isinstance(one, GeneratedKernel)]
    _check_programs(root, kernels, recorded_programs)
    launches = [one for one in made.launches if isinstance(one, GeneratedLaunch)]
    texts = _check_sources(root, launches)
    readable = has_cuda_grammar()
    if readable:
        _read_sources(root, launches, texts)
    _check_launches(bound, made, texts)
    _check_plans(bound, kernels)
    realized = _check_realized(bound, kernels)
    claims = _check_obligations(bound, [program for one in launches for program in launched_programs(one)])
    again, recorded = _settle_claims(root, claims, solvers=solvers)
    machine = compare_machine_code(bound, texts, recompile=recompile, arch=arch)
    return replace(
        bound.about,
        again=dict(sorted(again.items())),
        recorded=dict(sorted(recorded.items())),
        realized=realized,
        read_back=len(kernels) if readable else 0,
        compiled=machine.again,
        written=machine.written,
        compiler=machine.compiler,
        seconds=perf_counter() - begin,
    )


def _generated(bound: BoundKernels) -> GeneratedLaunches:
    with step(bound.root / MANIFEST_FILE, "derive the kernels from the µGraph"):
        target = msgspec.convert(msgspec.to_builtins(bound.manifest.target), Target)
        return generate(bound.graph, target, *requested_options(bound.plans.kernels))


def _recorded(root: Path) -> tuple[Program, ...]:
    path = root / PROGRAMS_FILE
    with step(path, "read the Programs", corrupt=True):
        return decode_programs(read_file(path), PROGRAMS_FILE)


def _with_recorded_registers(made: GeneratedLaunches, recorded: Sequence[Program]) -> GeneratedLaunches:
    """Return the kernels with the register limits that the directory's Programs state to the compiler.

    Sound: how many registers a thread may have changes nothing that a Program does; and sources, launches and machine
    code are compared with what follows from it. Directories of before kernels said so are derived again as they are.
    """
    said = {program.name: program.alone for program in recorded}
    steps = [
        replace(one, program=replace(one.program, alone=said.get(one.program.name, one.program.alone)))
        if isinstance(one, GeneratedKernel)
        else one
        for one in made.steps
    ]
    return replace(made, steps=tuple(steps))


def _check_programs(root: Path, kernels: Sequence[GeneratedKernel], recorded: Sequence[Program]) -> None:
    with step(root / PROGRAMS_FILE, "Programs of the µGraph"):
        expect_equal("kernels", [one.program.name for one in kernels], [program.name for program in recorded])
        for ours, theirs in zip(kernels, recorded, strict=True):
            if (where := first_difference(ours.program, theirs)) is not None:
                what = "expected the Program that code generation makes of the µGraph, got another one"
                raise FormatError(f"{theirs.name}: {what}: {where}")


def first_difference(ours: Any, theirs: Any, at: str = "") -> str | None:
    """Return the first difference of two Programs, as a path of fields and positions; None if they are equal."""
    if repr(ours) == repr(theirs):  # 0.0 == -0.0, but not in print
        return None
    if type(ours) is type(theirs) and is_dataclass(ours) and not isinstance(ours, type):
        inside = ((f"{at}.{f.name}", getattr(ours, f.name), getattr(theirs, f.name)) for f in fields(ours))
    elif isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        inside = ((f"{at}[{i}]", a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True)))
    elif isinstance(ours, tuple) and isinstance(theirs, tuple):
        return f"{at}: expected {len(ours)} items, got {len(theirs)}"
    else:
        return f"{at}: expected {str(ours)[:160]}, got {str(theirs)[:160]}"
    return next(found for place, a, b in inside if (found := first_difference(a, b, place)) is not None)


def _check_realized(bound: BoundKernels, kernels: Sequence[GeneratedKernel]) -> int:
    """Decide again which kernels realize their operators, compare with the record, and return how many do.

    A directory of before the claim has no record; whether its kernels do is decided all the same.
    """
    recorded = [None] * len(kernels) if bound.realizes is None else bound.realizes.kernels
    again = 0
    for one, record in zip(kernels, recorded, strict=True):
        if record is not None and record.verdict != "realizes":
            continue
        with step(bound.root / REALIZES_FILE, f"{one.program.name} computes its µGraph"):
            ours = realization_record(bound.graph, one)
            if record is not None:
                if ours.verdict != "realizes":
                    raise FormatError(f"expected a kernel that realizes its operator, got another one: {ours.reason}")
                expect_equal("claim", ours, record)
            again += ours.verdict == "realizes"
    return again


def _check_sources(root: Path, launches: Sequence[GeneratedLaunch]) -> dict[str, str]:
    """Check the CUDA C++ of all launches, and return it by the kernel that is launched."""
    texts: dict[str, str] = {}
    for one in launches:
        with step(root / one.source, "CUDA C++ of the Program"):
            text = texts[one.program.name] = emit_launched(one.program)
            data = read_file(resolve_inside(root, one.source))
            if data != text.encode():
                raise FormatError(_other_line(text, data.decode("utf-8", "replace")))
    return texts


def _read_sources(root: Path, launches: Sequence[GeneratedLaunch], texts: Mapping[str, str]) -> None:
    """Read the CUDA C++ of all launches back, and compare what it states with their Programs.

    Sound: the reader (``cuda_reader``) has no part in printing, so an error of the printer is a difference.
    """
    for one in launches:
        with step(root / one.source, "CUDA C++ read back"):
            program, text = one.program, texts[one.program.name]
            if isinstance(program, JoinedProgram):
                joined = read_joined(text)
                where = first_difference(text_of_joined(program, joined), joined)
            else:
                stated = read_cuda(text)
                where = first_difference(text_of_program(program, stated.extents), stated)
            if where is not None:
                raise FormatError(f"expected a text that states its Program, got another one: {where}")


def _other_line(ours: str, theirs: str) -> str:
    pairs = enumerate(zip_longest(ours.splitlines(), theirs.splitlines()), 1)
    number, (a, b) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    if number == 0:
        return "expected the text that the Program is printed as, got other line ends"
    return f"line {number}: expected {_quoted(a)}, got {_quoted(b)}"


def _quoted(text: str | None) -> str:
    return "the end" if text is None else ascii(text.strip())[:160]


def _check_launches(bound: BoundKernels, made: GeneratedLaunches, texts: Mapping[str, str]) -> None:
    """Check the launches, except for digests and figures of machine code, which are compared with the code itself."""
    root = bound.root
    with step(root / LAUNCH_FILE, "launches of the Programs"):
        expect_equal("launches", len(made.launches), len(bound.launch.launches))
        expect_equal("values of the outputs", made.outputs, bound.launch.outputs)
        for number, (one, theirs) in enumerate(zip(made.launches, bound.launch.launches, strict=True)):
            ours: Launch
            if isinstance(one, GeneratedLaunch):
                cubins = theirs.cubins if isinstance(theirs, KernelLaunch) else {}
                ours = one.record(texts[one.program.name], cubins)
                stem = one.source.removesuffix(".cu")
                for arch, binary in cubins.items():
                    expect_equal(f"launch {number}: machine code for {arch}", f"{stem}-{arch}.cubin", binary.file)
            else:
                ours = one
            _expect_same_record(f"launch {number}", ours, theirs)


def _expect_same_record(what: str, ours: msgspec.Struct, theirs: msgspec.Struct) -> None:
    """Raise a FormatError that names the first field in which two records differ."""
    expect_equal(what, type(ours).__name__, type(theirs).__name__)
    for name in ours.__struct_fields__:
        expect_equal(f"{what}: {name}", getattr(ours, name), getattr(theirs, name))


def _check_plans(bound: BoundKernels, kernels: Sequence[GeneratedKernel]) -> None:
    """Check the plans, except for the compiler's figures."""
    with step(bound.root / PLAN_FILE, "plans of the kernels"):
        for one, theirs in zip(kernels, bound.plans.kernels, strict=True):
            ours = plan_record(one, {})
            _expect_same_record(f"plan of {theirs.kernel}", ours, msgspec.structs.replace(theirs, compiled={}))


def _check_obligations(bound: BoundKernels, programs: Sequence[Program | JoinedProgram]) -> list[_DerivedClaim]:
    """Check that the derived obligations are those of the log, with the queries of the file; return them."""
    root = bound.root
    names = ("kernel", "kind", "path", "subject", "claim", "means", "sha256")
    with step(root / OBLIGATIONS_FILE, "obligations of the Programs"):
        claims = [_claim(program, one) for program in programs for one in safety_obligations(program)]
        for number, (claim, record) in enumerate(zip(claims, bound.obligations, strict=False), 1):
            for name, ours in zip(names, claim.line, strict=True):
                expect_equal(f"line {number}: {name}", ours, getattr(record, name))
        expect_equal("lines", len(claims), len(bound.obligations))
    with step(root / QUESTIONS_FILE, "questions of the obligations"):
        texts = {sha256(claim.text.encode()): claim.text for claim in claims if claim.text}
        if tuple(texts[code] for code in sorted(texts)) != bound.questions:
            raise FormatError("expected the questions that the Programs ask, got others")
    return claims


def _claim(program: Program | JoinedProgram, obligation: Obligation) -> _DerivedClaim:
    kernel = program.then.name if isinstance(program, JoinedProgram) else program.name
    if obligation.finding is not None and not isinstance(obligation.finding, DischargedObligation):
        what = f"{obligation.kind} of {obligation.subject} at {obligation.path}: {obligation.claim}"
        raise FormatError(f"{kernel}: expected an obligation that holds, got {what}: {obligation.finding}"[:600])
    text = obligation.text
    means = "solver" if obligation.finding is None else str(obligation.finding.means)
    code = sha256(text.encode()) if text else None
    about = str(obligation.kind), obligation.path, obligation.subject, obligation.claim
    return _DerivedClaim(obligation, text, (kernel, *about, means, code))


def _settle_claims(root: Path, claims: Sequence[_DerivedClaim], *, solvers: bool) -> tuple[Counter[str], Counter[str]]:
    """Return how many obligations hold again, by means, and how many do not, by reason.

    Sound: one that the analysis does not settle holds again only if both solvers refute its text; where a solver finds
    that a text has an answer, nothing holds.
    """
    again: Counter[str] = Counter()
    recorded: Counter[str] = Counter()
    for number, claim in enumerate(claims, 1):
        means: str | None = claim.means
        why = "no solver is here"
        if claim.text and solvers:
            with step(root / QUESTIONS_FILE, f"question of line {number} of {OBLIGATIONS_FILE}"):
                found = query_solvers(parse_script(claim.text))
                if "sat" in found.said.values():
                    what = f"{claim.obligation.kind} of {claim.obligation.subject} at {claim.obligation.path}"
                    raise FormatError(f"{what}: expected unsat from z3 and cvc5, got {found.said}")
            why = "undecided now" if found.asked else f"undecided now, as {found.why}"
            if claim.obligation.kind is ObligationKind.COVERAGE:
                means = COUNT
            elif found.said == UNSAT:
                means = SOLVERS
        if means is None:
            recorded[why] += 1
        else:
            again[str(means)] += 1
    return again, recorded


__all__ = ["COUNT", "derive_kernels", "first_difference"]

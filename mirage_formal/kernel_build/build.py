"""Build of kernels from proved µGraphs: stabilise, plan, lower, discharge, print, compile.

A kernel with a broken or undecided obligation is never returned: building its µGraph raises KernelRejected, and a
caller with a list of candidates tries the next one.

    python -m mirage_formal.kernel_build RUN_DIR     writes RUN_DIR/kernels, which mirage_formal.device runs
    anywhere
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.cache.lock import lock_directory
from mirage_formal.codegen.executable import Executable
from mirage_formal.codegen.generate import NO_OPTIONS, LaunchOptions, first_line, generate, plan_record
from mirage_formal.codegen.generated_launches import GeneratedLaunches, launched_programs
from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import COUNT, Acceptance, BuiltKernels, KernelRejected
from mirage_formal.kernel_build.save import save_built
from mirage_formal.records import (
    CANDIDATES,
    GRAPH_FILE,
    KERNELS,
    RUN_FILE,
    SUMMARY_FILE,
    Binary,
    KernelPlanRecord,
    Launch,
    ObligationRecord,
    ProductLaunch,
    RunRecord,
    SolverRecord,
    decode,
    read_file,
    sha256,
)
from mirage_formal.records.partition import WHOLE_FILE, WholeRecord, cover_name
from mirage_formal.run_directory.directory_layout import KERNELS_OF_ONE, expect_replaceable_kernels, remove
from mirage_formal.support.errors import MirageError, RunError, UnsupportedError
from mirage_formal.support.guard import keep_results_on_stop

if TYPE_CHECKING:
    from mirage_formal.codegen.executable import Compiled
    from mirage_formal.codegen.safety.obligation_types import DischargedObligations
    from mirage_formal.kernel_build.stable_forms import StableForm

ARCHS: Final = ("sm_80", "sm_90a")


class KernelWarning(UserWarning):
    """Warning: a candidate is skipped because its kernels are refused, or runs without a running maximum."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Choices for the kernels of a run.

    Attributes:
        other_forms: Whether kernels are those of the form with the best estimate (kernel_build.candidate_forms), not of
            the own one.
        accept: Whether kernels are written that are not proved to realize their operators.
    """

    other_forms: bool = False
    accept: Acceptance = Acceptance.PROVED


@dataclass(frozen=True, slots=True)
class SafetyEvidence:
    """Obligations of a kernel that all hold, and the SMT-LIB texts that they name by digest."""

    records: tuple[ObligationRecord, ...]
    texts: dict[str, str]


def build(
    graph: KernelGraph,
    program: KernelGraph,
    target: Target,
    archs: Sequence[str] = (),
    form: StableForm | None = None,
    accept: Acceptance = Acceptance.PROVED,
) -> BuiltKernels:
    """Build the kernels of a µGraph, with running maxima under the exponentials it sums (kernel_build.stable_forms).

    Sound: the form that kernels are made of is proved equal to the µGraph, which the checker replays; every generated
    kernel, those of predefined operators included, is discharged by codegen.safety.safety, and is proved to realize its
    operator of that form (codegen.translation_validation); only if all of this holds is anything returned.

    Args:
        graph: The µGraph, proved equal to the program.
        program: The program.
        target: Target that kernels are planned for.
        archs: Architectures to compile for; others are compiled when the executable is loaded.
        form: Another form of the µGraph (kernel_build.candidate_forms), with its proof; its stable form, if left out.
        accept: Whether kernels are returned that are not proved to realize their operators.

    Raises:
        KernelRejected: It has no kernel that may run.
    """
    from mirage_formal.kernel_build.stable_forms import stabilize_proved
    from mirage_formal.kernel_build.validation import validate_kernels  # these load numerical packages

    try:
        form = stabilize_proved(graph) if form is None else form
    except MirageError as error:
        raise KernelRejected(f"its exponentials are not stable: {first_line(error)}", where="stabilize") from error
    built = validate_kernels(build_form(form, program, target, archs), accept)
    return replace(built, candidate=digest(graph))


def build_form(
    form: StableForm,
    program: KernelGraph,
    target: Target,
    archs: Sequence[str] = (),
    options: LaunchOptions = NO_OPTIONS,
) -> BuiltKernels:
    """Build the kernels of a form with given schedules, early and joined launches; see ``build`` and ``generate``.

    They are safe. That they realize their operators is for ``validation.validate_kernels``, before they are kept.

    Raises:
        KernelRejected: It has no kernel that may run.
    """
    try:
        made = generate(form.graph, target, *options)
    except UnsupportedError as error:
        raise KernelRejected(error.what, where=error.where) from error
    return _compile_kernels(form, program, made, target, archs)


def _compile_kernels(
    form: StableForm,
    program: KernelGraph,
    made: GeneratedLaunches,
    target: Target,
    archs: Sequence[str],
) -> BuiltKernels:
    from mirage_formal.codegen.joined_launches.joined_printer import emit_launched

    launches: list[Launch] = []
    files: dict[str, bytes] = {}
    records: list[ObligationRecord] = []
    texts: dict[str, str] = {}
    plans: list[KernelPlanRecord] = []
    kept: dict[str, Program] = {}
    joins: dict[str, JoinedProgram] = {}
    for one in made.launches:
        if isinstance(one, ProductLaunch):
            launches.append(one)
            continue
        for safe in launched_programs(one):
            settled = discharge_obligations(safe)
            records += settled.records
            texts |= settled.texts
        launched = one.program
        text = emit_launched(launched)
        compiled = _machine_code(text, archs, launched.name)
        cubins: dict[str, Binary] = {}
        for arch, code in compiled.items():
            file = f"{one.source.removesuffix('.cu')}-{arch}.cubin"
            files[file] = code.cubin
            cubins[arch] = Binary(file, sha256(code.cubin), code.registers, code.spill_bytes)
        files[one.source] = text.encode()
        kept[one.kernel.program.name] = one.kernel.program
        launches.append(one.record(text, cubins))
        plans.append(plan_record(one.kernel, compiled))
        if one.then is not None and isinstance(launched, JoinedProgram):
            kept[one.then.program.name] = one.then.program
            joins[launched.name] = launched
            plans.append(plan_record(one.then, {}))
    code_of = digest(form.graph)
    executable = Executable(code_of, form.graph, program, tuple(launches), made.outputs, files)
    questions = tuple(texts[key] for key in sorted(texts))
    made_of = executable, kept, tuple(records), questions, tuple(plans), form, code_of, target
    return BuiltKernels(*made_of, joins=joins)


def _machine_code(text: str, archs: Sequence[str], name: str) -> dict[str, Compiled]:
    """Compile a kernel for each architecture; return nothing where there is no compiler."""
    if not archs:
        return {}
    from mirage_formal.device.compile import available, compile

    found: dict[str, Compiled] = {}
    for arch in archs if available() else ():
        try:
            found[arch] = compile(text, arch)
        except MirageError as error:
            raise KernelRejected(f"it does not compile for {arch}: {first_line(error)}", where=name) from error
    return found


@lru_cache(maxsize=64)
def discharge_obligations(program: Program | JoinedProgram) -> SafetyEvidence:
    """Return the obligations of a kernel after they are all discharged.

    Results are cached, because tuning builds a candidate many times with one kernel changed.

    Sound: a Program is a value, and equal ones have the same obligations; what does not hold raises, and is not kept.

    Raises:
        KernelRejected: An obligation is broken or undecided; names it.
    """
    from mirage_formal.codegen.safety import safety  # loads solvers

    report = safety.discharge_safety(program)
    match report.verdict:
        case safety.Safe():
            texts = [entry.obligation.text for entry in report.discharged]
            found = zip(report.discharged, texts, strict=True)
            kernel = program.then.name if isinstance(program, JoinedProgram) else program.name
            records = tuple(_record(kernel, entry, text) for entry, text in found)
            return SafetyEvidence(records, {sha256(text.encode()): text for text in texts if text})
        case safety.Unsafe(obligation, model, reason):
            at = f"{obligation.kind} of {obligation.subject} at {obligation.path}: {obligation.claim}"
            where = ", ".join(f"{name} = {value}" for name, value in model)
            raise KernelRejected(f"an obligation is broken: {at} {reason} {where}".rstrip(), where=program.name)
        case verdict:
            reason = str(getattr(verdict, "reason", verdict))
            raise KernelRejected(f"an obligation is undecided: {reason}", where=program.name)


def _record(kernel: str, entry: DischargedObligations, text: str) -> ObligationRecord:
    obligation, finding = entry.obligation, entry.finding
    means: Any = getattr(finding, "means", "")
    return ObligationRecord(
        kernel=kernel,
        kind=str(obligation.kind),
        path=obligation.path,
        subject=obligation.subject,
        claim=obligation.claim,
        means=str(means),  # type: ignore[arg-type]  # the values of safety_types.Means
        solvers={
            result.solver: SolverRecord(
                answer=result.answer.value, version=result.version, milliseconds=round(result.milliseconds, 3)
            )
            for result in entry.results
        },
        sha256=sha256(text.encode()) if text else None,
        milliseconds=round(entry.milliseconds, 3),
    )


# --- run directories -------------------------------------------------------------------------------------------------


def build_run(
    root: Path,
    count: int = COUNT,
    archs: Sequence[str] = ARCHS,
    *,
    force: bool = False,
    choice: KernelChoice = KernelChoice(),
    step: Callable[[str, int, int], None] | None = None,
) -> list[tuple[str, str]]:
    """Write the kernels of a run's best candidates, or of a whole program's best covers, to its directory ``kernels``.

    Refused candidates do not count. Earlier kernels are replaced; those with GPU results only with ``force``.

    Args:
        root: The run's directory.
        count: Number of candidates that get kernels.
        archs: Architectures to compile for.
        force: Whether kernels with GPU results are replaced.
        choice: Choices of forms, and of what is accepted.
        step: Callback with the number of candidates that have kernels, after each that was tried.

    Returns:
        For each candidate that was tried, its directory's name and the outcome: "built", with the name of a form other
        than its own, and after a semicolon a note if exponentials are summed without a running maximum; or the reason
        why not.

    Raises:
        RunError: There is no run, or a file in ``kernels`` is not ours or may not be replaced.
    """
    with keep_results_on_stop("what is finished stays; the same command builds the rest"), lock_directory(root):
        tell = step or (lambda what, done, total: None)
        return _build_run(root, count, archs, tell, force=force, choice=choice)


def _build_run(
    root: Path,
    count: int,
    archs: Sequence[str],
    step: Callable[[str, int, int], None],
    *,
    force: bool,
    choice: KernelChoice,
) -> list[tuple[str, str]]:
    program, target_name, candidates = candidates_of(root)
    target = load_target(target_name)
    where = root / KERNELS
    expect_replaceable_kernels(where, force=force)
    tried: list[tuple[str, str]] = []
    done: list[str] = []
    for name, read_graph in candidates:
        step("building", len(done), min(count, len(candidates)))
        if len(done) == count:
            break
        try:
            graph = read_graph()
            if choice.other_forms:
                built, said = _build_best_form(graph, program, target, archs, choice.accept)
            else:
                built, said = build(graph, program, target, archs, accept=choice.accept), ""
        except KernelRejected as error:
            tried.append((name, str(error)))
            continue
        save_built(built, where / name)
        notes = [note for note in (built.stable.note, *built.tested) if note]
        tried.append((name, "; ".join([f"built{said}", *notes])))
        done.append(name)
    for path in sorted(where.iterdir()) if where.is_dir() else ():
        if path.name not in done:
            remove(path, KERNELS_OF_ONE)
    return tried


def _build_best_form(
    graph: KernelGraph, program: KernelGraph, target: Target, archs: Sequence[str], accept: Acceptance
) -> tuple[BuiltKernels, str]:
    """Return the kernels of the form with the best estimate that has any, and its name if it is not the own one.

    Raises:
        KernelRejected: The own form is not proved.
    """
    from mirage_formal.kernel_build.candidate_forms import OWN, forms  # loads numerical packages

    try:
        found = forms(graph, target)
    except MirageError as error:
        raise KernelRejected(f"its exponentials are not stable: {first_line(error)}", where="stabilize") from error
    for form in sorted(found, key=lambda form: form.us):
        try:
            said = "" if form.name == OWN else f" in the form {form.name}"
            return build(graph, program, target, archs, form, accept), said
        except KernelRejected:
            if form.name == OWN:
                raise
    raise AssertionError("the own form is one of all")


def candidates_of(root: Path) -> tuple[KernelGraph, str, list[tuple[str, Callable[[], KernelGraph]]]]:
    """Return a finished run's program, its target's name, and its candidates or covers, best first, by name."""
    if (root / WHOLE_FILE).is_file():
        whole = decode(read_file(root / WHOLE_FILE), WholeRecord, str(root / WHOLE_FILE))
        if not whole.covers:
            hint = "python -m mirage_formal.search with --resume finishes it"
            raise RunError("expected a finished run, got one without a cover", where=str(root), hint=hint)
        program, where = from_json(bytes(whole.graph_of_program), str(root / WHOLE_FILE)), str(root / WHOLE_FILE)
        covers = [
            (cover_name(rank, one.graph_digest), partial(from_json, bytes(one.graph), where))
            for rank, one in enumerate(whole.covers, 1)
        ]
        return program, whole.identity.target, [*covers]
    if not (root / RUN_FILE).is_file():
        raise RunError("expected the directory of a run, got none", where=str(root), hint="check the path")
    run = decode(read_file(root / RUN_FILE), RunRecord, str(root / RUN_FILE))
    if not (root / SUMMARY_FILE).is_file():
        hint = "python -m mirage_formal.search with --resume finishes it"
        raise RunError("expected a finished run, got one without a summary", where=str(root), hint=hint)
    found = sorted((root / CANDIDATES).iterdir())
    graphs = [(directory.name, partial(_graph_in, directory)) for directory in found]
    return from_json(bytes(run.program), str(root / RUN_FILE)), run.identity.target, [*graphs]


def _graph_in(directory: Path) -> KernelGraph:
    return from_json(read_file(directory / GRAPH_FILE), str(directory / GRAPH_FILE))

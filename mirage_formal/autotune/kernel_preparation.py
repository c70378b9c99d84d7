"""Preparation of kernels for tuning: forms, schedules and built kernels; needs solvers and a compiler, and no GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mirage_formal.autotune.plans import (
    At,
    CandidatePlan,
    KernelOrigin,
    PiecePlan,
    PreparedKernel,
    ScheduleVariant,
    TuningDirectory,
    TuningPlan,
    Watch,
)
from mirage_formal.autotune.timing_cache import KernelRequest, kernel_code_digest, kernel_request
from mirage_formal.autotune.tuning_space import ComposedCandidate
from mirage_formal.codegen.generate import (
    NONE_EARLY,
    NONE_JOINED,
    alternative_tiles,
    schedule_from_record,
    schedule_record,
)
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.device.compile import version as compiler
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import decode_graph, encode, from_json, to_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.kernel_build.build import build_form, candidates_of
from mirage_formal.kernel_build.built_kernels import MIXED, Acceptance, KernelRejected
from mirage_formal.records import RealizationRecord, ScheduleRecord, sha256
from mirage_formal.run.settings import environment
from mirage_formal.support.errors import MirageError
from mirage_formal.workers.dispatch import Executor, TaskDone, TaskFailed

if TYPE_CHECKING:
    from mirage_formal.kernel_build.built_kernels import BuiltKernels
    from mirage_formal.kernel_build.candidate_forms import CandidateForm

#: Modules that workers load once.
PRELOAD: Final = ("mirage_formal.autotune.kernel_preparation", "mirage_formal.codegen.safety.safety")
#: Most schedules of one kernel.
MOST_SCHEDULES: Final = 64
#: Most forms of one candidate, its own included, without those that differ in grids only.
MOST_FORMS: Final = 4
#: Most additional forms on other grids.
MOST_GRIDS: Final = 3
#: Most additional forms on other grids for kernels with products.
MOST_TILES: Final = 5
#: Seconds for the forms of one candidate, and for one kernel.
_FORM_S: Final = 300.0
_KERNEL_S: Final = 120.0
#: Seconds for the kernels of one finalist.
FINALIST_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class TunedRun:
    """Run that is tuned: its program, target and candidates.

    Attributes:
        program: The encoded program.
        target: Name of the target.
        candidates: Name and encoded µGraph of each, best first.
        digest: Digest of all of these, and of our code.
    """

    program: bytes
    target: str
    candidates: tuple[tuple[str, bytes], ...]
    digest: str


def source_of(root: Path) -> TunedRun:
    """Return the program, target, candidates and digest of a finished run; of a whole program, its covers.

    Raises:
        RunError: There is no finished run.
    """
    program, target, found = candidates_of(root)
    candidates = tuple((name, encode(graph())) for name, graph in found)
    # Any change of our code may change the candidates' forms and schedules.
    read = (sorted(environment().items()), sha256(encode(program)), target, [(n, sha256(g)) for n, g in candidates])
    return TunedRun(encode(program), target, candidates, sha256(msgspec.json.encode(read)))


@dataclass(frozen=True, slots=True)
class _FormTask:
    """Task that lists the kernels of all forms of a candidate."""

    name: str
    graph: bytes
    target: str


@dataclass(frozen=True, slots=True)
class _DescribedForm:
    """Kernels of one form, each with µGraph, position, operator of the form, warm inputs and schedules.

    Attributes:
        form: Name of the form.
        us: Estimate of the cost model.
        stable: Whether every sum of exponentials that is a divisor has its running maximum.
        kernels: The kernels.
        library: As ``CandidatePlan.library``.
        unfused: As ``CandidatePlan.unfused``.
        sources: As ``CandidatePlan.sources``.
    """

    form: str
    us: float
    stable: bool
    kernels: tuple[tuple[bytes, int, int, tuple[bool, ...], tuple[ScheduleRecord | None, ...]], ...]
    library: bool = False
    unfused: bool = False
    sources: tuple[int, ...] = ()


def forms_of(graph: KernelGraph, target: Target) -> list[tuple[str, CandidateForm]]:
    """Return the names and forms of a candidate to tune, each proved equal to it; its own form has an empty name.

    Raises:
        MirageError: Its own form is not proved.
    """
    from mirage_formal.kernel_build.candidate_forms import OWN, forms  # loads numerical packages

    found = forms(graph, target)
    kinds = ((False, False, MOST_FORMS), (True, False, MOST_GRIDS), (True, True, MOST_TILES))
    kept = [one for grids, tiles, most in kinds for one in _of_kind(found, grids, tiles)[:most]]
    return [("" if one.name == OWN else one.name, one) for one in kept]


def _of_kind(found: Sequence[CandidateForm], grids: bool, tiles: bool) -> list[CandidateForm]:
    return [one for one in found if (one.grids, one.tiles) == (grids, tiles)]


@dataclass(frozen=True, slots=True)
class Finalist:
    """Task that builds the kernels of a candidate's form.

    Attributes:
        graph, program: The candidate and its program, encoded.
        target: Name of the target.
        arch: Architecture that kernels are compiled for.
        form: Name of the form.
        kernels: The µGraph of each kernel, and its operator in the form.
        schedules: Chosen schedules of some of these operators.
        early: As in ``ComposedCandidate``.
        accept: Whether kernels are returned that are not proved to realize their operators.
        claims: Claims that other finalists' kernels realize their operators (``kernel_build.validation``).
    """

    graph: bytes
    program: bytes
    target: str
    arch: str
    form: str
    kernels: tuple[tuple[bytes, int], ...]
    schedules: tuple[tuple[int, ScheduleRecord], ...] = ()
    early: frozenset[int] = frozenset()
    accept: Acceptance = Acceptance.PROVED
    claims: Mapping[str, RealizationRecord] = field(default_factory=dict)


def finalist_task(
    source: TunedRun, plan: TuningPlan, one: ComposedCandidate, accept: Acceptance = Acceptance.PROVED
) -> Finalist:
    """Return the task that builds a candidate chosen by times."""
    candidate = plan.candidates[one.candidate]
    pieces = [plan.pieces[piece] for piece in candidate.pieces]
    chosen = zip(candidate.operators, pieces, one.variants, strict=True)
    schedules = ((operator, piece.variants[variant].schedule) for operator, piece, variant in chosen)
    return Finalist(
        dict(source.candidates)[candidate.name],
        source.program,
        source.target,
        plan.arch,
        candidate.form,
        tuple((bytes(piece.graph), operator) for piece, operator in zip(pieces, candidate.operators, strict=True)),
        tuple((operator, record) for operator, record in schedules if record is not None),
        one.early,
        accept,
    )


def form_of(task: Finalist) -> CandidateForm:
    """Return the form of a finalist, which is one of the plan's or a mixed one.

    Raises:
        KernelRejected: The form is not proved, or its kernels are not those of the plan.
    """
    from mirage_formal.autotune.kernel_extraction import extract_kernels

    try:
        form = _form_by_name(decode_graph(task.graph), load_target(task.target), task.form)
    except MirageError as error:
        raise KernelRejected(f"the form {task.form or 'own'} is not proved: {error}", where="form") from error
    if not task.form.startswith(MIXED):
        return form
    if [(to_json(one.graph).encode(), one.operator) for one in extract_kernels(form.graph)] != list(task.kernels):
        raise KernelRejected("the kernels of a form that is put together are not those of the others", where="form")
    return form


def has_proved_form(task: Finalist) -> bool:
    """Return whether the form of a finalist has a proof."""
    try:
        form_of(task)
    except KernelRejected:
        return False
    return True


def build_finalist(task: Finalist) -> BuiltKernels | str:
    """Build the kernels of a finalist, or return the reason why there are none.

    Sound: ``build_form`` makes them, which refuses what may not run, of a form that ``form_of`` has proved, and
    ``validate_kernels`` refuses what is not proved to compute it, unless the task accepts tested kernels.
    """
    from mirage_formal.kernel_build.validation import validate_kernels

    schedules = {operator: schedule_from_record(record) for operator, record in task.schedules}
    target, program = load_target(task.target), decode_graph(task.program)
    try:
        form = build_form(form_of(task), program, target, (task.arch,), (schedules, task.early, NONE_JOINED))
        made = validate_kernels(form, task.accept, task.claims)
    except KernelRejected as error:
        return str(error)
    return replace(made, candidate=digest(decode_graph(task.graph)))


def finalist_text_digest(task: Finalist) -> str:
    """Return the digest of the text of a finalist's kernels, without proving or compiling; empty if there are none."""
    from mirage_formal.kernel_build.code_digest import digest_of_launches

    schedules = {operator: schedule_from_record(record) for operator, record in task.schedules}
    try:
        return digest_of_launches(form_of(task).graph, load_target(task.target), schedules, task.early)
    except MirageError:
        return ""


@lru_cache(maxsize=32)
def _form_by_name(graph: KernelGraph, target: Target, name: str) -> CandidateForm:
    """Return a form by its name, own or mixed; cached, because many finalists have few forms."""
    from mirage_formal.kernel_build import candidate_forms

    if name.startswith(MIXED):
        return candidate_forms.mixed_form(graph, target, candidate_forms.parse_mixed_name(name))
    return candidate_forms.form(graph, target, name or candidate_forms.OWN)


def describe_forms(task: _FormTask) -> list[_DescribedForm]:
    """List the kernels of all forms of a candidate; none where no form of it may run."""
    from mirage_formal.autotune.kernel_extraction import extract_kernels
    from mirage_formal.run.ranking import is_unfused, uses_library_products_only

    target = load_target(task.target)
    try:
        forms = forms_of(decode_graph(task.graph), target)
    except MirageError:
        return []
    found = []
    least = forms[0][1].us
    for name, form in forms:
        kernels = []
        for piece in extract_kernels(form.graph):
            schedules: tuple[ScheduleRecord | None, ...] = (None,)
            if isinstance(piece.graph.ops[piece.position], GraphDefined):
                schedules = _schedules(piece, target)
            else:
                schedules = (None, *map(schedule_record, alternative_tiles(piece.graph, piece.position, target)))
            kernels.append((to_json(piece.graph).encode(), piece.position, piece.operator, piece.warm, schedules))
        us, library = form.us, uses_library_products_only(form.graph)
        if form.tiles:  # a search has chosen the own grid by the same model, so other grids are not tried ahead of it
            us = max(us, least)
        plain = library, is_unfused(form.graph)
        found.append(_DescribedForm(name, us, not form.note, tuple(kernels), *plain, form.sources))
    return found


def _schedules(piece: Any, target: Any) -> tuple[ScheduleRecord, ...]:
    """Return the schedules of a kernel; none if it cannot be planned."""
    from itertools import islice

    from mirage_formal.codegen.planning.planner import schedules

    try:
        made = list(islice(schedules(piece.graph, piece.position, target), MOST_SCHEDULES))
    except MirageError:
        return ()
    return tuple(schedule_record(one) for one in made)


def plan_of(source: TunedRun, arch: str, maker: KernelPreparation) -> TuningPlan:
    """Return the tuning plan of a run: its candidates and their distinct kernels.

    If some candidates are stable (running maxima under their softmax sums), only these are kept.

    Args:
        source: The run.
        arch: Architecture that kernels are compiled for.
        maker: Builder whose workers list the kernels.
    """
    tasks = [_FormTask(name, graph, source.target) for name, graph in source.candidates]
    answers: dict[int, list[_DescribedForm]] = {}
    for event in maker.executor.run(describe_forms, tasks, limit_s=_FORM_S, once=True):
        if isinstance(event, TaskDone):
            answers[event.index] = event.value
        elif isinstance(event, TaskFailed):
            answers[event.index] = []
        maker.watch("forms", len(answers), len(tasks))
    target = sha256(msgspec.json.encode(msgspec.to_builtins(load_target(source.target))))
    pieces: dict[tuple[bytes, int, tuple[bool, ...]], int] = {}
    plans: list[PiecePlan] = []
    candidates: list[CandidatePlan] = []
    stable = any(one.stable for found in answers.values() for one in found)
    for number, task in enumerate(tasks):
        for one in answers.get(number, ()):
            if stable and not one.stable:  # it would exceed its tolerance
                continue
            own = []
            for graph, position, _, warm, schedules in one.kernels:
                if (graph, position, warm) not in pieces:
                    pieces[graph, position, warm] = len(plans)
                    variants = tuple(
                        ScheduleVariant(_kernel_key(graph, position, s, target, arch), s) for s in schedules
                    )
                    plans.append(PiecePlan(msgspec.Raw(graph), position, warm, variants))
                own.append(pieces[graph, position, warm])
            operators = tuple(operator for _, _, operator, _, _ in one.kernels)
            more = one.library, one.unfused, one.sources
            candidates.append(CandidatePlan(task.name, one.form, one.us, tuple(own), operators, *more))
    candidates.sort(key=lambda one: one.us)
    return TuningPlan(source.digest, arch, tuple(candidates), tuple(plans))


def _kernel_key(graph: bytes, position: int, schedule: ScheduleRecord | None, target: str, arch: str) -> str:
    return sha256(graph + b"\n" + msgspec.json.encode((position, schedule, target, arch)))


def build_kernel(task: tuple[KernelRequest, str]) -> PreparedKernel:
    """Build a kernel for an architecture, with its obligations discharged, or return the reason why there is none.

    Sound: it is made by ``build_form``, which refuses a kernel with an obligation that does not hold. Its results are
    not used; what is kept goes through ``build_finalist``.
    """
    from mirage_formal.kernel_build.code_digest import digest_of_text
    from mirage_formal.kernel_build.stable_forms import StableForm

    one, arch = task
    graph = from_json(one.graph, "tuning plan")
    chosen = {} if one.schedule is None else {one.position: schedule_from_record(one.schedule)}
    try:
        options = chosen, NONE_EARLY, NONE_JOINED
        built = build_form(StableForm(graph), graph, load_target(one.target), (arch,), options)
    except KernelRejected as error:
        return PreparedKernel(str(error)[:500])
    executable = built.executable
    if len(executable.launches) != 1:
        return PreparedKernel(f"expected one launch, got {len(executable.launches)}")
    origin = KernelOrigin(digest_of_text(executable.launches, executable.sources.values()), compiler())
    return PreparedKernel("", executable.launches[0], executable.outputs, executable.files, origin)


@dataclass(frozen=True, slots=True)
class KernelPreparation:
    """Builder of kernels: workers, the tuning directory and a progress callback.

    Attributes:
        place: The tuning directory.
        executor: Workers.
        watch: Callback for progress.
    """

    place: TuningDirectory
    executor: Executor[Any]
    watch: Watch

    def prepare(
        self, plan: TuningPlan, target: str, wanted: Sequence[At], deadline: float = float("inf")
    ) -> dict[At, PreparedKernel]:
        """Build the kernels that are missing or were made by other code or another compiler; keep each as it completes.

        Args:
            plan: The plan.
            target: Name of the target.
            wanted: Positions of piece and schedule.
            deadline: Value of time.monotonic() at which to stop.

        Returns:
            The kernels that exist now, refused ones included; fewer than asked for if the deadline came first.
        """
        keys = [plan.key(at) for at in wanted]
        found = ((at, self.place.kernels.get(key)) for at, key in zip(wanted, keys, strict=True))
        known = {at: one for at, one in found if one is not None and _is_up_to_date(one)}
        missing = [n for n, at in enumerate(wanted) if at not in known]
        tasks = [(kernel_request(plan, target, wanted[n]), plan.arch) for n in missing]
        self.watch("kernels", len(known), len(wanted))
        limit = min(_KERNEL_S, max(1.0, deadline - time.monotonic()))
        for event in self.executor.run(build_kernel, tasks, limit_s=limit, deadline=deadline, once=True):
            if isinstance(event, TaskDone):
                one = event.value
            elif isinstance(event, TaskFailed):
                if event.overdue and limit < _KERNEL_S:  # it may succeed another time
                    continue
                one = PreparedKernel(f"it could not be made: {event.reason}"[:500])
            else:
                continue
            one = msgspec.structs.replace(one, origin=msgspec.structs.replace(one.origin, code=kernel_code_digest()))
            known[wanted[missing[event.index]]] = one
            self.place.kernels.put(keys[missing[event.index]], one)
            self.watch("kernels", len(known), len(wanted))
        return {at: known[at] for at in wanted if at in known}


def _is_up_to_date(one: PreparedKernel) -> bool:
    """Return whether this code and compiler would build the same kernel."""
    return one.origin.code == kernel_code_digest() and (bool(one.refused) or one.origin.compiler == compiler())


__all__ = [
    "FINALIST_S",
    "PRELOAD",
    "Finalist",
    "KernelPreparation",
    "TunedRun",
    "build_finalist",
    "finalist_task",
    "finalist_text_digest",
    "forms_of",
    "has_proved_form",
    "plan_of",
    "source_of",
]

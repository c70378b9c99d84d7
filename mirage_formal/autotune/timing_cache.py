"""Cache of kernel times: selection of the times that are valid for the kernels of this code.

A time is kept with two digests: of the code that wrote its kernel, and of the kernel's text (``plans.KernelOrigin``).
The same code writes the same text. With other code, such as another version of this package, a time is valid if the
kernel's text is the same. The text of a built kernel is known; that of another kernel is generated again, without proof
or compilation.

Sound: times decide which kernels are built, and nothing about whether one may run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from mirage_formal.autotune.plans import At, MeasuredTime, TuningDirectory, TuningPlan
from mirage_formal.records import ScheduleRecord
from mirage_formal.support.errors import MirageError
from mirage_formal.workers.dispatch import Executor, TaskDone

#: Seconds for generating the text of one kernel.
_WRITTEN_S: Final = 60.0


@lru_cache(maxsize=1)
def kernel_code_digest() -> str:
    """Return the digest of the code of this package that writes kernels."""
    from mirage_formal.run.settings import kernel_code

    return kernel_code()


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """A kernel to build, or to generate the text of."""

    graph: bytes
    position: int
    schedule: ScheduleRecord | None
    target: str


def kernel_request(plan: TuningPlan, target: str, at: At) -> KernelRequest:
    """Return a kernel of a plan, given by the positions of its piece and schedule."""
    one, variant = plan.pieces[at[0]], at[1]
    return KernelRequest(bytes(one.graph), one.position, one.variants[variant].schedule, target)


def kernel_text_digest(asked: KernelRequest) -> str:
    """Return the digest of a kernel's text; empty if no kernel can be generated."""
    from mirage_formal.codegen.generate import schedule_from_record
    from mirage_formal.codegen.target import load_target
    from mirage_formal.graph.formats.json import from_json
    from mirage_formal.kernel_build.code_digest import digest_of_launches

    chosen = {} if asked.schedule is None else {asked.position: schedule_from_record(asked.schedule)}
    try:
        return digest_of_launches(from_json(asked.graph, "tuning plan"), load_target(asked.target), chosen)
    except MirageError:
        return ""


def times_of_other_machine(
    plan: TuningPlan, times: Mapping[str, MeasuredTime], target: str, executor: Executor[Any]
) -> dict[str, float | None]:
    """Return microseconds of a plan's kernels that were measured on another machine; None for those that failed.

    Args:
        plan: The plan.
        times: Measurements by key of the kernel.
        target: Name of the target.
        executor: Workers, which generate the text of kernels that other code has made.
    """
    first = {plan.key(at): at for at in reversed(plan.kernels()) if plan.key(at) in times}
    known = {key: times[key] for key in first}
    others = [key for key, one in known.items() if one.code != kernel_code_digest()]
    texts = dict(zip(others, _texts(plan, [first[key] for key in others], target, executor), strict=True))
    return {
        key: None if one.failed else one.us
        for key, one in known.items()
        if one.code == kernel_code_digest() or (one.text and one.text == texts[key])
    }


def _texts(plan: TuningPlan, wanted: Sequence[At], target: str, executor: Executor[Any]) -> list[str]:
    """Return the digests of the kernels' texts, in order."""
    found = [""] * len(wanted)
    tasks = [kernel_request(plan, target, at) for at in wanted]
    for event in executor.run(kernel_text_digest, tasks, limit_s=_WRITTEN_S, once=True):
        if isinstance(event, TaskDone):
            found[event.index] = event.value
    return found


def times_of_this_machine(
    plan: TuningPlan, times: Mapping[str, MeasuredTime], place: TuningDirectory
) -> dict[str, float | None]:
    """Return known microseconds of a plan's kernels on this machine; None for those that failed or may not run.

    A kernel that this code has not built yet is left out, because its text is not known.

    Args:
        plan: The plan.
        times: Measurements by key of the kernel.
        place: Directory of the kernels.
    """
    found: dict[str, float | None] = {}
    for key in {plan.key(at) for at in plan.kernels()}:
        one = times.get(key)
        if one is not None and one.code == kernel_code_digest():
            found[key] = None if one.failed else one.us
        elif (made := place.kernels.get(key)) is not None and made.origin.code == kernel_code_digest():
            if made.refused:
                found[key] = None
            elif one is not None and one.text == made.origin.text:
                found[key] = None if one.failed else one.us
    return found


__all__ = [
    "KernelRequest",
    "kernel_code_digest",
    "kernel_request",
    "kernel_text_digest",
    "times_of_other_machine",
    "times_of_this_machine",
]

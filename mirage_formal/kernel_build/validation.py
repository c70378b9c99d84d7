"""The claim that built kernels realize their operators of the µGraph, as a condition of launching them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from mirage_formal.codegen.generate import GeneratedKernel
from mirage_formal.codegen.translation_validation.claim_record import realization_record
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import Acceptance, BuiltKernels, KernelRejected
from mirage_formal.records import KernelLaunch, RealizationRecord


def validate_kernels(built: BuiltKernels, accept: Acceptance = Acceptance.PROVED) -> BuiltKernels:
    """Return built kernels with the claim for each that it realizes its operator.

    Sound: each is decided by ``decide_realizes`` on the Program whose text is launched and on the µGraph of the
    launches; under PROVED nothing is returned unless it holds of all.

    Raises:
        KernelRejected: The claim does not hold of a kernel, and only proved kernels are accepted.
    """
    graph = built.executable.graph
    found: list[RealizationRecord] = []
    for launch in built.executable.launches:
        if isinstance(launch, KernelLaunch):
            values = tuple(argument.value for argument in launch.arguments)
            found.append(_decide(graph, GeneratedKernel(launch.operator, values, built.programs[launch.name])))
            if found[-1].verdict != "realizes" and accept is Acceptance.PROVED:
                what = f"it is not proved that the kernel computes its µGraph: {found[-1].reason}"
                raise KernelRejected(what, where=launch.name)
    return replace(built, realized=tuple(found))


@lru_cache(maxsize=64)
def _decide(graph: KernelGraph, kernel: GeneratedKernel) -> RealizationRecord:
    """Return the record of one kernel; cached, because tuning and reports build a candidate more than once."""
    return realization_record(graph, kernel)


__all__ = ["validate_kernels"]

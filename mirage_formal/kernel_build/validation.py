"""The claim that built kernels realize their operators of the µGraph, as a condition of launching them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from mirage_formal.codegen.generate import GeneratedKernel
from mirage_formal.codegen.program.program import For, GridWait, If, LaunchDependents, Stmt
from mirage_formal.codegen.translation_validation.claim_record import realization_record
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import Acceptance, BuiltKernels, KernelRejected
from mirage_formal.records import KernelLaunch, RealizationRecord


def validate_kernels(built: BuiltKernels, accept: Acceptance = Acceptance.PROVED) -> BuiltKernels:
    """Return built kernels with the claim for each that it realizes its operator.

    Sound: each is decided by ``decide_realizes`` on the Program whose text is launched, but for statements that order
    launches and compute nothing, and on the µGraph of the launches; under PROVED nothing is returned unless it holds of
    all.

    Raises:
        KernelRejected: The claim does not hold of a kernel, and only proved kernels are accepted.
    """
    graph = built.executable.graph
    found: list[RealizationRecord] = []
    for launch in built.executable.launches:
        if isinstance(launch, KernelLaunch):
            values = tuple(argument.value for argument in launch.arguments)
            program = built.programs[launch.name]
            program = replace(program, body=tuple(_without_launch_order(program.body)))
            found.append(_decide(graph, GeneratedKernel(launch.operator, values, program)))
            if found[-1].verdict != "realizes" and accept is Acceptance.PROVED:
                what = f"it is not proved that the kernel computes its µGraph: {found[-1].reason}"
                raise KernelRejected(what, where=launch.name)
    return replace(built, realized=tuple(found))


def _without_launch_order(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield statements but those that order launches, which compute nothing: tuning tries a kernel with and without."""
    for statement in body:
        match statement:
            case GridWait() | LaunchDependents():
                continue
            case For() | If():
                yield replace(statement, body=tuple(_without_launch_order(statement.body)))
            case _:
                yield statement


@lru_cache(maxsize=64)
def _decide(graph: KernelGraph, kernel: GeneratedKernel) -> RealizationRecord:
    """Return the record of one kernel; cached, because tuning and reports build a candidate more than once."""
    return realization_record(graph, kernel)


__all__ = ["validate_kernels"]

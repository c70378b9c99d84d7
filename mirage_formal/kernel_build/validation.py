"""The claim that built kernels realize their operators of the µGraph, as a condition of launching them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import msgspec

from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import For, GridWait, If, LaunchDependents, Stmt
from mirage_formal.codegen.program.serialization import encode_programs
from mirage_formal.codegen.realization_record import realization_record
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import Acceptance, BuiltKernels, KernelRejected
from mirage_formal.records import RealizationRecord, launched_kernels, sha256

#: No claims that were decided before.
NO_CLAIMS: Final[Mapping[str, RealizationRecord]] = MappingProxyType({})


def validate_kernels(
    built: BuiltKernels,
    accept: Acceptance = Acceptance.PROVED,
    known: Mapping[str, RealizationRecord] = NO_CLAIMS,
) -> BuiltKernels:
    """Return built kernels with the claim for each that it realizes its operator.

    Sound: each is decided by ``decide_realizes`` on the Program whose text is launched, but for statements that order
    launches and compute nothing, and on the µGraph of the launches; under PROVED nothing is returned unless it holds of
    all. A known claim was decided in this way on the same µGraph, operator and Program, by this process or its workers.

    Args:
        built: The kernels.
        accept: Whether kernels without the claim are returned.
        known: Claims of kernels that were built before, as ``claim_records`` returns them; never those of a file.

    Raises:
        KernelRejected: The claim does not hold of a kernel, and only proved kernels are accepted.
    """
    graph = built.executable.graph
    found: list[RealizationRecord] = []
    for kernel in _generated_kernels(built):
        record = known.get(_claim_key(graph, kernel)) if known else None
        found.append(record or _decide(graph, kernel))
        if found[-1].verdict != "realizes" and accept is Acceptance.PROVED:
            what = f"it is not proved that the kernel computes its µGraph: {found[-1].reason}"
            raise KernelRejected(what, where=kernel.program.name)
    return replace(built, realized=tuple(found))


def claim_records(built: BuiltKernels) -> dict[str, RealizationRecord]:
    """Return the claims of validated kernels by a digest of all that they were decided on."""
    kernels = _generated_kernels(built)
    return {
        _claim_key(built.executable.graph, kernel): record
        for kernel, record in zip(kernels, built.realized, strict=True)
    }


def _generated_kernels(built: BuiltKernels) -> Iterator[GeneratedKernel]:
    """Yield the generated kernels in launch order, without the statements that order launches."""
    for launch in launched_kernels(built.executable.launches):
        values = tuple(argument.value for argument in launch.arguments)
        program = built.programs[launch.name]
        program = replace(program, body=tuple(_without_launch_order(program.body)))
        yield GeneratedKernel(launch.operator, values, program)


def _claim_key(graph: KernelGraph, kernel: GeneratedKernel) -> str:
    decided_on = msgspec.json.encode((kernel.operator, kernel.values))
    return sha256(b"\n".join((encode(graph), decided_on, encode_programs([kernel.program]))))


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


__all__ = ["NO_CLAIMS", "claim_records", "validate_kernels"]

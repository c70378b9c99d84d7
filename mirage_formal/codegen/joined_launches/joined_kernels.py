"""Choices for two kernels that share a launch: what one hands over to the other, and the other's schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_formal.codegen.joined_launches.block_groups import HandedTensor
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.storage_views import storage_locations
from mirage_formal.records import KernelLaunch
from mirage_formal.support.errors import UnsupportedError

if TYPE_CHECKING:
    from mirage_formal.codegen.executable import Executable
    from mirage_formal.codegen.generated_launches import GeneratedKernel


def schedule_with_threads(graph: KernelGraph, position: int, target: Target, threads: int) -> Schedule | None:
    """Return the likeliest schedule of a graph-defined kernel with a number of threads; None if there is none.

    Args:
        graph: A well-formed µGraph.
        position: The position of the kernel.
        target: The GPU.
        threads: Threads of a block.

    Raises:
        UnsupportedError: The kernel cannot be planned at all.
    """
    from mirage_formal.codegen.planning.planner import schedules

    made = list(schedules(graph, position, target))
    found = next((one for one in made if one.threads == threads), None)
    return replace(made[0], threads=threads) if found is None and not made[0].warps else found


def handed_tensors(
    graph: KernelGraph, kernels: tuple[GeneratedKernel, GeneratedKernel], ops: tuple[GraphDefined, GraphDefined]
) -> tuple[HandedTensor, ...]:
    """Return the tensors that the first of two kernels writes and the second one reads.

    Raises:
        UnsupportedError: The second one reads another view of such a tensor.
    """
    known = storage_locations(graph)
    first, then = kernels
    written = {
        known[value].base: (value, param.name)
        for value, param in zip(first.values, first.program.params, strict=True)
        if param.written
    }
    savers = dict(zip(first.values[-len(ops[0].graph.outputs) :], ops[0].graph.outputs, strict=True))
    found: list[HandedTensor] = []
    for value, param in zip(then.values, then.program.params, strict=True):
        value_and_name = written.get(known[value].base)
        if value_and_name is None or param.written:
            continue
        if value_and_name[0] != value:
            raise UnsupportedError("expected results of the kernel before to be read as they are written", where="plan")
        iterator = ops[1].graph.inputs[ops[1].operands.index(value)]
        found.append(HandedTensor(param.name, value_and_name[1], iterator.imap, savers[value].omap))
    return tuple(found)


def joinable_kernels(executable: Executable) -> tuple[int, ...]:
    """Return the operators whose graph-defined kernels follow the launch of another one, in launch order.

    Whether their blocks read only what one group of blocks writes is seen when they are generated.
    """
    ops = executable.graph.ops
    pairs = zip(executable.launches, executable.launches[1:], strict=False)
    return tuple(
        behind.operator
        for before, behind in pairs
        if isinstance(before, KernelLaunch) and isinstance(behind, KernelLaunch)
        if min(before.operator, behind.operator) >= 0 and not before.counters and not behind.counters
        if isinstance(ops[before.operator], GraphDefined) and isinstance(ops[behind.operator], GraphDefined)
    )


__all__ = ["handed_tensors", "joinable_kernels", "schedule_with_threads"]

"""Which lines of recorded sources belong to which node of the µGraph that they compute.

The files don't say it. So kernels are made of the µGraph once more, as the plans say, and where that gives the very
text that is recorded, its lines are known. Where it gives another one, or none, nothing is said: that is for ``check``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.kernels.cuda import emit
from mirage_formal.kernels.generate import Kernel, generate, schedule_of
from mirage_formal.kernels.lines import kernel_lines
from mirage_formal.kernels.target import Target
from mirage_formal.records import PlanRecord, TargetRecord
from mirage_formal.report.model import Lines
from mirage_formal.report.views.levels import all_nodes, levels

#: Characters of all sources of a candidate, and operators of its µGraph, up to which kernels are made once more.
_TEXT: Final = 1 << 20
_OPERATORS: Final = 200


def lines_of(
    graph: KernelGraph, target: TargetRecord, plans: PlanRecord, texts: Mapping[str, str]
) -> dict[tuple[str, int], tuple[Lines, ...]]:
    """Lines by file and operator; what is not known is not there.

    Args:
        graph: The µGraph that the kernels compute.
        target: What they are planned for.
        plans: How.
        texts: The recorded sources.
    """
    if sum(map(len, texts.values())) > _TEXT or len(graph.ops) > _OPERATORS:
        return {}
    try:
        return dict(_lines_of(graph, target, plans, texts))
    except Exception:  # whatever forged plans and targets lead to: then it is not known
        return {}


def _lines_of(
    graph: KernelGraph, target: TargetRecord, plans: PlanRecord, texts: Mapping[str, str]
) -> list[tuple[tuple[str, int], tuple[Lines, ...]]]:
    schedules = {one.operator: schedule_of(one.schedule) for one in plans.kernels if one.schedule is not None}
    made = generate(graph, msgspec.convert(msgspec.to_builtins(target), Target), schedules)
    kernels = [one for one in made.steps if isinstance(one, Kernel)]
    types = kernel_types(graph)
    names = {node.id: node.label for node in all_nodes(levels(graph))}
    found = []
    for one, source in zip(kernels, made.sources, strict=True):
        op = graph.ops[one.operator] if one.operator >= 0 else None
        if one.plan is None or not isinstance(op, GraphDefined) or emit(one.program) != texts.get(source):
            continue
        here = f"op{one.operator}"
        lines = tuple(
            Lines(
                item.first, item.last, tuple((f"{here}.{node}", names[f"{here}.{node}"]) for node in item.nodes),
                item.does,
            )
            for item in kernel_lines(one.program, one.plan, op, [types[n] for n in op.operands])
        )  # fmt: skip
        found.append(((source, one.operator), lines))
    return found


__all__ = ["lines_of"]

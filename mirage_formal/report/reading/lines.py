"""Map from lines of sources to nodes of the µGraph that they compute.

The files do not have this map. So kernels are generated from the µGraph once more by their plans; if the text is
exactly the recorded one, its lines are known. If it differs, or generation fails, no lines are shown; ``check`` reports
that. The same is done for Triton files, which have no plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from mirage_formal.codegen.cuda import emit_cuda
from mirage_formal.codegen.generate import Kernel, generate, requested_options
from mirage_formal.codegen.online_softmax.stabilize import NotStable, stabilize
from mirage_formal.codegen.program.lines import LineRange as Piece
from mirage_formal.codegen.source_map import kernel_lines
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.codegen.triton.file import triton_file
from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.records import PlanRecord, TargetRecord
from mirage_formal.report.model import Lines
from mirage_formal.report.views.levels import all_nodes, levels
from mirage_formal.support.errors import MirageError

#: Most characters of a candidate's sources, and most operators of its µGraph, for which kernels are regenerated.
_TEXT: Final = 1 << 20
_OPERATORS: Final = 200


def lines_of(
    graph: KernelGraph, target: TargetRecord, plans: PlanRecord, texts: Mapping[str, str]
) -> dict[tuple[str, int], tuple[Lines, ...]]:
    """Return lines by file and operator; unknown ones are left out.

    Args:
        graph: The µGraph that the kernels compute.
        target: Target that they are planned for.
        plans: Their plans.
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
    made = generate(graph, msgspec.convert(msgspec.to_builtins(target), Target), *requested_options(plans.kernels))
    kernels = [one for one in made.steps if isinstance(one, Kernel)]
    types = kernel_types(graph)
    found = []
    for one, source in zip(kernels, made.sources, strict=True):
        op = graph.ops[one.operator] if one.operator >= 0 else None
        if one.plan is None or not isinstance(op, GraphDefined) or emit_cuda(one.program) != texts.get(source):
            continue
        here = f"op{one.operator}"
        pieces = kernel_lines(one.program, one.plan, op, [types[n] for n in op.operands])
        inside = [replace(piece, nodes=tuple(f"{here}.{node}" for node in piece.nodes)) for piece in pieces]
        found.append(((source, one.operator), _label_lines(inside, graph)))
    return found


def triton_lines(
    graph: KernelGraph, known: KernelGraph | None, program: KernelGraph, target: str, text: str
) -> tuple[tuple[Lines, ...], KernelGraph | None]:
    """Return the lines of a Triton file, and the form of the candidate that it computes; no lines if unknown.

    Args:
        graph: The candidate.
        known: The form of it that its CUDA kernels compute, if they compute another one.
        program: Its program.
        target: Name of the file's target.
        text: The file.
    """
    if len(text) > _TEXT or len(graph.ops) > _OPERATORS:
        return (), None
    try:
        figures = load_target(target)
        title = text.split("\n", 1)[0].removeprefix('"""')
        for form in _forms(graph, known):
            with suppress(MirageError):  # it has no Triton file
                made = triton_file(form, program, figures, title)
                if made.text == text:
                    return _label_lines(made.lines, form), None if form == graph else form
    except Exception:  # whatever a forged graph leads to: then it is not known
        return (), None
    return (), None


def _forms(graph: KernelGraph, known: KernelGraph | None) -> Iterator[KernelGraph]:
    """Yield the graphs that a file may compute: the candidate, and its forms without overflow."""
    yield graph
    if known is not None:
        yield known
    found = stabilize(graph)
    if not isinstance(found, NotStable) and found not in (graph, known):
        yield found


def _label_lines(lines: Sequence[Piece], graph: KernelGraph) -> tuple[Lines, ...]:
    """Return the lines with the labels of their nodes."""
    names = {node.id: node.label for node in all_nodes(levels(graph))}
    return tuple(
        Lines(item.first, item.last, tuple((node, names[node]) for node in item.nodes), item.does) for item in lines
    )


__all__ = ["lines_of", "triton_lines"]

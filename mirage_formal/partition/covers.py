"""Covers of a program, as values and as records, and the selection of those that are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import Target
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.edit import renumber
from mirage_formal.graph.formats.json import embed
from mirage_formal.graph.graph import KernelGraph, KernelOp, enumerate_results
from mirage_formal.graph.storage_views import is_view, kernel_count
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.partition.partition import Offers, Subgraph
from mirage_formal.records import CANDIDATES
from mirage_formal.records.partition import CoverRecord, PartRecord
from mirage_formal.run.ranking import is_unfused, uses_library_products_only
from mirage_formal.run.results.result import Result
from mirage_formal.run.results.run_report import RunReport

#: Number of covers that are reported, if there are so many distinct ones.
_MOST: Final = 4
_FEW: Final = 3
#: Relative tolerance when sums of estimates are compared.
_ROUNDING: Final = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class WholePart:
    """A subgraph with its replacement, and the run that found it.

    Attributes:
        part: The subgraph.
        graph: The replacement: a candidate, or the subgraph's own operators.
        chosen: The candidate; None if the operators stay.
        report: The run; None if no search takes the subgraph, or there was no time.
        view: Whether it is an operator whose result is a view in the program, for which no kernel is launched.
    """

    part: Subgraph
    graph: KernelGraph
    chosen: Result | None
    report: RunReport | None
    view: bool = False


@dataclass(frozen=True, slots=True)
class Cover:
    """A cover: a partition of a program with a replacement for each subgraph, stitched to one graph.

    Attributes:
        parts: The subgraphs in topological order.
        graph: The stitched graph.
        us: Its estimated microseconds; less than the sum of its parts' where a kernel's result stays in the L2 cache.
        kernels: Number of its kernels.
    """

    parts: tuple[WholePart, ...]
    graph: KernelGraph
    us: float
    kernels: int


def make_cover(program: KernelGraph, parts: tuple[WholePart, ...], target: Target) -> Cover:
    """Stitch the replacements of a program's subgraphs to a cover.

    Sound: see ``stitch``.
    """
    graph = stitch(program, [(one.part, one.graph) for one in parts])
    return Cover(parts, graph, estimate(graph, target).us, kernel_count(graph))


def least_costs_by_kernels(part: KernelGraph, report: RunReport, target: Target) -> Offers:
    """Return, for each number of kernels, the least cost of a proved candidate that the search found for a subgraph.

    A subgraph of one operator may keep it. So may a subgraph whose search had a failed unit or ran out of time, because
    better candidates may exist. Any other subgraph without a proved candidate has no offer and is excluded from
    partitions.
    """
    found: dict[int, float] = {}
    for result in proved_results(report):
        kernels = kernel_count(result.graph)
        found[kernels] = min(result.cost, found.get(kernels, result.cost))
    if len(part.ops) == 1 or report.summary.status != "complete" or report.failed:
        kernels, us = kernel_count(part), estimate(part, target).us
        found[kernels] = min(us, found.get(kernels, us))
    return tuple(sorted(found.items()))


def proved_results(report: RunReport) -> list[Result]:
    """Return the proved candidates of a run."""
    return [result for result in report.results if isinstance(result.verdict, Equivalent)]


def replace_part(program: KernelGraph, part: Subgraph, report: RunReport | None, target: Target) -> WholePart:
    """Return a subgraph with its replacement: the cheapest proved candidate, or its operators where they cost less.

    If the subgraph has a required number of kernels, only replacements with that number count, if there are any.
    """
    choices: list[tuple[float, int, Result | None, int]] = [
        (result.cost, result.rank, result, kernel_count(result.graph))
        for result in (proved_results(report) if report else ())
    ]
    last = 1 + len(choices)  # among equals a candidate wins
    choices.append((estimate(part.program, target).us, last, None, kernel_count(part.program)))
    fitting = [choice for choice in choices if choice[3] == part.kernels] or choices
    _, _, chosen, _ = min(fitting, key=lambda choice: choice[:2])
    if chosen is None:
        return WholePart(part, part.program, None, report, is_view(program, part.results[0]))
    return WholePart(part, chosen.graph, chosen, report)


def select_covers(covers: Iterable[Cover], unfused_us: float) -> tuple[Cover, ...]:
    """Return the covers to report, cheapest first; none is estimated above the unfused program.

    These are the Pareto front of cost and number of kernels and, if that is small, the cheapest of the others.
    Estimates can be wrong about launches or about a fused kernel. So the cheapest cover with all products left to a
    library is always reported, and so is the unfused program.

    Sound: it chooses among covers that all are equivalent.

    Args:
        covers: All covers found; of equal ones the first is taken.
        unfused_us: Estimated microseconds of the program's own operators, a kernel for each.
    """
    distinct: dict[str, Cover] = {}
    for one in covers:
        if one.us <= unfused_us * _ROUNDING:
            distinct.setdefault(digest(one.graph), one)  # covers that differ only in operator order are equal
    ranked = sorted(distinct.values(), key=lambda one: (one.us, one.kernels))
    front: list[Cover] = []
    for one in ranked:
        if not front or one.kernels < front[-1].kernels:
            front.append(one)
    taken = front if len(front) <= _MOST else [*front[: _MOST - 1], front[-1]]
    kinds: tuple[Callable[[Cover], bool], ...] = (
        lambda one: uses_library_products_only(one.graph),
        lambda one: is_unfused(one.graph),
    )
    for kind in kinds:
        plain = next(filter(kind, ranked), None)
        taken += [] if plain is None or plain in taken else [plain]
    others = [one for one in ranked if one not in taken][: max(0, _FEW - len(taken))]
    return tuple(sorted([*taken, *others], key=lambda one: (one.us, one.kernels)))


def cover_record(one: Cover, root: Path, target: Target) -> CoverRecord:
    """Return a cover as its record in whole.json."""
    parts = tuple(_part_record(part, root, target) for part in one.parts)
    return CoverRecord(
        parts=parts,
        graph=embed(one.graph),
        graph_digest=digest(one.graph),
        kernels=one.kernels,
        estimated_us=one.us,
        conditions=_number_conditions([part.conditions for part in parts]),
        added=_number_conditions([part.added for part in parts]),
    )


def _part_record(one: WholePart, root: Path, target: Target) -> PartRecord:
    from mirage_formal.check.equivalence import own_conditions

    unfused = estimate(one.part.program, target)
    chosen = one.chosen
    searched = "" if one.report is None else one.report.directory.relative_to(root).as_posix()
    if chosen is None:
        conditions, added = own_conditions(one.part.program), tuple[str, ...]()
    else:
        assert isinstance(chosen.verdict, Equivalent)
        conditions, added = chosen.verdict.conditions, chosen.verdict.added
    return PartRecord(
        operators=one.part.operators,
        run=searched,
        candidate=None if chosen is None else chosen.digest,
        directory="" if chosen is None else f"{searched}/{CANDIDATES}/{chosen.directory.name}",
        kernels=kernel_count(one.graph),
        estimated_us=unfused.us if chosen is None else chosen.cost,
        unfused_kernels=kernel_count(one.part.program),
        unfused_us=unfused.us,
        conditions=conditions,
        added=added,
    )


def _number_conditions(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the side conditions of all subgraphs, each prefixed with its subgraph's number."""
    return tuple(dict.fromkeys(f"part {n}: {one}" for n, conditions in enumerate(parts, 1) for one in conditions))


def stitch(program: KernelGraph, pieces: Sequence[tuple[Subgraph, KernelGraph]]) -> KernelGraph:
    """Concatenate the graphs of all subgraphs over the program's inputs.

    Args:
        program: The program.
        pieces: Its subgraphs in topological order, each with a graph over the subgraph's inputs.

    Sound: every graph reads what stands for the tensors that its part reads, and its outputs stand for the part's
    results. If each graph computes what its part does, every tensor that a part hands on is the program's, part by
    part, and so are the outputs.

    Raises:
        GraphError: The graphs do not fit together.
    """
    stands = {number: number for number in range(len(program.inputs))}
    count = len(program.inputs)
    ops: list[KernelOp] = []
    for part, graph in pieces:
        place = [stands[tensor] for tensor in part.reads]
        for first, op in enumerate_results(len(graph.inputs), graph.ops):
            assert first == len(place)
            ops.append(renumber(op, place))
            place += range(count, count + op.results)
            count += op.results
        stands |= {tensor: place[number] for tensor, number in zip(part.results, graph.outputs, strict=True)}
    whole = KernelGraph(program.inputs, tuple(ops), tuple(stands[tensor] for tensor in program.outputs))
    kernel_types(whole)
    return whole


__all__ = [
    "Cover",
    "WholePart",
    "cover_record",
    "least_costs_by_kernels",
    "make_cover",
    "proved_results",
    "replace_part",
    "select_covers",
]

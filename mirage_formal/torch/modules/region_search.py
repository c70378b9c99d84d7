"""Search for candidates of an import's regions, and choice of those that are faster than torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from mirage_formal.api.request import Options, search_into_store, stored_results
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.device.runtime import device_count
from mirage_formal.frontend.argument_checks import reject_unknown_options
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernel_build.built_kernels import parse_acceptance
from mirage_formal.kernel_build.triton.triton_acceptance import accepted_backend
from mirage_formal.partition.partition import floor_us
from mirage_formal.run.results.result import Result, Results
from mirage_formal.support import options
from mirage_formal.support.errors import (
    ClusterError,
    MirageError,
    NothingFoundError,
    RunError,
    SpaceError,
    TargetError,
)
from mirage_formal.torch.analysis.conditions import side_conditions
from mirage_formal.torch.comparison.candidate_comparison import candidate_fault, comparison_limit
from mirage_formal.torch.comparison.import_comparison import ImportComparison, RegionPiece, compare_with_torch
from mirage_formal.torch.deadline import NO_DEADLINE, STOPPED, Deadline, DeadlineReachedError, now
from mirage_formal.torch.import_result import Imported, Region, UnsupportedNode
from mirage_formal.torch.modules.custom_operators import TorchOperator, torch_operator
from mirage_formal.torch.modules.module_report import ModuleReport, RegionReport

_PACKAGE: Final = Path(__file__).parents[2]
#: Least seconds of a search.
_LEAST_S: Final = 1.0
#: Share of a time limit for searches; in the rest the candidates found are compared with torch.
_SEARCHES: Final = 0.9
#: Most candidates that are compared with torch.
_TRIALS: Final = 32
#: Candidates of the store whose proofs are replayed first; further ones where these may not replace a region.
_REPLAYED: Final = 4
#: Share of a time limit for measurements of stored candidates while a call waits for its plan.
_MEASURED_SHARE: Final = 0.25
#: Reason why a region stays with torch that was not searched.
_NO_SEARCH: Final = f"{STOPPED} its search"
#: Errors in the options; other errors are reasons why a region has no candidate.
_ASKED: Final = (ClusterError, RunError, SpaceError, TargetError)
_VIEWS: Final = frozenset({OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.REPEAT, OpKind.SLICE})


#: Directories of the searches of this process.
_WRITTEN: Final[set[Path]] = set()

#: Report and operator of each program, by its digest without names.
Known = dict[str, tuple[RegionReport, TorchOperator | None]]


def choose_operators(
    imported: Imported,
    asked: Mapping[str, Any],
    known: Known | None = None,
    comparison: ImportComparison | None = None,
    *,
    guard: bool = False,
    deadline: Deadline = NO_DEADLINE,
) -> tuple[dict[int, TorchOperator], ModuleReport]:
    """Return operators for the regions where a candidate is expected to be faster than torch's separate operators.

    Args:
        imported: The import.
        asked: Options of ``superoptimize``. ``time_limit`` is for all regions together: each gets the part of the time
            left that corresponds to its possible gain. ``out`` is a directory with one for each search of a region.
        known: Results for the regions of other imports, which are not searched again; those of these regions are added.
        comparison: Comparison of the regions with torch: those that differ stay with it.
        guard: Whether calls check conditions: then only candidates without further conditions than their program's are
            taken.
        deadline: Deadline of the call. Candidates are searched for nine tenths of what is left, and compared with torch
            until then. What is not compared by then is not installed.

    Returns:
        Operators by the numbers of regions, and the report on all regions.

    Raises:
        MirageError: An option is at fault.
    """
    reject_unknown_options("optimize", asked, Options.__annotations__)
    accept = parse_acceptance(asked.get("accept_kernels", "proved"))
    accepted_backend(asked.get("backend", "cuda"), accept)  # mistakes, also where no region is searched
    target = load_target(str(asked.get("target", options.Settings().target)))
    limit = parse_time_limit(asked.get("time_limit"))
    deadline = Deadline.after(now(), limit) if deadline.unlimited else deadline
    searches = Deadline(deadline.at - (1 - _SEARCHES) * (limit or 0.0))
    equal: dict[str, list[int]] = {}
    comparison = comparison or ImportComparison()
    for number, region in enumerate(imported.regions):
        apart = f" {number}" if number in comparison.faults else " stopped" if number in comparison.stopped else ""
        equal.setdefault(region.digest + apart, []).append(number)
    gains = {
        key: 0.0 if comparison.kept(same[0]) else len(same) * _gain(imported.regions[same[0]].program, target)
        for key, same in equal.items()
    }
    total = sum(gains.values()) or 1.0
    found: dict[int, TorchOperator] = {}
    reports: list[RegionReport] = []
    for key in sorted(gains, key=lambda key: -gains[key]):
        region, numbers = imported.regions[equal[key][0]], tuple(equal[key])
        report = _new_report(imported, numbers, comparison, target, guard=guard)
        gain, still = gains.pop(key), sum(gains.values())
        if numbers[0] not in comparison.faults and not _may_be_improved(region.program):
            reports.append(dataclasses.replace(report, kept="it is one operator"))
            continue
        if kept := comparison.kept(numbers[0]):
            reports.append(dataclasses.replace(report, kept=kept, cut=numbers[0] in comparison.stopped))
            continue
        share = None if limit is None else searches.left() * gain / (gain + still or 1.0)
        planned = None if limit is None else limit * gain / total
        if known is not None and key in known:
            earlier, operator = known[key]
            said, needs = report.compared, report.conditions
            report = dataclasses.replace(earlier, numbers=numbers, compared=said, conditions=needs)
        else:
            piece = RegionPiece(imported, numbers[0], deadline)
            piece.earlier = comparison.drawn.pop(numbers[0], [])
            report, operator = _search_region(piece, report, asked, (share, planned), guard=guard)
            if known is not None:
                known[key] = report, operator
        if operator is not None:
            found.update(dict.fromkeys(numbers, operator))
        reports.append(report)
    comparison.drawn.clear()
    reports.sort(key=lambda report: report.numbers)
    left, ahead = (tuple(_with_library_line(item) for item in items) for items in (imported.left, imported.ahead))
    return found, ModuleReport(tuple(reports), left, ahead)


def parse_time_limit(limit: Any) -> float | None:
    """Return the seconds of a time limit; None if there is none.

    Raises:
        SpaceError: It is no number above 0.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0):
        raise SpaceError(f"expected seconds above 0, got {limit!r}", where="time_limit")
    return limit


def _new_report(
    imported: Imported, numbers: tuple[int, ...], comparison: ImportComparison, target: Target, *, guard: bool
) -> RegionReport:
    """Return the report of regions of one program before their search."""
    region = imported.regions[numbers[0]]
    return RegionReport(
        numbers,
        region.digest,
        _describe_call(imported, region),
        estimate(region.program, target).us,
        compared="; ".join(dict.fromkeys(comparison.said(number) for number in numbers)),
        conditions=tuple(map(str, side_conditions(region.program, region.graph.origins()))),
        guarded=guard,
    )


def _search_region(
    piece: RegionPiece,
    report: RegionReport,
    asked: Mapping[str, Any],
    limits: tuple[float | None, float | None],
    *,
    guard: bool,
) -> tuple[RegionReport, TorchOperator | None]:
    """Return a region's report and operator, from an earlier search with the planned time or a new one in its share.

    Args:
        piece: The region with its torch nodes.
        report: Its report so far.
        asked: Options of ``superoptimize``.
        limits: Its share of the seconds that are left, and its planned seconds.
        guard: As for ``choose_operators``.
    """
    share, planned = limits
    if piece.deadline.passed():
        return dataclasses.replace(report, kept=_NO_SEARCH, cut=True), None
    if _device(piece) == "cuda" and torch.cuda.is_available() and not device_count():
        return dataclasses.replace(report, kept="kernels are launched with CuPy, which is not installed"), None
    own = _region_options(piece, asked)
    given: Any = dict(own, time_limit=share)
    earlier: Any = dict(own, time_limit=planned)
    if asked.get("out") is not None:
        given["out"] = _unused_directory(Path(asked["out"]) / f"region-{report.digest[:12]}")
    try:
        program = piece.region.numbered_program  # modules that differ in names share a search
        left = None if share is None else max(share, _LEAST_S)
        some = None if _is_on_gpu(piece) else _REPLAYED  # on a GPU further candidates are alternatives
        results = stored_results(program, earlier, left=left, most=some)
        if results and len(results) == some:
            chosen = _choose_operator(piece, report, results, guard=guard)
            if chosen[1] is not None or piece.deadline.passed():
                return chosen
            results = stored_results(program, earlier, left=left)
        if results is None and share is not None and share < _LEAST_S:
            return dataclasses.replace(report, kept=_NO_SEARCH, cut=True), None
        found = results or search_into_store(program, given)
    except MirageError as error:
        if isinstance(error, _ASKED):
            raise
        causes = [reason.cause for reason in error.reasons] if isinstance(error, NothingFoundError) else []
        return dataclasses.replace(report, kept=error.what, cut="time-limit" in causes), None
    return _choose_operator(piece, report, found, guard=guard)


def stored_operator(
    imported: Imported,
    numbers: tuple[int, ...],
    asked: Mapping[str, Any],
    comparison: ImportComparison,
    *,
    guard: bool = False,
) -> tuple[RegionReport, TorchOperator | None] | None:
    """Return the report and operator of regions whose whole space has been searched since; None if it has not.

    Nothing is searched. On a GPU the stored candidates are measured, within a quarter of the time limit.

    Args:
        imported: The import.
        numbers: Numbers of the regions, which have one program.
        asked: Options of ``superoptimize``.
        comparison: Comparison of the regions with torch.
        guard: As for ``choose_operators``.

    Raises:
        MirageError: The stored candidates cannot be measured.
    """
    target = load_target(str(asked.get("target", options.Settings().target)))
    piece = RegionPiece(imported, numbers[0])
    _complete_comparison(imported, numbers, comparison)
    given: Any = {**_region_options(piece, asked), "time_limit": None}
    limit = asked.get("time_limit")
    left = None if limit is None else _MEASURED_SHARE * limit
    found = stored_results(piece.region.numbered_program, given, left=left)
    if found is None:
        return None
    report = _new_report(imported, numbers, comparison, target, guard=guard)
    if kept := next(filter(None, map(comparison.kept, numbers)), ""):
        return dataclasses.replace(report, kept=kept), None
    return _choose_operator(piece, report, found, guard=guard)


def _complete_comparison(imported: Imported, numbers: Sequence[int], comparison: ImportComparison) -> None:
    """Compare regions with torch whose comparison a deadline has ended, now without one."""
    if numbers[0] not in comparison.stopped:
        return
    found = compare_with_torch(imported, comparison.values, numbers=numbers)
    for number in numbers:
        del comparison.stopped[number]
    comparison.faults.update(found.faults)
    comparison.sets.update(found.sets)
    comparison.skipped.update(found.skipped)
    if not comparison.stopped:
        comparison.values = {}


def searches_to_continue(
    imported: Imported, report: ModuleReport, asked: Mapping[str, Any]
) -> list[tuple[tuple[int, ...], KernelGraph]]:
    """Return the regions whose search its time limit has ended, with their programs, the largest possible gain first.

    Args:
        imported: The import.
        report: Report on all regions, from ``choose_operators``.
        asked: Options of ``superoptimize``.
    """
    target = load_target(str(asked.get("target", options.Settings().target)))
    cut = [(row.numbers, imported.regions[row.numbers[0]]) for row in report.regions if row.cut]
    cut.sort(key=lambda item: (-len(item[0]) * _gain(item[1].program, target), item[0]))
    return [(numbers, region.numbered_program) for numbers, region in cut]


def _region_options(piece: RegionPiece, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a region's search: GPU times are irrelevant for a module on another device."""
    return dict(asked) if _is_on_gpu(piece) else {**asked, "measure": 0}


def _choose_operator(
    piece: RegionPiece, report: RegionReport, found: Results, *, guard: bool
) -> tuple[RegionReport, TorchOperator | None]:
    """Return a region's report and operator from the results of its search."""
    report = dataclasses.replace(report, extent=found.extent if found.cut else "", cut=found.cut)
    try:
        best = choose_candidate(piece, found, report.unfused_us, guard=guard)
    except DeadlineReachedError:
        kept = f"{STOPPED} a candidate had been compared with PyTorch"
        return dataclasses.replace(report, kept=kept, cut=True), None
    if isinstance(best, str):
        return dataclasses.replace(report, kept=best), None
    limit = comparison_limit(piece, best.graph)
    report = dataclasses.replace(
        report,
        compared="; ".join(filter(None, (report.compared, limit))),
        added=best.verdict.added if isinstance(best.verdict, Equivalent) else (),
        candidate=best.digest,
        kernels=kernel_count(best.graph),
        verdict=type(best.verdict).__name__.lower(),
        estimate_us=best.cost,
        evidence=best.directory,
        backend=best.backend,
        tested_accepted=best.accepts_tested,
    )
    operator = torch_operator(best)
    if _is_on_gpu(piece):
        if piece.deadline.passed():
            return dataclasses.replace(report, kept=f"{STOPPED} its kernels were built", cut=True), None
        try:
            operator.result.prepare(torch.cuda.current_device())  # not in a call, which may be captured
        except MirageError as error:
            return dataclasses.replace(report, kept=error.what), None
    return dataclasses.replace(report, claim=operator.result.claim()), operator


def choose_candidate(
    piece: RegionPiece, results: Sequence[Result], unfused_us: float, *, guard: bool = False
) -> Result | str:
    """Return the first result that may replace a region, or the reason why there is none.

    Args:
        piece: The region with its torch nodes.
        results: Candidates, best first; at most ``_TRIALS`` of them are compared with torch.
        unfused_us: Estimated microseconds of the program's operators one by one.
        guard: As for ``choose_operators``.

    Raises:
        DeadlineReachedError: The piece's deadline has come before a candidate kept the contract.
    """
    faster = [one for one in results if one.cost < unfused_us]
    if not faster:
        return "no candidate is estimated below its operators one by one"
    allowed = [one for one in faster if not guard or _has_only_program_conditions(one)]
    if not allowed:
        return "every candidate has conditions that its program has not"
    faults: list[str] = []
    for one in allowed[:_TRIALS]:
        fault = piece.refused.get(one.graph) or candidate_fault(piece, one.graph)
        if not fault:
            return one
        piece.refused[one.graph] = fault
        faults.append(fault)
    return f"{len(faults)} candidates differ from PyTorch in their element types; the first one: {faults[0]}"


def _has_only_program_conditions(result: Result) -> bool:
    """Return whether a result is proved without conditions beyond its program's."""
    return isinstance(result.verdict, Equivalent) and not result.verdict.added


def _unused_directory(first: Path) -> Path:
    """Return a region's directory, with a number appended where this process searched the region before."""
    later = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    place = next(place for place in itertools.chain([first], later) if place not in _WRITTEN or not place.exists())
    _WRITTEN.add(place)
    return place


def _device(piece: RegionPiece) -> str:
    """Return the kind of device on which torch would compute a region."""
    values = (piece.nodes[name].meta.get("val") for name in piece.region.nodes)
    return next((str(value.device.type) for value in values if isinstance(value, torch.Tensor)), "cpu")


def _is_on_gpu(piece: RegionPiece) -> bool:
    """Return whether a region is computed on a GPU that can be used here."""
    return _device(piece) == "cuda" and device_count() > 0


def _gain(program: KernelGraph, target: Target) -> float:
    """Return the microseconds that full fusion of a program could save.

    Full fusion is one launch that reads the inputs and writes the outputs once.
    """
    return max(estimate(program, target).us - floor_us(program, target, len(program.inputs), cuts=False), 0.0)


def _may_be_improved(program: KernelGraph) -> bool:
    """Return whether a candidate can be faster than torch's separate operators.

    This needs several operators, or a product of float32, which libraries compute without tensor cores.
    """
    computing = [op for op in program.ops if isinstance(op, Op) and op.kind not in _VIEWS]
    single = any(item.tensor.dtype is DType.FLOAT32 for item in program.inputs)
    return len(computing) > 1 or (single and any(op.kind is OpKind.MATMUL for op in computing))


def _with_library_line(item: UnsupportedNode) -> UnsupportedNode:
    """Return an operator's entry with the library's line in place of this package's line that calls the library."""
    if item.where is None or not Path(item.where.path).is_relative_to(_PACKAGE):
        return item
    return dataclasses.replace(item, where=item.through, through=None)


def _describe_call(imported: Imported, region: Region) -> tuple[str, ...]:
    nodes = {node.name: node for node in imported.module.graph.nodes}
    return tuple(str(nodes[name].target).removeprefix("aten.") for name in region.nodes)


__all__ = ["choose_candidate", "choose_operators", "parse_time_limit", "searches_to_continue", "stored_operator"]

"""Plans of optimized modules for calls with dynamic shapes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import mirage_formal.torch.modules.trace as trace
from mirage_formal.torch.deadline import Deadline
from mirage_formal.torch.dynamic_shapes.bucket_search import BucketSearches, ShapesReport, host_graph
from mirage_formal.torch.dynamic_shapes.dynamic_dims import DynamicPlan, DynamicTrace, trace_dynamic
from mirage_formal.torch.dynamic_shapes.dynamic_extents import Buckets, DynamicExtent
from mirage_formal.torch.dynamic_shapes.graph_partitioning import BucketPart, divide_parts
from mirage_formal.torch.modules.function_plan import FunctionPlan, plan_module
from mirage_formal.torch.modules.graph_rewriter import rewrite


def plan_for(
    module: Any,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    asked: Mapping[str, Any],
    shapes: Any,
    rounding: str,
    deadline: Deadline,
) -> tuple[FunctionPlan | None, ShapesReport]:
    """Return a plan for a module with a program for each bucket, all searched at once.

    Args:
        module: The module.
        given: Its positional and keyword arguments.
        asked: Options of the searches; ``time_limit`` is for all of them.
        shapes: Dynamic dims; see ``mirage_formal.optimize``.
        rounding: As for ``from_torch``.
        deadline: Deadline of the call, the import included.

    Returns:
        The plan, None if torch computes all of it; and a report on each bucket.

    Raises:
        MirageError: Shapes or options are at fault, or torch.export has no graph of the module.
    """
    found = trace_dynamic(module, given, shapes)
    apart = divide_parts(found.captured, found.buckets)
    report = ShapesReport()
    searches = BucketSearches(apart, asked, report, rounding)
    operators = [searches.operator(part) for part in apart.parts]
    wanted = [
        (item, at) for part, item in zip(apart.parts, operators, strict=True) for at in _bucket_lengths(part, found)
    ]
    wanted = list(dict.fromkeys(wanted))
    for number, (item, at) in enumerate(wanted):
        if not deadline.unlimited:
            searches.share = deadline.left() / (len(wanted) - number)
        item.ready(at)
    searches.share = None
    used = [item if any(item.entries.values()) else None for item in operators]
    host = host_graph(apart, used)
    report.left = host.left
    kept = tuple(dict.fromkeys(item for item in used if item is not None))
    if not kept:
        return None, report
    imported = trace.ModuleTrace(host, found.out, found.stops)
    plan = plan_module(module, given, imported, rewrite(host, {}), kept, found.forms)
    fields: dict[str, Any] = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan) if item.init}
    fields |= {"buckets": tuple(found.buckets.items()), "without": tuple(found.without.items())}
    return DynamicPlan(**fields), report


def _bucket_lengths(part: BucketPart, found: DynamicTrace) -> list[tuple[int, ...]]:
    """Return lengths of a part that together reach every combination of buckets once."""
    symbols = list(dict.fromkeys(found.lengths.name(length.symbol) for length in part.lengths))
    own: dict[str, Buckets] = {found.lengths.name(s): where for s, where in found.buckets.items()}
    of = [_representative_values(own[symbol], [n for n in part.lengths if n.symbol == symbol]) for symbol in symbols]
    calls = []
    for values in itertools.product(*of):
        at = dict(zip(symbols, values, strict=True))
        calls.append(tuple(at[length.symbol] + length.more for length in part.lengths))
    return calls


def _representative_values(where: Buckets, lengths: list[DynamicExtent]) -> list[int]:
    """Return one value of a symbol for each combination of buckets of its lengths."""
    seen: dict[tuple[int | None, ...], int] = {}
    for value in range(max(where.lowest, 2), where.highest + 1):
        seen.setdefault(tuple(where.moved(n.more).upper(value + n.more) for n in lengths), value)
    return list(seen.values())


__all__ = ["plan_for"]

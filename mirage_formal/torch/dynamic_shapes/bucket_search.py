"""Searches for the buckets of parts, and their reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.capture import operator_name, source_lines
from mirage_formal.torch.comparison.import_comparison import compare_with_torch
from mirage_formal.torch.deadline import Deadline, now
from mirage_formal.torch.dynamic_shapes.bucket_operators import (
    BucketEntry,
    BucketOperator,
    FunctionText,
    bucket_operator,
    call_of,
    name_of,
)
from mirage_formal.torch.dynamic_shapes.graph_partitioning import BucketPart, DividedGraph
from mirage_formal.torch.dynamic_shapes.padded_graphs import BucketGraph
from mirage_formal.torch.import_result import Imported, UnsupportedNode
from mirage_formal.torch.modules.graph_rewriter import rewrite
from mirage_formal.torch.modules.module_report import ModuleReport
from mirage_formal.torch.modules.region_search import Known, choose_operators, parse_time_limit

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class BucketReport:
    """Report of one bucket of a part.

    Attributes:
        operator: The name of the part's operator.
        lengths: The largest extents of the bucket.
        report: Report of its regions; None if it could not be imported.
        kept: Reason why it could not be imported.
    """

    operator: str
    lengths: tuple[int, ...]
    report: ModuleReport | None
    kept: str = ""

    def __str__(self) -> str:
        where = ", ".join(map(str, self.lengths)) or "any"
        body = f"  stays with torch: {self.kept}" if self.report is None else str(self.report)
        return f"{self.operator}, lengths up to {where}:\n" + "\n".join(f"  {line}" for line in body.splitlines())


@dataclass(slots=True)
class ShapesReport:
    """Report of a module or graph with dynamic lengths.

    Attributes:
        buckets: The buckets that were searched, in order; more are added as calls need them.
        left: Operators that are computed at their own length, each with the reason.
    """

    buckets: list[BucketReport] = field(default_factory=list)
    left: tuple[UnsupportedNode, ...] = ()

    def __str__(self) -> str:
        rows = [str(bucket) for bucket in self.buckets] or ["no bucket"]
        if self.left:
            rows += ["computed by torch at their own length:", *(f"  {item}" for item in self.left)]
        return "\n".join(rows)


class BucketSearches:
    """Builder of the bucket functions of a graph's parts.

    Args:
        found: The graph.
        asked: Options of the searches; ``time_limit`` is for each bucket.
        report: Report to which the searched buckets are added.
        rounding: As for ``from_torch``.
    """

    def __init__(self, found: DividedGraph, asked: Mapping[str, Any], report: ShapesReport, rounding: str) -> None:
        self._found = found
        self._asked = dict(asked)
        self._rounding = rounding
        self.report = report
        self._known: Known = {}
        #: Seconds for the next bucket, where one time limit is for all buckets.
        self.share: float | None = None

    def operator(self, part: BucketPart) -> BucketOperator:
        """Return the operator of a part; equal parts share one."""
        name = name_of(part, {**self._asked, "rounding": self._rounding})
        return bucket_operator(name, call_of(part), {}, lambda uppers: self._prepared(name, part, uppers))

    def _prepared(self, name: str, part: BucketPart, uppers: tuple[int, ...]) -> BucketEntry | None:
        asked = self._asked if self.share is None else {**self._asked, "time_limit": max(self.share, 0.001)}
        try:
            bucket = part.written(self._found.lengths, dict(zip(part.lengths, uppers, strict=True)))
            found = part.imported(self._found.captured, bucket, self._rounding)
            rewrite(found, {})
        except UnsupportedError as error:
            self.report.buckets.append(BucketReport(name, uppers, None, error.what))
            return None
        deadline = Deadline.after(now(), parse_time_limit(asked.get("time_limit")))
        comparison = compare_with_torch(found, deadline=deadline)
        operators, report = choose_operators(found, asked, self._known, comparison, deadline=deadline)
        self.report.buckets.append(BucketReport(name, uppers, report))
        if not operators:
            return None
        graph = rewrite(found, {number: item.overload for number, item in operators.items()})
        feed = _feed(part, bucket, found, graph)
        return BucketEntry(FunctionText.of(graph), feed, tuple(dict.fromkeys(operators.values())))


def _feed(part: BucketPart, bucket: BucketGraph, found: Imported, graph: Graph) -> tuple[Any, ...]:
    numbers = {length: number for number, length in enumerate(part.lengths)}
    known: dict[str, Any] = {f"x{number}": number for number in range(len(part.inputs))}
    known |= {node.name: ("kept", numbers[length]) for length, node in bucket.kept.items()}
    known |= {node.name: ("part", numbers[length], dtype) for (length, dtype), node in bucket.parts.items()}
    device = part.inputs[0].meta["val"].device
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    return tuple(known[name] if name in known else found.given[name].detach().to(device) for name in names)


def host_graph(found: DividedGraph, operators: Sequence[BucketOperator | None]) -> Imported:
    """Return the graph in which operators compute parts, as an import without programs.

    Args:
        found: The graph.
        operators: For each part its operator, or None where torch computes it.
    """
    captured = found.captured
    graph = _HostGraphWriter(found, operators).run()
    module = GraphModule(torch.nn.Module(), graph)
    left = tuple(
        UnsupportedNode(node.name, operator_name(node), found.left[node.name], *source_lines(node))
        for node in captured.module.graph.nodes
        if node.name in found.left
    )
    return Imported(module, (), left, (), (), (), captured.arguments, captured.given, captured.results, captured.writes)


class _HostGraphWriter:
    def __init__(self, found: DividedGraph, operators: Sequence[BucketOperator | None]) -> None:
        self._found = found
        self._source = found.captured.module.graph
        self._graph = Graph()
        self._known: dict[Node, Node] = {}
        pairs = [(part, item) for part, item in zip(found.parts, operators, strict=True) if item is not None]
        self._made = {node: pair for pair in pairs for node in pair[0].outputs}

    def run(self) -> Graph:
        for node in self._source.nodes:
            if node.op == "placeholder":
                self._known[node] = self._graph.node_copy(node)
        (output,) = (node for node in self._source.nodes if node.op == "output")
        for node in output.all_input_nodes:
            self._compute(node)
        self._graph.output(torch.fx.map_arg(output.args[0], lambda n: self._known[n]))
        return self._graph

    def _compute(self, wanted: Node) -> None:
        """Add a node and everything that it needs to the graph; iterative, because graphs are deep."""
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in self._known:
                stack.pop()
                continue
            part = self._made[node][0] if node in self._made else None
            needed = node.all_input_nodes if part is None else [*part.inputs, *part.numbers]
            missing = [n for n in needed if n not in self._known]
            if missing:
                stack += missing
            elif part is None:
                self._known[stack.pop()] = self._graph.node_copy(node, lambda n: self._known[n])
            else:
                self._call(*self._made[stack.pop()])

    def _call(self, part: BucketPart, item: BucketOperator) -> None:
        import operator

        given = [self._known[node] for node in part.inputs]
        lengths = [self._length(part, number) for number in range(len(part.lengths))]
        numbers = [self._known[node] for node in part.numbers]
        made = self._graph.call_function(item.overload, (*given, *lengths, *numbers))
        for number, node in enumerate(part.outputs):
            single = len(part.outputs) == 1
            self._known[node] = made if single else self._graph.call_function(operator.getitem, (made, number))

    def _length(self, part: BucketPart, number: int) -> Node:
        """Return a node with the value of a length: an extent of an input, or a number."""
        length = part.lengths[number]
        for node, form in zip(part.inputs, part.forms, strict=True):
            if length in form.extents:
                args = (self._known[node], form.extents.index(length))
                return self._graph.call_function(_aten.sym_size.int, args)
        extents = self._found.lengths
        (node, *_) = (n for n in part.numbers if extents.is_length(n.meta["val"], length))
        return self._known[node]


__all__ = ["BucketReport", "BucketSearches", "ShapesReport", "host_graph"]

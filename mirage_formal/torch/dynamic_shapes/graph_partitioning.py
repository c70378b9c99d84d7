"""Partition of a torch graph with dynamic shapes into parts that can be padded, and their graphs in a bucket."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.analysis.regions import convex_parts
from mirage_formal.torch.capture import CapturedGraph
from mirage_formal.torch.convert import import_captured
from mirage_formal.torch.dynamic_shapes.dynamic_extents import (
    Buckets,
    DynamicExtent,
    DynamicExtents,
    Extent,
    dense_strides,
    size_hint,
    stride_order,
    upper_extents,
)
from mirage_formal.torch.dynamic_shapes.padded_graphs import BucketGraph, BucketTensor
from mirage_formal.torch.dynamic_shapes.padding_rules import RULES
from mirage_formal.torch.import_result import Imported
from mirage_formal.torch.op_table import rules


@dataclass(frozen=True, slots=True)
class InputForm:
    """Form of a part's input tensor.

    Attributes:
        extents: Its extents.
        order: Its dims, the outermost in memory first.
        strides: Its strides; None if it has lengths: then it is made dense.
    """

    extents: tuple[Extent, ...]
    order: tuple[int, ...]
    strides: tuple[int, ...] | None

    def at(self, uppers: Mapping[DynamicExtent, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the extents and strides of the tensor in a bucket."""
        shape = upper_extents(self.extents, uppers)
        return shape, dense_strides(shape, self.order) if self.strides is None else self.strides


@dataclass(frozen=True)
class BucketPart:
    """Operators that one torch operator replaces, with kernels for the bucket of each call.

    Attributes:
        nodes: The operators, in order.
        inputs: Nodes of the input tensors.
        numbers: Nodes of the input numbers, which depend on lengths.
        outputs: The operators whose results are read outside.
        forms: Forms of the inputs.
        results: The extents of the outputs.
        lengths: The lengths that occur.
        buckets: Buckets of the lengths.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    numbers: tuple[Node, ...]
    outputs: tuple[Node, ...]
    forms: tuple[InputForm, ...]
    results: tuple[tuple[Extent, ...], ...]
    lengths: tuple[DynamicExtent, ...]
    buckets: tuple[Buckets, ...]

    def written(self, lengths: DynamicExtents, uppers: Mapping[DynamicExtent, int]) -> BucketGraph:
        """Return the part's graph in a bucket.

        Raises:
            UnsupportedError: An operator cannot be written; which ones can does not depend on the bucket, but for
                tensors that have no more than a certain number of positions.
        """
        bucket = BucketGraph(lengths, uppers)
        for number, (node, form) in enumerate(zip(self.inputs, self.forms, strict=True)):
            bucket.given(f"x{number}", node, form.at(uppers)[1])
        for node in self.nodes:
            _write(bucket, node)
        found = [bucket.known[node.name] for node in self.outputs]
        bucket.graph.output([item.node for item in found if isinstance(item, BucketTensor)])
        return bucket

    def imported(self, captured: CapturedGraph, bucket: BucketGraph, rounding: str) -> Imported:
        """Return the import of the part's graph in a bucket."""
        arguments: dict[str, str] = {}
        given: dict[str, Any] = {}
        for number, node in enumerate(self.inputs):
            arguments[f"x{number}"] = captured.arguments.get(node.name, f"result {node.name}")
            if arguments[f"x{number}"] == "constant":
                given[f"x{number}"] = captured.given[node.name]
        arguments |= {node.name: f"kept {length}" for length, node in bucket.kept.items()}
        arguments |= {node.name: f"1 / {length}" for (length, _), node in bucket.parts.items()}
        (output,) = (node for node in bucket.graph.nodes if node.op == "output")
        results = tuple(node.name for node in output.args[0])
        module = GraphModule(torch.nn.Module(), bucket.graph)
        return import_captured(CapturedGraph(module, arguments, given, {}, results, ()), rounding)

    def example(self, lengths: DynamicExtents) -> tuple[int, ...]:
        """Return the part's lengths in the call that the graph was traced from."""
        found: dict[DynamicExtent, int] = {}
        for node, form in zip(self.inputs, self.forms, strict=True):
            for extent, number in zip(form.extents, node.meta["val"].shape, strict=True):
                if isinstance(extent, DynamicExtent):
                    found[extent] = size_hint(number)
        for node in self.numbers:
            for length in self.lengths:
                if lengths.is_length(node.meta["val"], length):
                    found[length] = size_hint(node.meta["val"])
        return tuple(found[length] for length in self.lengths)

    def text(self) -> str:
        """Return a text of the part's computation that does not depend on the names of its nodes and lengths."""
        names: dict[str, str] = {}
        for kind, nodes in (("x", self.inputs), ("n", self.numbers), ("t", self.nodes)):
            names |= {node.name: f"{kind}{number}" for number, node in enumerate(nodes)}
        symbols = {symbol: f"s{i}" for i, symbol in enumerate(dict.fromkeys(n.symbol for n in self.lengths))}

        def named(extents: Sequence[Extent]) -> list[str]:
            return [f"{symbols[n.symbol]}+{n.more}" if isinstance(n, DynamicExtent) else str(n) for n in extents]

        lines = [f"{named([n])} {where}" for n, where in zip(self.lengths, self.buckets, strict=True)]
        for node, form in zip(self.inputs, self.forms, strict=True):
            value = node.meta["val"]
            lines.append(f"{named(form.extents)} {form.order} {form.strides} {value.dtype} {value.device}")
        for node in self.nodes:
            args = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda n: _UnquotedName(names[n.name]))
            lines.append(f"{node.target} {args}")
        return "\n".join([*lines, " ".join(names[node.name] for node in self.outputs)])

    def function(self) -> Graph:
        """Return a torch graph of the part for any length; its arguments are the inputs, and then the numbers."""
        graph = Graph()
        known: dict[str, Node] = {}
        for kind, nodes in (("x", self.inputs), ("n", self.numbers)):
            known |= {node.name: graph.placeholder(f"{kind}{number}") for number, node in enumerate(nodes)}
        for node in self.nodes:
            known[node.name] = graph.node_copy(node, lambda n: known[n.name])
        graph.output([known[node.name] for node in self.outputs])
        return graph


class _UnquotedName(str):
    """A string whose repr has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class DividedGraph:
    """A torch graph with dynamic shapes, divided into parts.

    Attributes:
        captured: The graph.
        lengths: Its lengths.
        parts: The parts.
        left: Operators that are computed at their own length, each with the reason.
    """

    captured: CapturedGraph
    lengths: DynamicExtents
    parts: tuple[BucketPart, ...]
    left: Mapping[str, str]


def divide_parts(captured: CapturedGraph, buckets: Mapping[str, Buckets] | Buckets) -> DividedGraph:
    """Divide a graph into parts.

    Args:
        captured: The graph, with symbolic extents.
        buckets: Buckets of each symbol, or of every length.
    """
    return _Division(captured, buckets).run()


class _Division:
    def __init__(self, captured: CapturedGraph, buckets: Mapping[str, Buckets] | Buckets) -> None:
        self._captured = captured
        self._graph = captured.module.graph
        self._lengths = DynamicExtents(self._graph)
        self._buckets = buckets
        self._left: dict[str, str] = {}
        self._rows = rules()

    def run(self) -> DividedGraph:
        taken = self._taken()
        order = [node.name for node in self._graph.nodes if node.op == "call_function"]
        reads = {node.name: [n.name for n in node.all_input_nodes] for node in self._graph.nodes}
        nodes = {node.name: node for node in self._graph.nodes}
        found = []
        for names in convex_parts(order, reads, taken):
            if any(not self._free(nodes[name]) for name in names):
                part = self._part([nodes[name] for name in names])
                if part is not None:
                    found.append(part)
        return DividedGraph(self._captured, self._lengths, tuple(found), self._left)

    def _buckets_of(self, length: DynamicExtent) -> Buckets | None:
        if isinstance(self._buckets, Buckets):
            return self._buckets
        own = {self._lengths.name(symbol): item for symbol, item in self._buckets.items()}.get(length.symbol)
        return None if own is None else own.moved(length.more)

    def _taken(self) -> set[str]:
        """Return the operators that can be written to a bucket's graph, found by writing them."""
        uppers = _FirstBuckets(self._buckets_of)
        bucket = BucketGraph(self._lengths, uppers)
        taken: set[str] = set()
        for node in self._graph.nodes:
            if node.op == "output" or not _has_tensors(node):
                continue
            try:
                if node.op == "call_function":
                    self._numbers(node)
                    _write(bucket, node)
                    taken.add(node.name)
                    continue
            except UnsupportedError as error:
                self._left[node.name] = error.what
            try:
                if isinstance(node.meta["val"], torch.Tensor):
                    shape = upper_extents(self._lengths.of(node.meta["val"]), uppers)
                    bucket.given(node.name, node, dense_strides(shape, range(len(shape))))
            except UnsupportedError:
                continue  # what reads it is refused
        return taken

    def _numbers(self, node: Node) -> None:
        """Refuse tensors of element types that programs do not have; they stay with torch in any case."""
        values = [item.meta.get("val") for item in (node, *node.all_input_nodes)]
        for kind in {value.dtype for value in values if isinstance(value, torch.Tensor)}:
            if not (kind.is_floating_point or kind is torch.bool):
                raise UnsupportedError(f"expected floating-point numbers or booleans, got {kind}")

    def _free(self, node: Node) -> bool:
        if node.target is operator.getitem:
            return self._free(node.args[0])
        row = self._rows.get(str(node.target))
        return row is not None and row.free

    def _part(self, nodes: Sequence[Node]) -> BucketPart | None:
        inside = set(nodes)
        outputs = self._outputs(nodes, inside)
        nodes = _needed(nodes, outputs)
        read = list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in set(nodes)))
        inputs = [n for n in read if isinstance(n.meta["val"], torch.Tensor)]
        numbers = [n for n in read if n not in inputs]
        lengths: dict[DynamicExtent, None] = {}
        for node in (*inputs, *nodes):
            value = node.meta["val"]
            for tensor in value if isinstance(value, tuple | list) else [value]:
                lengths |= dict.fromkeys(n for n in self._lengths.of(tensor) if isinstance(n, DynamicExtent))
        where = [self._buckets_of(length) for length in lengths]
        found = {n for node in inputs for n in self._lengths.of(node.meta["val"])}
        missing = [length for length in lengths if length not in found]
        for node in numbers:
            missing = [length for length in missing if not self._lengths.is_length(node.meta["val"], length)]
        if not outputs or None in where or missing:
            return None
        return BucketPart(
            tuple(nodes),
            tuple(inputs),
            tuple(numbers),
            tuple(outputs),
            tuple(_form(self._lengths, node.meta["val"]) for node in inputs),
            tuple(self._lengths.of(node.meta["val"]) for node in outputs),
            tuple(lengths),
            tuple(item for item in where if item is not None),
        )

    def _outputs(self, nodes: Sequence[Node], inside: set[Node]) -> list[Node]:
        """Return the operators whose results are read outside, directly or through views that torch makes again."""
        stack = [node for node in nodes if any(user not in inside for user in node.users)]
        found: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in inside and self._free(node):
                stack += node.all_input_nodes
            elif node in inside:
                found.add(node)
        return [node for node in nodes if node in found]


class _FirstBuckets(dict[DynamicExtent, int]):
    """Mapping of each length to the largest length of its first bucket."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self._find = of

    def __missing__(self, length: DynamicExtent) -> int:
        where = self._find(length)
        if where is None:
            raise UnsupportedError(f"no buckets are given for {length}")
        return int(where.uppers()[0])


def _write(bucket: BucketGraph, node: Node) -> None:
    if node.target is operator.getitem:
        whole = bucket.known.get(node.args[0].name)
        if not isinstance(whole, tuple):
            raise UnsupportedError("a result of an operator that stays with torch")
        bucket.known[node.name] = whole[node.args[1]]
    else:
        bucket.write(node, RULES.get(str(node.target)))


def _has_tensors(node: Node) -> bool:
    value = node.meta.get("val")
    return any(isinstance(x, torch.Tensor) for x in (value if isinstance(value, tuple | list) else [value]))


def _needed(nodes: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    inside, found = set(nodes), set(outputs)
    for node in reversed(nodes):
        if node in found:
            found |= {n for n in node.all_input_nodes if n in inside}
    return [node for node in nodes if node in found]


def _form(lengths: DynamicExtents, tensor: Any) -> InputForm:
    extents, order = lengths.of(tensor), stride_order(tensor)
    known = not any(isinstance(n, DynamicExtent) for n in extents)
    return InputForm(extents, order, tuple(size_hint(s) for s in tensor.stride()) if known else None)


__all__ = ["BucketPart", "DividedGraph", "InputForm", "divide_parts"]

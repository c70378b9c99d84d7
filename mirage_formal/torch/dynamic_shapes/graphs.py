"""Dynamo graphs with dynamic extents: their parts choose a bucket in each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.capture import CapturedGraph, capture
from mirage_formal.torch.dynamic_shapes.bucket_search import BucketSearches, ShapesReport, host_graph
from mirage_formal.torch.dynamic_shapes.dynamic_extents import Buckets, size_hint
from mirage_formal.torch.dynamic_shapes.graph_partitioning import divide_parts
from mirage_formal.torch.dynamic_shapes.guards import add_guards
from mirage_formal.torch.modules.graph_rewriter import rewrite


def has_dynamic_extents(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Return whether a Dynamo graph has inputs with symbolic extents."""
    return any(
        isinstance(x, torch.SymInt)
        or (isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in (*x.shape, *x.stride())))
        for x in _symbolic_inputs(module, inputs)
    )


def _symbolic_inputs(module: GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs with Dynamo's symbolic extents; Dynamo may pass the example's tensors to a backend."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    found = [node.meta.get("example_value") for node in nodes]
    return [x if value is None else value for value, x in zip(found, inputs, strict=True)]


def insert_bucket_operators(
    module: GraphModule, inputs: Sequence[Any], asked: Mapping[str, Any], buckets: Buckets, rounding: str
) -> tuple[GraphModule | None, ShapesReport]:
    """Return a graph in which operators that choose buckets replace parts.

    A part is replaced if a candidate is found for the bucket of the lengths that the graph is compiled for. Other
    buckets are searched when a call needs them.

    Args:
        module: The graph.
        inputs: A tensor or number for each placeholder, as Dynamo gives them.
        asked: Options of the searches; ``time_limit`` is for each bucket.
        buckets: Buckets of all lengths.
        rounding: As for ``from_torch``.

    Returns:
        The graph, None if no part is replaced; and a report on the buckets, to which later ones are added.

    Raises:
        UnsupportedError: The graph reads numbers that are no extents, or torch cannot trace it.
        MirageError: An option is at fault.
    """
    found = divide_parts(_capture_dynamic(module, inputs), buckets)
    report = ShapesReport()
    searches = BucketSearches(found, asked, report, rounding)
    rewrite(host_graph(found, [None] * len(found.parts)), {})  # what cannot be rewritten is not searched
    operators = [searches.operator(part) for part in found.parts]
    used = [
        item if item.ready(part.example(found.lengths)) else None
        for part, item in zip(found.parts, operators, strict=True)
    ]
    host = host_graph(found, used)
    report.left = host.left
    if not any(used):
        return None, report
    return _module(found.captured, rewrite(host, {}), module, inputs), report


def _capture_dynamic(module: GraphModule, inputs: Sequence[Any]) -> CapturedGraph:
    """Return the graph of ATen operators, with new symbols for Dynamo's symbolic extents."""
    from torch.fx import traceback

    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    inputs = _symbolic_inputs(module, inputs)
    places = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    sources = [None if isinstance(x, torch.Tensor) else _source(x, inputs) for x in inputs]

    def run(*given: Any) -> Any:
        tensors = dict(zip(places, given, strict=True))
        full = [tensors[i] if at is None else _read(at, tensors) for i, at in enumerate(sources)]
        with traceback.preserve_node_meta():
            return Interpreter(module).run(*full)

    with FakeTensorMode(shape_env=ShapeEnv()):
        given = tuple(_example(inputs[i]) for i in places)
    wanted = torch.export.ShapesCollection()
    for i, tensor in zip(places, given, strict=True):
        dims = [d for d, n in enumerate(inputs[i].shape) if not isinstance(n, int)]
        if dims:
            wanted[tensor] = dict.fromkeys(dims, torch.export.Dim.AUTO)
    # Torch would take the extents of the graph that is compiled for those of this one, and guard on them.
    with torch._guards.tracing(None):
        found = capture(run, given, None, "torch.compile", wanted)
    names = [nodes[i].name for i in places]
    _add_guards_to_dynamo(found, inputs, places)
    labels = dict(zip((n for n, what in found.arguments.items() if what.startswith("argument")), names, strict=False))
    arguments = {n: f"argument {labels[n]}" if n in labels else what for n, what in found.arguments.items()}
    return CapturedGraph(found.module, arguments, found.given, found.same, found.results, found.writes)


def _add_guards_to_dynamo(captured: CapturedGraph, inputs: Sequence[Any], places: Sequence[int]) -> None:
    """Add the guards of a graph to Dynamo's guards."""
    nodes = [n for n in captured.module.graph.nodes if n.op == "placeholder"]
    values = [n.meta["val"] for n in nodes if captured.arguments.get(n.name, "argument").startswith("argument")]
    symbols: dict[str, Any] = {}
    environment = None
    for value, place in zip(values, places, strict=True):
        for mine, theirs in zip(value.shape, inputs[place].shape, strict=True):
            if isinstance(mine, torch.SymInt) and isinstance(theirs, torch.SymInt) and mine.node.expr.is_Symbol:
                symbols[str(mine.node.expr)] = theirs.node.expr
                environment = theirs.node.shape_env
    if environment is not None:
        add_guards(captured, symbols, environment)


def _example(tensor: Any) -> Any:
    shape, strides = [size_hint(n) for n in tensor.shape], [size_hint(n) for n in tensor.stride()]
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _source(number: Any, inputs: Sequence[Any]) -> Any:
    """Return the source of a number: an extent of an input, or a known number."""
    if not isinstance(number, torch.SymInt):
        return ("known", number)
    if number.node.expr.is_Integer:
        return ("known", int(number.node.expr))
    for i, tensor in enumerate(inputs):
        for dim, extent in enumerate(tensor.shape if isinstance(tensor, torch.Tensor) else ()):
            if isinstance(extent, torch.SymInt) and extent.node.expr == number.node.expr:
                return (i, dim)
    raise UnsupportedError(f"expected numbers that are extents of tensors, got {number}", hint="give it as a tensor")


def _read(at: Any, tensors: Mapping[int, Any]) -> Any:
    place, dim = at
    return dim if place == "known" else tensors[place].shape[dim]


def _module(captured: CapturedGraph, graph: Graph, original: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """Return the graph with its constants as a module, with the original's placeholders in its order."""
    root = torch.nn.Module()
    tensors: list[Node] = []
    for node in [node for node in graph.nodes if node.op == "placeholder"]:
        if node.name in captured.given:
            root.register_buffer(f"constant_{node.name}", captured.given[node.name].detach(), persistent=False)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(f"constant_{node.name}"))
            graph.erase_node(node)
        else:
            tensors.append(node)
    found = iter(tensors)
    first = next(iter(graph.nodes))
    names = [node.name for node in original.graph.nodes if node.op == "placeholder"]
    for name, item in zip(names, inputs, strict=True):
        with graph.inserting_before(first):
            made = graph.placeholder(name)
        if isinstance(item, torch.Tensor):
            old = next(found)
            old.replace_all_uses_with(made)
            if old is first:
                first = old.next
            graph.erase_node(old)
    graph.lint()
    return GraphModule(root, graph)


__all__ = ["has_dynamic_extents", "insert_bucket_operators"]

"""The three levels of a µGraph as nodes and edges, from which pictures, tables and links are made.

Ids of nodes name their operator: ``in0``, ``op2`` (operator of the kernel graph), ``op2.it0`` (input iterator),
``op2.op5`` (operator of the block graph), ``op2.sv0`` (output saver), ``op2.op5.op1`` (operator of a thread graph),
``out0``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    ThreadDefined,
    enumerate_results,
)
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.storage_views import launched_operators
from mirage_formal.graph.types import DTensor, RTensor, Shape, STensor, row_major
from mirage_formal.graph.verifier import block_types, kernel_types, thread_types

Kind = Literal["input", "op", "view", "kernel", "iterator", "thread", "saver", "output"]


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as it is shown.

    Attributes:
        number: Number in its own graph.
        name: Name, as d3, s5 or r1, or an input's name.
        shape: Shape in words.
        dtype: Element type.
        bytes: Its bytes; inside a block, of one block's copy.
        about: Layout, stage and place in words.
        expression: Its abstract expression, where the evidence has one.
    """

    number: int
    name: str
    shape: str
    dtype: str
    bytes: int
    about: str = ""
    expression: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a level.

    Attributes:
        id: Id of its operator, see the module.
        kind: Kind of the node.
        label: Text in the node.
        results: Tensors that it makes.
        attributes: Names and values, as the text of a µGraph has them.
        words: Description in sentences.
        inner: The level inside.
    """

    id: str
    kind: Kind
    label: str
    results: tuple[TensorView, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    inner: LevelView | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """Edge from the producer of a tensor to one of its readers.

    Attributes:
        source, target: Ids of nodes.
        tensor: Number in the level's graph.
        slot: Number of the operand of the target.
        label: The map by which its target reads it, short; empty where there is none.
        origin: The map by which its source wrote it, likewise.
        words: The map in sentences.
        maps: The map as the text of a µGraph has it.
    """

    source: str
    target: str
    tensor: int
    slot: int
    label: str = ""
    origin: str = ""
    words: tuple[str, ...] = ()
    maps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LevelView:
    """Level of a µGraph: one graph as nodes and edges.

    Attributes:
        kind: kernel, block or thread.
        attributes: Of a block graph: grid, block, forloop_range, reduction_dimx.
        nodes, edges: In the order of the graph.
    """

    kind: Literal["kernel", "block", "thread"]
    attributes: tuple[tuple[str, str], ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def levels(graph: KernelGraph, expressions: Mapping[str, str] | None = None) -> LevelView:
    """Return the kernel level of a well-formed graph, with the block and thread levels inside.

    Args:
        graph: The graph.
        expressions: Abstract expressions, by the names of records' certificates: k3, b2.5.

    Raises:
        GraphError: The graph is not well-formed.
    """
    types = kernel_types(graph)
    known = expressions or {}
    own = set(launched_operators(graph))
    nodes: list[Node] = []
    edges: list[Edge] = []
    made: dict[int, str] = {}
    for number, one in enumerate(graph.inputs):
        about = layout_text(one.tensor.shape, one.strides)
        shown = _device(number, types[number], known, about, one.name)
        strides = () if one.strides == row_major(one.tensor.shape) else (("strides", format_value(one.strides)),)
        nodes.append(Node(f"in{number}", "input", one.name, (shown,), strides))
        made[number] = f"in{number}"
    for index, (first, op) in enumerate(enumerate_results(len(graph.inputs), graph.ops)):
        name = f"op{index}"
        results = tuple(_device(n, types[n], known, "row-major") for n in range(first, first + op.results))
        if isinstance(op, Op):
            kind: Kind = "op" if index in own else "view"
            told: tuple[str, ...] = (
                () if index in own else ("no kernel is launched: its result lies where its operand lies",)
            )
            nodes.append(Node(name, kind, op.kind.value, results, attribute_values(op.attrs), told))
            edges += [Edge(made[n], name, n, slot) for slot, n in enumerate(op.operands)]
        else:
            operands = tuple(types[n] for n in op.operands)
            near = tuple(_tensor_name(graph, n) for n in op.operands)
            below = {key.partition(".")[2]: text for key, text in known.items() if key.startswith(f"b{index}.")}
            inner = _block(op.graph, operands, near, (name, tuple(sorted(below.items()))))
            nodes.append(
                Node(name, "kernel", f"kernel {index}", results, inner.attributes, _describe_sizes(op.graph), inner)
            )
            for slot, (n, how) in enumerate(zip(op.operands, op.graph.inputs, strict=True)):
                maps = (("imap", format_value(how.imap)), ("fmap", format_value(how.fmap)))
                told = describe_reads(how, op.graph, near[slot], operands[slot])
                edges.append(Edge(made[n], name, n, slot, read_map(how), "", told, maps))
        made |= dict.fromkeys(range(first, first + op.results), name)
    savers = _savers(graph)
    for number, n in enumerate(graph.outputs):
        nodes.append(Node(f"out{number}", "output", f"output {number}"))
        edges.append(Edge(made[n], f"out{number}", n, 0))
    edges = [_add_write_map(edge, savers) for edge in edges]
    return LevelView("kernel", (), tuple(nodes), tuple(edges))


def _savers(graph: KernelGraph) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return the omap of each result of a block graph, short and in sentences."""
    return {
        first + n: (write_map(saver), describe_writes(saver, op.graph))
        for first, op in enumerate_results(len(graph.inputs), graph.ops)
        if isinstance(op, GraphDefined)
        for n, saver in enumerate(op.graph.outputs)
    }


def _add_write_map(edge: Edge, savers: Mapping[int, tuple[str, tuple[str, ...]]]) -> Edge:
    """Return an edge with the omap by which blocks wrote its tensor."""
    if edge.tensor not in savers:
        return edge
    short, told = savers[edge.tensor]
    return replace(edge, origin=short, words=(*(f"written: {text}" for text in told), *edge.words))


def _tensor_name(graph: KernelGraph, number: int) -> str:
    return graph.inputs[number].name if number < len(graph.inputs) else f"d{number}"


def _device(number: int, tensor: DTensor, known: Mapping[str, str], about: str, name: str = "") -> TensorView:
    shape, dtype = shape_text(tensor.shape), tensor.dtype.value
    return TensorView(number, name or f"d{number}", shape, dtype, tensor.bytes, about, known.get(f"k{number}", ""))


def _describe_sizes(block: BlockGraph) -> tuple[str, ...]:
    grid = " × ".join(map(str, block.grid))
    loop = f"a loop of {block.forloop_range} iterations" if block.forloop_range > 1 else "no loop"
    return (f"grid of {grid} blocks ({block.blocks} in all), {block.threads} threads each, {loop}",)


@lru_cache(maxsize=1 << 12)  # candidates of one program have many kernels in common
def _block(
    block: BlockGraph,
    operands: tuple[DTensor, ...],
    near: tuple[str, ...],
    named: tuple[str, tuple[tuple[str, str], ...]],
) -> LevelView:
    types = block_types(block, operands)
    name, known = named[0], dict(named[1])
    nodes: list[Node] = []
    edges: list[Edge] = []
    made: dict[int, str] = {}
    for number, how in enumerate(block.inputs):
        maps = (("imap", format_value(how.imap)), ("fmap", format_value(how.fmap)))
        told = describe_reads(how, block, near[number], operands[number])
        label = f"{near[number]} {read_map(how)}"
        node = Node(f"{name}.it{number}", "iterator", label, (_shared(number, types[number], known),), maps, told)
        nodes.append(node)
        made[number] = node.id
    for index, (first, op) in enumerate(enumerate_results(len(block.inputs), block.ops)):
        here = f"{name}.op{index}"
        results = tuple(_shared(n, types[n], known) for n in range(first, first + op.results))
        if isinstance(op, Op):
            nodes.append(Node(here, "op", op.kind.value, results, attribute_values(op.attrs)))
        else:
            label = " ".join(one.kind.value for one in op.graph.ops)
            inner = _thread(op, tuple(types[n] for n in op.operands), here)
            told = ("elementwise operators in registers: their values between are never stored",)
            nodes.append(Node(here, "thread", label, results, (), told, inner))
        edges += [Edge(made[n], here, n, slot) for slot, n in enumerate(op.operands)]
        made |= dict.fromkeys(range(first, first + op.results), here)
    for number, saver in enumerate(block.outputs):
        here = f"{name}.sv{number}"
        wrote = (("omap", format_value(saver.omap)),)
        nodes.append(Node(here, "saver", f"save {write_map(saver)}", (), wrote, describe_writes(saver, block)))
        edges.append(Edge(made[saver.operand], here, saver.operand, 0))
    return LevelView("block", _geometry(block), tuple(nodes), tuple(edges))


def _geometry(block: BlockGraph) -> tuple[tuple[str, str], ...]:
    names = ("grid", "block", "forloop_range", "reduction_dimx")
    return tuple((name, format_value(getattr(block, name))) for name in names)


def _shared(number: int, tensor: STensor, known: Mapping[str, str]) -> TensorView:
    about = "behind the loop" if tensor.after_loop else "inside the loop"
    shape, dtype = shape_text(tensor.shape), tensor.dtype.value
    return TensorView(number, f"s{number}", shape, dtype, tensor.bytes, about, known.get(str(number), ""))


def _thread(op: ThreadDefined, operands: Sequence[STensor], name: str) -> LevelView:
    graph = op.graph
    types = thread_types(graph, tuple(operands))
    nodes: list[Node] = []
    edges: list[Edge] = []
    made: dict[int, str] = {}
    for number in range(graph.inputs):
        nodes.append(
            Node(f"{name}.in{number}", "input", f"s{op.operands[number]}", (_register(number, types[number]),))
        )
        made[number] = nodes[-1].id
    for index, (first, one) in enumerate(enumerate_results(graph.inputs, graph.ops)):
        here = f"{name}.op{index}"
        nodes.append(Node(here, "op", one.kind.value, (_register(first, types[first]),), attribute_values(one.attrs)))
        edges += [Edge(made[n], here, n, slot) for slot, n in enumerate(one.operands)]
        made |= dict.fromkeys(range(first, first + one.results), here)
    for number, n in enumerate(graph.outputs):
        nodes.append(Node(f"{name}.out{number}", "output", f"output {number}"))
        edges.append(Edge(made[n], f"{name}.out{number}", n, 0))
    return LevelView("thread", (), tuple(nodes), tuple(edges))


def _register(number: int, tensor: RTensor) -> TensorView:
    count = 1
    for extent in tensor.shape:
        count *= extent
    return TensorView(
        number, f"r{number}", shape_text(tensor.shape), tensor.dtype.value, count * tensor.dtype.bytes, "in registers"
    )


def all_nodes(level: LevelView) -> Iterable[Node]:
    """Yield the nodes of a level and of all levels inside."""
    for node in level.nodes:
        yield node
        if node.inner is not None:
            yield from all_nodes(node.inner)


@dataclass(frozen=True, slots=True)
class Slabs:
    """The parts of tensors that the blocks of a kernel read and write.

    Attributes:
        figures: JSON text from which the page's script draws the part of a chosen block and iteration.
        rows: Name, "read" or "written", and index ranges of each part of the first block in its first iteration.
    """

    figures: str
    rows: tuple[tuple[str, str, str], ...]


def first_slabs(kernel: Node, graph: KernelGraph) -> Slabs:
    """Return the parts of tensors that a kernel of a well-formed graph reads and writes."""
    number = int(kernel.id.removeprefix("op"))
    op, types = graph.ops[number], kernel_types(graph)
    assert isinstance(op, GraphDefined)
    first = len(graph.inputs) + sum(one.results for one in graph.ops[:number])
    block = op.graph
    found = [(n, (*how.imap, how.fmap), False) for n, how in zip(op.operands, block.inputs, strict=True)]
    found += [(first + n, (*saver.omap, None), True) for n, saver in enumerate(block.outputs)]
    tensors = [
        {"name": _tensor_name(graph, n), "shape": types[n].shape, "cut": cut, "writes": writes}
        for n, cut, writes in found
    ]
    figures = json.dumps({"grid": block.grid, "loop": block.forloop_range, "tensors": tensors})
    extents = (*block.grid, block.forloop_range)
    rows = (
        (_tensor_name(graph, n), "written" if writes else "read", _ranges(types[n].shape, cut, extents))
        for n, cut, writes in found
    )
    return Slabs(figures, tuple(rows))


def _ranges(shape: Shape, cut: Sequence[int | None], extents: Sequence[int]) -> str:
    """Return the index ranges of the first tile of a tensor."""
    left = list(shape)
    for dim, extent in zip(cut, extents, strict=True):
        if dim is not None:
            left[dim] //= extent
    return f"[{', '.join(f'0..{extent - 1}' if extent > 1 else '0' for extent in left)}]"


# --- words -----------------------------------------------------------------------------------------------------------


_AXES: Final = "xyz"


def shape_text(extents: Shape) -> str:
    """Return a shape as text, as in 16 × 64."""
    return " × ".join(map(str, extents)) if extents else "scalar"


def size_text(count: int) -> str:
    """Format bytes in the largest readable unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"


def layout_text(extents: Shape, strides: tuple[int, ...]) -> str:
    """Describe the memory layout of a tensor."""
    if strides == row_major(extents):
        return "row-major"
    return f"strides {', '.join(map(str, strides))}"


def format_value(given: object) -> str:
    """Return the value of an attribute as in the text of a µGraph."""
    if isinstance(given, tuple):
        return "[" + ",".join("-" if item is None else str(item) for item in given) + "]"
    if isinstance(given, Fraction):
        return str(given)
    return "-" if given is None else str(given)


def attribute_values(attrs: Attrs) -> tuple[tuple[str, str], ...]:
    """Return the set attributes of an operator."""
    found = ((field.name, getattr(attrs, field.name)) for field in fields(attrs))
    return tuple((name, format_value(given)) for name, given in found if given is not None)


def describe_reads(how: InputIterator, block: BlockGraph, name: str, tensor: DTensor) -> tuple[str, ...]:
    """Return sentences that describe imap and fmap of an input iterator."""
    left, out = list(tensor.shape), []
    for axis, extent, dim in zip(_AXES, block.grid, how.imap, strict=True):
        if dim is None:
            if extent > 1:
                out.append(f"grid axis {axis}: all {extent} blocks along it read the same part of {name}")
        elif dim < len(left):
            was, left[dim] = left[dim], left[dim] // extent
            out.append(f"grid axis {axis} cuts dim {dim} of {name} ({was}) in {extent} slabs of {left[dim]}")
    if how.fmap is None:
        if block.forloop_range > 1:
            out.append(f"all {block.forloop_range} iterations of the loop read the same tile")
    elif how.fmap < len(left):
        was = left[how.fmap]
        count = block.forloop_range
        out.append(f"the loop cuts dim {how.fmap} of a slab ({was}) in {count} tiles of {was // count}")
    return tuple(out) or (f"the only block reads all of {name}",)


def describe_writes(how: OutputSaver, block: BlockGraph) -> tuple[str, ...]:
    """Return sentences that describe omap of an output saver."""
    out = [
        f"grid axis {axis}: results of its {extent} blocks lie side by side along dim {dim}"
        for axis, extent, dim in zip(_AXES, block.grid, how.omap, strict=True)
        if dim is not None
    ]
    return tuple(out) or ("the only block writes all of it",)


def read_map(how: InputIterator) -> str:
    """Return imap and fmap in short form, as in x→0 loop→1."""
    parts = [f"{axis}→{dim}" for axis, dim in zip(_AXES, how.imap, strict=True) if dim is not None]
    parts += [f"loop→{how.fmap}"] if how.fmap is not None else []
    return " ".join(parts) or "whole"


def write_map(how: OutputSaver) -> str:
    """Return omap in short form, as in 0←x."""
    return " ".join(f"{dim}←{axis}" for axis, dim in zip(_AXES, how.omap, strict=True) if dim is not None) or "whole"

"""Export of µGraphs to Graphviz: a node for each operator, a box for each graph-defined kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, ThreadDefined, enumerate_results
from mirage_formal.graph.types import DimMap, DTensor, Shape
from mirage_formal.graph.verifier import block_types, kernel_types


def to_dot(graph: KernelGraph) -> str:
    """Return a graph in Graphviz's language, for ``dot -Tpng``.

    Args:
        graph: A well-formed graph.

    Returns:
        The text of a directed graph, whose edges lead from operands to operators.

    Raises:
        GraphError: The graph is not well-formed.
    """
    types = kernel_types(graph)
    lines = ["digraph mugraph {", "  rankdir=TB;", "  node [shape=box, fontname=monospace];"]
    #: The node that defines each tensor.
    made = {n: f"d{n}" for n in range(len(graph.inputs))}
    for n, item in enumerate(graph.inputs):
        lines.append(_node(made[n], f"{item.name}\n{item.tensor.dtype.value} {_dims(item.tensor.shape)}", "ellipse"))
    for first, op in enumerate_results(len(graph.inputs), graph.ops):
        if isinstance(op, GraphDefined):
            lines += _kernel(op, first, [types[n] for n in op.operands])
            for n, (operand, number) in enumerate(zip(op.operands, range(len(op.operands)), strict=True)):
                lines.append(f"  {made[operand]} -> k{first}_s{n} [label={_quote(_split(op.graph, number))}];")
            made |= {first + n: f"k{first}_out{n}" for n in range(op.results)}
            continue
        name = f"d{first}"
        lines.append(_node(name, f"{op.kind.value}\n{_dims(types[first].shape)}"))
        lines += [f"  {made[n]} -> {name};" for n in op.operands]
        made |= {first + n: name for n in range(op.results)}
    for n, number in enumerate(graph.outputs):
        lines.append(_node(f"output{n}", f"output {n}\n{_dims(types[number].shape)}", "ellipse"))
        lines.append(f"  {made[number]} -> output{n};")
    return "\n".join([*lines, "}"]) + "\n"


def _kernel(op: GraphDefined, first: int, operands: Sequence[DTensor]) -> Iterator[str]:
    """Yield the lines of a block graph's box."""
    block = op.graph
    types = block_types(block, tuple(operands))
    grid = "x".join(map(str, block.grid))
    about = f"grid {grid}, {block.threads} threads, loop {block.forloop_range}"
    yield f"  subgraph cluster_{first} {{"
    yield f"    label={_quote(about)};"
    made = {n: f"k{first}_s{n}" for n in range(len(block.inputs))}
    for n in range(len(block.inputs)):
        yield "  " + _node(made[n], f"tile {_dims(types[n].shape)}", "ellipse")
    for number, inner in enumerate_results(len(block.inputs), block.ops):
        name = f"k{first}_s{number}"
        if isinstance(inner, ThreadDefined):
            what = " ".join(one.kind.value for one in inner.graph.ops)
        else:
            what = inner.kind.value
        yield "  " + _node(name, f"{what}\n{_dims(types[number].shape)}")
        yield from (f"    {made[n]} -> {name};" for n in inner.operands)
        made |= {number + n: name for n in range(inner.results)}
    for n, saver in enumerate(block.outputs):
        yield "  " + _node(f"k{first}_out{n}", f"save {_map(saver.omap)}", "ellipse")
        yield f"    {made[saver.operand]} -> k{first}_out{n};"
    yield "  }"


def _split(block: BlockGraph, number: int) -> str:
    """Return the label of an input iterator: the dims that its imap and the loop split."""
    iterator = block.inputs[number]
    loop = "" if iterator.fmap is None else f", loop over dim {iterator.fmap}"
    return f"{_map(iterator.imap)}{loop}"


def _map(dims: DimMap) -> str:
    """Return a map as text such as ``x: dim 0``, for each axis that has a dim."""
    return ", ".join(f"{axis}: dim {dim}" for axis, dim in zip("xyz", dims, strict=True) if dim is not None) or "whole"


def _dims(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def _node(name: str, label: str, shape: str = "") -> str:
    return f"  {name} [label={_quote(label)}{f', shape={shape}' if shape else ''}];"


def _quote(text: str) -> str:
    """Return a quoted string of Graphviz; names of inputs are identifiers, so nothing else needs escaping."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

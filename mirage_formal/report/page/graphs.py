"""Page section on a µGraph: the kernel level, the block and thread graphs of each kernel, tiles, and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.report.drawing.svg import level_svg
from mirage_formal.report.page.markup import Markup, details, element, escape_lines, escape_text, join_contents, table
from mirage_formal.report.views import words
from mirage_formal.report.views.levels import Level, Node, all_nodes, levels


def graph_section(graph: KernelGraph, name: str, expressions: Mapping[str, str]) -> Markup:
    """Return the section of a page on one graph.

    Args:
        graph: A well-formed graph.
        name: "program" or "candidate"; links from proofs use it.
        expressions: Abstract expressions of its tensors.
    """
    level = levels(graph, expressions)
    kernels = [node for node in level.nodes if node.inner is not None]
    opened = [_kernel(node, graph) for node in kernels]
    hint = "Press a kernel to see its block graph. " if kernels else ""
    parts = [
        element("p", {"class": "hint"}, f"{hint}Hover or focus a node or an edge to read what it does."),
        element("div", {"class": "draw", "tabindex": "0", "role": "group", "aria-label": f"{name}, kernel graph"},
                Markup(level_svg(level, f"{name}: kernel graph with {len(level.nodes)} nodes"))),
        element("output", {"class": "about js-only", "aria-live": "polite"}, "Nothing is chosen."),
        *opened,
        details("The same as a table", _table(level, name)),
        details("The same as text", element("pre", {"class": "text", "tabindex": "0"}, escape_lines(to_text(graph)))),
    ]  # fmt: skip
    return element("div", {"class": "graph", "data-graph": name}, *parts)


def _kernel(node: Node, graph: KernelGraph) -> Markup:
    """Return the details of a kernel: description, block graph, thread graphs and tiles."""
    assert node.inner is not None
    number = int(node.id.removeprefix("op"))
    op = graph.ops[number]
    assert isinstance(op, GraphDefined)
    threads = [
        details(
            f"Thread graph of {inner.label}",
            element("p", None, *inner.words),
            _drawn(inner.inner, f"thread graph of {inner.label}"),
            attributes={"class": "level thread", "data-opens": inner.id},
        )
        for inner in node.inner.nodes
        if inner.inner is not None
    ]
    summary = f"{node.label}: {node.words[0]}"
    return details(
        summary,
        _maps(node.inner),
        _drawn(node.inner, f"block graph of {node.label}"),
        *threads,
        _slabs(op, graph),
        attributes={"class": "level kernel", "data-opens": node.id},
    )


def _drawn(level: Level, title: str) -> Markup:
    about: dict[str, object] = {"class": "draw", "tabindex": "0", "role": "group", "aria-label": title}
    return element("div", about, Markup(level_svg(level, title)))


def _maps(level: Level) -> Markup:
    """Return the list of sentences on what the iterators and savers of a level read and write."""
    rows = [
        element("li", None, element("strong", None, node.label), ": ", "; ".join(node.words))
        for node in level.nodes
        if node.kind in ("iterator", "saver")
    ]
    return element("ul", {"class": "maps"}, *rows)


def _slabs(op: GraphDefined, graph: KernelGraph) -> Markup:
    """Return the figures from which the page's script draws what a chosen block and iteration reads and writes."""
    types = kernel_types(graph)
    first = len(graph.inputs)
    for one in graph.ops:
        if one is op:
            break
        first += one.results
    block = op.graph
    tensors = [
        {"name": _called(graph, n), "shape": types[n].shape, "cut": [*how.imap, how.fmap], "writes": False}
        for n, how in zip(op.operands, block.inputs, strict=True)
    ]
    tensors += [
        {"name": f"d{first + n}", "shape": types[first + n].shape, "cut": [*saver.omap, None], "writes": True}
        for n, saver in enumerate(block.outputs)
    ]
    given = json.dumps({"grid": block.grid, "loop": block.forloop_range, "tensors": tensors})
    fixed: list[tuple[str, str, str]] = [
        (
            str(one["name"]),
            "written" if one["writes"] else "read",
            _slab(one["shape"], one["cut"], (*block.grid, block.forloop_range)),
        )
        for one in tensors
    ]
    return element(
        "div",
        {"class": "slabs", "data-slabs": given},
        element("h5", None, "What one block reads and writes"),
        element("div", {"class": "controls js-only"}, None),
        element("div", {"class": "sheets js-only"}, None),
        element("output", {"class": "said js-only", "aria-live": "polite"}, None),
        details("Block (0, 0, 0), first iteration, as a table",
                table("Block (0, 0, 0) in its first iteration", ("tensor", "is", "elements"), fixed)),
    )  # fmt: skip


def _called(graph: KernelGraph, number: int) -> str:
    return graph.inputs[number].name if number < len(graph.inputs) else f"d{number}"


def _slab(shape: object, cut: object, extents: tuple[int, ...]) -> str:
    """Return the index ranges of the first block tile of a tensor."""
    left = list(shape) if isinstance(shape, tuple) else []
    for axis, dim in enumerate(cut if isinstance(cut, list) else []):
        if dim is not None:
            left[dim] //= extents[axis]
    return f"[{', '.join(f'0..{extent - 1}' if extent > 1 else '0' for extent in left)}]"


def _table(level: Level, name: str) -> Markup:
    rows = []
    for node in all_nodes(level):
        for one in node.results or (None,):
            shown = (
                (one.name, f"{one.dtype} {one.shape}", words.size(one.bytes), one.about) if one else ("", "", "", "")
            )
            given = " ".join(f"{key}={value}" for key, value in node.attributes)
            told = join_contents(map(escape_text, node.words), "; ")
            rows.append((node.id, node.label, given, *shown, told, one.expression if one else ""))
    head = ("node", "operator", "attributes", "result", "type", "bytes", "lies", "does", "abstract expression")
    return table(f"Operators and tensors of the {name}", head, rows)

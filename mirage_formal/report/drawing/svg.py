"""SVG pictures of µGraphs.

Every node and edge has its graph element in ``data-`` attributes, from which the graph can be reconstructed: a test
does so, and compares. ``<title>`` has the same in words, which browsers show on hover.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.report.drawing.layered_layout import DrawingLayout, Size, assign_layers
from mirage_formal.report.drawing.levels import Edge, LevelView, Node, levels
from mirage_formal.support.terminal import escape_line

_LINE: Final = 15.0
_PAD: Final = 8.0
_HEADER: Final = 44.0
#: Width of a character in points: of labels, of figures, and of maps on edges.
_LABEL: Final = 7.8
_FIGURES: Final = 6.5
_MAP: Final = 6.4
_LEAST: Final = 74.0
_LONGEST: Final = 44

#: Style of pictures outside of a page, equal to the page's style sheet.
STYLE: Final = """
.mu{font-family:ui-sans-serif,system-ui,sans-serif;font-size:12.5px;--ink:#1b2430;--soft:#536072;--line:#7b8a9c;
--paper:#fff;--in:#e8f1fb;--in-line:#3a78b5;--op:#f7f8fa;--op-line:#8b98a8;--kernel:#fdf3e1;--kernel-line:#b9770e;
--thread:#f3ebfa;--thread-line:#7d4bb0;--out:#e6f5ea;--out-line:#2d8650}
@media (prefers-color-scheme:dark){.mu{--ink:#e6eaf0;--soft:#aab4c2;--line:#74839a;--paper:#12161c;--in:#16283a;
--in-line:#5b9bd8;--op:#1d232c;--op-line:#6b7a8d;--kernel:#332712;--kernel-line:#d79a3c;--thread:#2a1f38;
--thread-line:#a97bdc;--out:#14301f;--out-line:#4caf73}}
"""
SHAPES: Final = """
.mu text{fill:var(--ink)}.mu .f{fill:var(--soft);font:11px ui-monospace,Menlo,Consolas,monospace}
.mu .m{fill:var(--soft);font-size:10.5px}
.mu>g>.m{paint-order:stroke;stroke:var(--paper);stroke-width:3px}.mu .h{font-weight:600}
.mu .n>rect{fill:var(--op);stroke:var(--op-line);stroke-width:1.2}
.mu .e path{fill:none;stroke:var(--line);stroke-width:1.3}
.mu .e path.a{fill:var(--line);stroke:none}
.mu .n-input>rect,.mu .n-iterator>rect{fill:var(--in);stroke:var(--in-line)}
.mu .n-kernel>rect{fill:var(--kernel);stroke:var(--kernel-line)}
.mu .n-thread>rect{fill:var(--thread);stroke:var(--thread-line)}
.mu .n-output>rect,.mu .n-saver>rect{fill:var(--out);stroke:var(--out-line)}
.mu .n-view>rect{stroke-dasharray:4 3}
""".strip()
_TITLES: Final = re.compile("<title>.*?</title>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Picture:
    """A fragment of SVG, and its size."""

    text: str
    size: Size


def graph_svg(graph: KernelGraph, *, opened: bool = True, told: bool = True, title: str = "µGraph") -> str:
    """Return a well-formed graph as an SVG document of its own, with its style.

    Args:
        graph: The graph.
        opened: Whether kernels and thread graphs are drawn with their contents.
        told: Whether nodes and edges have descriptions for hover.
        title: Title of the picture.

    Raises:
        GraphError: The graph is not well-formed.
    """
    made = _picture(levels(graph), opened)
    text = made.text if told else _TITLES.sub("", made.text)
    return _document(Picture(text, made.size), title, f"<style>{STYLE.strip()}{SHAPES}</style>")


def level_svg(level: LevelView, title: str, *, opened: bool = False) -> str:
    """Return one level as an SVG element of a page; inner levels are drawn elsewhere, unless ``opened``."""
    return _document(_picture(level, opened), title, "")


def _document(made: Picture, title: str, style: str) -> str:
    width, height = made.size
    named = escape(escape_line(title, 200))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="mu" role="img" aria-label="{named}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">{style}{made.text}</svg>'
    )


@lru_cache(maxsize=1 << 12)  # candidates of one program have many kernels in common
def _picture(level: LevelView, opened: bool) -> Picture:
    inside = {n: _picture(node.inner, opened) for n, node in enumerate(level.nodes) if opened and node.inner}
    room = {} if opened else _label_widths(level)
    sizes = tuple(_size(node, inside.get(n), room.get(node.id, 0.0)) for n, node in enumerate(level.nodes))
    numbers = {node.id: n for n, node in enumerate(level.nodes)}
    layout = assign_layers(sizes, tuple((numbers[edge.source], numbers[edge.target]) for edge in level.edges))
    parts = [_edge(edge, layout, n) for n, edge in enumerate(level.edges)]
    for n, node in enumerate(level.nodes):
        parts.append(_node(node, layout.nodes[n], sizes[n], inside.get(n)))
    labels = [] if opened else [_edge_labels(edge, layout.edges[n]) for n, edge in enumerate(level.edges)]
    about = _data("level", level.kind) + _data("attributes", json.dumps(level.attributes))
    return Picture(f"<g{about}>{''.join(parts)}{''.join(labels)}</g>", _size_with_labels(layout, level))


def _label_widths(level: LevelView) -> dict[str, float]:
    """Return the width of each node at which the labels of its edges fit side by side."""
    room: dict[str, list[float]] = {}
    for edge in level.edges:
        for end, label in ((f"{edge.target}<", edge.label), (f"{edge.source}>", edge.origin)):
            if label:
                room.setdefault(end, []).append(len(label) * _MAP + 16)
    out: dict[str, float] = {}
    for end, widths in room.items():
        out[end[:-1]] = max(out.get(end[:-1], 0.0), max(widths) * (len(widths) + 1))
    return out


def _size_with_labels(layout: DrawingLayout, level: LevelView) -> Size:
    """Return the size of a drawing with room for edge labels at the right."""
    right = layout.size[0]
    for edge, points in zip(level.edges, layout.edges, strict=True):
        for label, (x, _) in ((edge.label, points[-1]), (edge.origin, points[0])):
            right = max(right, x + 8 + len(label) * _MAP)
    return right, layout.size[1]


def _lines(node: Node) -> list[tuple[str, str]]:
    """Return the lines of text in a node, each with its CSS class."""
    label = escape_line(node.label, _LONGEST)
    out = [("h", label)]
    if node.kind == "kernel":
        given = dict(node.attributes)
        out.append(("f", f"grid {given['grid'][1:-1].replace(',', '×')}  loop {given['forloop_range']}"))
    elif node.kind in ("op", "view"):
        shown = " ".join(f"{name}={value}" for name, value in node.attributes)
        out += [("m", escape_line(shown, _LONGEST))] if shown else []
    if node.kind == "kernel" and len(node.results) > 1:
        return out + [("f", f"{one.name} {one.shape}") for one in node.results[:4]]
    return out + [("f", one.shape) for one in node.results[:4]]


def _size(node: Node, inside: Picture | None, room: float) -> Size:
    shown = _lines(node)
    widths = [len(text) * (_LABEL if kind == "h" else _FIGURES) for kind, text in shown]
    width, height = max(_LEAST, room, max(widths) + 2 * _PAD), len(shown) * _LINE + 2 * _PAD - 3
    if inside is None:
        return width, height
    return max(width, inside.size[0] + 8), inside.size[1] + _HEADER + 4


def _node(node: Node, corner: tuple[float, float], size: Size, inside: Picture | None) -> str:
    (x, y), (width, height) = corner, size
    data = _data("node", node.id) + _data("kind", node.kind) + _data("label", node.label)
    data += _data("attributes", json.dumps(node.attributes))
    if node.results:
        data += _data("first", str(node.results[0].number)) + _data("results", str(len(node.results)))
        data += _data("shape", node.results[0].shape) + _data("dtype", node.results[0].dtype)
    round_ = 14 if node.kind in ("input", "output", "iterator", "saver") else 5
    parts = [f'<g class="n n-{node.kind}"{data} transform="translate({x:.1f},{y:.1f})">']
    parts.append(f"<title>{escape(_describe_node(node))}</title>")
    parts.append(f'<rect width="{width:.1f}" height="{height:.1f}" rx="{round_}"/>')
    if inside is None:
        for at, (kind, text) in enumerate(_lines(node)):
            where = f'x="{width / 2:.1f}" y="{_PAD + 10 + at * _LINE:.1f}" text-anchor="middle"'
            parts.append(f'<text class="{kind}" {where}>{escape(text)}</text>')
    else:
        (_, label), *rest = _lines(node)
        parts.append(f'<text class="h" x="{_PAD:.0f}" y="18">{escape(label)}</text>')
        if rest:
            parts.append(f'<text class="f" x="{_PAD:.0f}" y="34">{escape("  ".join(text for _, text in rest))}</text>')
        shift = (width - inside.size[0]) / 2
        parts.append(f'<g transform="translate({shift:.1f},{_HEADER:.0f})">{inside.text}</g>')
    parts.append("</g>")
    return "".join(parts)


def _describe_node(node: Node) -> str:
    """Return the description of a node, for hover and screen readers."""
    head = [escape_line(node.label, 200)]
    head += [f"{one.name}: {one.dtype} {one.shape}, {one.bytes} bytes, {one.about}" for one in node.results]
    head += [f"abstract expression: {escape_line(one.expression, 300)}" for one in node.results if one.expression]
    return "\n".join([*head, *node.words])


def _edge(edge: Edge, layout: DrawingLayout, number: int) -> str:
    points = layout.edges[number]
    data = _data("from", edge.source) + _data("to", edge.target)
    data += _data("tensor", str(edge.tensor)) + _data("slot", str(edge.slot)) + _data("maps", json.dumps(edge.maps))
    told = "\n".join(edge.words) or f"tensor {edge.tensor}"
    x, y = points[-1]
    arrow = f"M{x:.1f},{y:.1f}l-3.6,-7h7.2z"
    path = _path((*points[:-1], (x, y - 5)))
    return f'<g class="e"{data}><title>{escape(told)}</title><path d="{path}"/><path class="a" d="{arrow}"/></g>'


def _edge_labels(edge: Edge, points: tuple[tuple[float, float], ...]) -> str:
    """Return the labels of an edge: the write map at its start, the read map at its end."""
    (sx, sy), (ex, ey) = points[0], points[-1]
    out = f'<text class="m" x="{ex + 5:.1f}" y="{ey - 9:.1f}">{escape(edge.label)}</text>' if edge.label else ""
    return out + (
        f'<text class="m" x="{sx + 5:.1f}" y="{sy + 12:.1f}">{escape(edge.origin)}</text>' if edge.origin else ""
    )


def _path(points: tuple[tuple[float, float], ...]) -> str:
    """Return a smooth SVG path through points, vertical at both ends."""
    (x, y), *rest = points
    out = [f"M{x:.1f},{y:.1f}"]
    for nx, ny in rest:
        middle = (y + ny) / 2
        out.append(
            f"L{nx:.1f},{ny:.1f}" if nx == x else f"C{x:.1f},{middle:.1f} {nx:.1f},{middle:.1f} {nx:.1f},{ny:.1f}"
        )
        x, y = nx, ny
    return "".join(out)


def _data(name: str, value: str) -> str:
    return f' data-{name}="{escape(escape_line(value, 4000))}"'

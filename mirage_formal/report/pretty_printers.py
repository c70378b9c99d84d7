"""Printing of graphs and verdicts: one short line in a REPL, text by ``str``, a picture or a table in a notebook.

The classes of graphs and verdicts are part of the trusted code, which is counted by lines and imports no file format
and no drawing. So their print methods are attached here, once, when the package is imported; their implementation is
imported when a value is printed.
"""

from __future__ import annotations

from typing import Any, Final

from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown

#: Most characters that a REPL prints of one value.
MOST: Final = 200


def shorten_text(text: str) -> str:
    """Return a text of at most ``MOST`` characters."""
    from mirage_formal.support.terminal import escape_line

    return escape_line(text, MOST)


def graph_line(graph: KernelGraph) -> str:
    """Return a one-line description of a graph."""
    from mirage_formal.report.sentences import count_noun

    fused = sum(isinstance(op, GraphDefined) for op in graph.ops)
    kinds = [
        count_noun(len(graph.inputs), "input"),
        count_noun(len(graph.ops), "operator"),
        count_noun(len(graph.outputs), "output"),
    ]
    inside = f", {fused} of them with block graphs" if fused else ""
    return f"KernelGraph({kinds[0]}, {kinds[1]}{inside}, {kinds[2]})"


def verdict_line(verdict: Equivalent | Probable | Different | Unknown) -> str:
    """Return a one-line description of a verdict; the bytes of a proof are only counted."""
    from mirage_formal.report.sentences import count_noun

    match verdict:
        case Equivalent():
            added = f", {len(verdict.added)} of them added" if verdict.added else ""
            held = count_noun(len(verdict.conditions), "condition")
            return f"Equivalent(proof of {count_noun(len(verdict.proof), 'byte')}, {held}{added})"
        case Probable():
            return shorten_text(
                f"Probable(rounds={verdict.rounds}, bound_log2={verdict.bound_log2}, {verdict.reason!r})"
            )
        case Different():
            where = ", ".join(map(str, verdict.index))
            return shorten_text(
                f"Different(output {verdict.output}[{where}]: got {verdict.got}, expected {verdict.expected})"
            )
        case Unknown():
            return shorten_text(f"Unknown({verdict.reason!r})")


def _graph_text(graph: KernelGraph) -> str:
    from mirage_formal.graph.formats.text import to_text

    return to_text(graph)


def _graph_html(graph: KernelGraph) -> str:
    from mirage_formal.report.notebook import graph_html

    return graph_html(graph)


def _graph_svg(graph: KernelGraph) -> str | None:
    from mirage_formal.report.drawing.svg import graph_svg
    from mirage_formal.support.errors import GraphError

    try:
        return graph_svg(graph)
    except GraphError:  # nothing can be drawn of a graph that is not well-formed; its text can be printed
        return None


def _verdict_text(verdict: Any) -> str:
    from mirage_formal.report.sentences import verdict_sentences
    from mirage_formal.support.terminal import escape_line

    head, held = verdict_sentences(verdict)
    return "\n".join([escape_line(head), *([""] if held else []), *(f"  {escape_line(one)}" for one in held)])


def _verdict_html(verdict: Any) -> str:
    from mirage_formal.report.notebook import verdict_html

    return verdict_html(verdict)


def install_printers() -> None:
    """Attach print methods to the classes of graphs and verdicts."""
    printers: dict[type, dict[str, object]] = {
        KernelGraph: {
            "__repr__": graph_line, "__str__": _graph_text, "_repr_html_": _graph_html, "_repr_svg_": _graph_svg,
        },
    }  # fmt: skip
    for kind in (Equivalent, Probable, Different, Unknown):
        printers[kind] = {"__repr__": verdict_line, "__str__": _verdict_text, "_repr_html_": _verdict_html}
    for shown, methods in printers.items():
        for name, method in methods.items():
            setattr(shown, name, method)


class ProgramPrinter:
    """Mixin that prints a program under construction as its current graph, if that is well-formed."""

    def __repr__(self) -> str:
        frozen = self._frozen()
        return "Graph(no output is marked)" if frozen is None else graph_line(frozen).replace("KernelGraph", "Graph", 1)

    def __str__(self) -> str:
        frozen = self._frozen()
        return repr(self) if frozen is None else _graph_text(frozen)

    def _repr_html_(self) -> str:
        frozen = self._frozen()
        return f"<p>{self!r}</p>" if frozen is None else _graph_html(frozen)

    def _repr_svg_(self) -> str | None:
        frozen = self._frozen()
        return None if frozen is None else _graph_svg(frozen)

    def _frozen(self) -> KernelGraph | None:
        from mirage_formal.support.errors import MirageError

        try:
            found: KernelGraph = self.freeze()  # type: ignore[attr-defined]  # it is mixed into the front end's graphs
        except MirageError:
            return None
        return found

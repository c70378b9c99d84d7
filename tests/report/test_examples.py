"""An introduction to ``mirage_formal/report``: graphs and verdicts as lines, sentences and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Unknown
from mirage_formal.prove.equality.prove import prove
from mirage_formal.report.drawing.svg import graph_svg
from mirage_formal.report.pretty_printers import graph_line
from mirage_formal.report.sentences import verdict_sentences


def program() -> KernelGraph:
    """exp(X W)."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    w = graph.new_input(dims=(8, 16), dtype=mf.float16)
    graph.mark_output(graph.exp(graph.matmul(x, w)))
    return graph.freeze()


def test_a_graph_is_one_line_in_a_repl() -> None:
    assert graph_line(program()) == "KernelGraph(2 inputs, 2 operators, 1 output)"


def test_a_verdict_is_a_sentence() -> None:
    proved, conditions = verdict_sentences(prove(program(), program()))
    assert proved.startswith("Equivalent: proved equal over the reals for all inputs")
    assert conditions == []
    assert verdict_sentences(Unknown("out of time"))[0] == "Unknown: out of time"


def test_a_picture_is_well_formed_svg_with_each_operator() -> None:
    text = graph_svg(program())
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "matmul" in text
    assert "exp" in text

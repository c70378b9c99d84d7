"""What a run's candidates are called."""

from __future__ import annotations

from dataclasses import replace

from mirage_formal.graph.graph import GraphDefined
from mirage_formal.graph.verdict import Equivalent, Probable
from mirage_formal.run.candidate_table import describe_differences, describe_kernels, explain_verdicts, verdict_label
from tests.kit.runs.fake_engine import fused, program


def test_verdicts_are_named_and_bounds_stated_or_called_what_they_are() -> None:
    assert verdict_label(Equivalent(b"{}")) == "equivalent"
    assert verdict_label(Probable(1, -29.4)) == "probable, < 2^-29"
    assert verdict_label(Probable(1, None, "vacuous: k = 4096 exponentials")) == "probable, vacuous"
    assert verdict_label(Probable(1, None, "sqrt is outside the theorem")) == "probable, no bound"


def test_what_is_only_probable_is_said_and_what_is_proved_is_not_called_so() -> None:
    proved = Equivalent(b"{}", ("program, kernel operator 1: divisor nonzero",))
    [line] = explain_verdicts([Equivalent(b"{}"), proved])
    assert line.startswith("verdict equivalent: proved equal to the program over the reals, for all inputs on which")
    [line] = explain_verdicts([Equivalent(b"{}")])
    assert line.endswith("over the reals, for all inputs")
    both = explain_verdicts([proved, Probable(1, None, "sqrt is outside the theorem"), Probable(1, -29.0)])
    assert len(both) == 3
    assert "verdict probable (2 of 3): NOT proved" in both[1]
    assert both[2] == "no bound on the error: sqrt is outside the theorem"
    assert explain_verdicts([]) == []


def test_kernels_are_named() -> None:
    assert describe_kernels(program()) == "matmul; exp"
    assert describe_kernels(fused(program(), 2, 4, 2)) == "grid 2x4x1 loop 2"


def test_candidates_that_would_look_alike_are_told_apart() -> None:
    """By how an operand is cut where that is it, and by a line of their texts where nothing else tells them apart."""
    graph = program()
    rows, columns = fused(graph, 2, 4, 2), fused(graph, 4, 2, 2)
    assert describe_differences([rows, columns]) == ["grid 2x4x1 loop 2", "grid 4x2x1 loop 2"]
    (op,) = rows.ops
    assert isinstance(op, GraphDefined)
    first, *others = op.graph.inputs
    turned = replace(first, imap=(first.imap[1], first.imap[0], *first.imap[2:]))
    other = replace(rows, ops=(replace(op, graph=replace(op.graph, inputs=(turned, *others))),))
    words = describe_differences([rows, other, columns])
    assert len(set(words)) == 3
    assert words[0].startswith("grid 2x4x1 loop 2; X: ") or "cuts" in words[0]
    assert words[2] == "grid 4x2x1 loop 2"
    named = replace(rows, inputs=tuple(replace(item, name=f"{item.name}2") for item in rows.inputs))
    assert len(set(describe_differences([rows, named]))) == 2

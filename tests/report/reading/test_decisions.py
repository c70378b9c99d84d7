"""The decisions of a search that led to a candidate: every operator of its graph, and why its results were kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mirage_formal.report.drawing.levels import all_nodes, levels
from mirage_formal.report.page.html import render
from mirage_formal.report.reading import read_report
from tests.kit.runs import tampering


def test_every_operator_is_decided_once_and_behind_its_operands(small: Path) -> None:
    for one in read_report(small).candidates:
        assert one.graph is not None
        level = levels(one.graph)
        wanted = {
            node.id for node in all_nodes(level)
            if node.kind not in ("input", "output") and not re.search(r"op\d+\.op\d+\.op", node.id)
        }  # fmt: skip
        order = [step.node for step in one.decisions if step.node]
        assert len(order) == len(set(order))
        assert set(order) == wanted
        for inner in (level, *(node.inner for node in level.nodes if node.inner)):
            for edge in inner.edges:
                if edge.source in wanted and edge.target in wanted:
                    assert order.index(edge.source) < order.index(edge.target)


def test_the_reasons_are_those_of_the_records(small: Path) -> None:
    report = read_report(small)
    units = [json.loads(line) for line in (small / "search.jsonl").read_text().splitlines()]
    for one in report.candidates:
        (unit, *_) = [unit for unit in units if any(found["digest"] == one.digest for found in unit["candidates"])]
        first, *_, last = one.decisions
        assert first.what.startswith(f"Unit {unit['unit']}, {unit['label']}, is searched")
        assert f"{unit['stats']['states']:,} states" in first.why
        said = " ".join(step.why for step in one.decisions)
        assert one.graph is not None
        inputs = {f"k{number}" for number in range(len(one.graph.inputs))}
        for held in (held for held in one.certificates if held.tensor not in inputs):
            assert f"{held.expression} is part of that of output {held.output} (recorded: z3 unsat, cvc5 unsat" in said
        assert last.what.startswith(f"It has a proof of {one.steps} step")
    ranks = sorted((found["estimated_us"], found["digest"]) for unit in units for found in unit["candidates"])
    place = [digest for _, digest in dict.fromkeys(ranks)].index(report.candidates[0].digest) + 1
    assert any(step.why.startswith(f"That is place {place} of ") for step in report.candidates[0].decisions)


def test_a_solver_that_confirmed_nothing_is_said(small: Path, tmp_path: Path) -> None:
    root = tampering.copy(small, tmp_path / "copy")
    proof = next((root / "candidates").glob("001*/proof.jsonl"))
    proof.write_text(proof.read_text().replace('"cvc5":{"answer":"unsat"', '"cvc5":{"answer":"unknown"'))
    said = " ".join(step.why for step in read_report(root).candidates[0].decisions)
    assert "cvc5 unknown of the negation" in said
    assert "cvc5 unsat" not in said


def test_a_journal_that_names_no_candidate_is_said(small: Path, tmp_path: Path) -> None:
    root = tampering.copy(small, tmp_path / "copy")
    (root / "search.jsonl").write_text("")
    report = read_report(root)
    assert report.candidates[0].decisions[0].what == "No unit of the journal names this candidate."
    assert not any(step.level == "rank" for step in report.candidates[0].decisions)


@pytest.mark.parametrize("name", ["small", "whole"])
def test_the_page_lists_them_with_links_to_their_nodes(request: pytest.FixtureRequest, name: str) -> None:
    report = read_report(request.getfixturevalue(name))
    found = [*report.candidates, *(part.report for part in report.parts if part.report)]
    shown = [one for one in found if one.decisions]
    assert shown
    for one in shown:
        html = str(render("candidate", "candidate_section", one, report.program))
        listed = html[html.index('class="decisions"') :].partition("</ol>")[0]
        assert re.findall(r'data-goto="candidate:(.*?)"', listed) == [step.node for step in one.decisions if step.node]
        assert listed.count("<li") == len(one.decisions)

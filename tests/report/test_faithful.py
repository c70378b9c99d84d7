"""A picture shows the graph and nothing else; a formula is what the kernel computed from a proof that holds."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import GraphDefined, KernelGraph, ThreadDefined
from mirage_formal.graph.ops import SPECS, Level
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults
from mirage_formal.prove.equality.prove import prove
from mirage_formal.report.drawing.levels import all_nodes, levels
from mirage_formal.report.drawing.svg import graph_svg, level_svg
from mirage_formal.report.model import Basis, ReportedCandidate, SpecialValues
from mirage_formal.report.page.html import render
from mirage_formal.report.proofs.program_formulas import definitions
from mirage_formal.report.proofs.proof_formulas import formula_text, latex, mathml
from mirage_formal.report.proofs.proof_replay import replay_and_explain
from mirage_formal.report.reading import read_report
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.graphs.graph_strategies import kernel_graphs
from tests.kit.graphs.random_graphs import random_graph
from tests.kit.kernels import masked_attention
from tests.kit.proofs.claims import Claim, load
from tests.kit.reports import NAMES, example, read_back
from tests.kit.runs.fake_engine import program

KINDS = frozenset(kind for kind, spec in SPECS.items() if Level.BLOCK in spec.levels)


def test_two_hundred_random_graphs_are_read_back_from_their_pictures() -> None:
    rng, count = random.Random(7), 0
    while count < 200:
        graph = random_graph(rng, KINDS)
        if not faults(graph):
            assert read_back(graph_svg(graph)) == graph
            count += 1


@given(kernel_graphs())
@settings(max_examples=60)
def test_graphs_with_all_levels_are_read_back(graph: KernelGraph) -> None:
    assert read_back(graph_svg(graph)) == graph


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_read_back(name: str) -> None:
    found = example(name)
    assert read_back(graph_svg(found.program)) == found.program
    assert read_back(graph_svg(found.candidate)) == found.candidate


def test_a_changed_picture_is_another_graph() -> None:
    graph = example("attn").candidate
    picture = graph_svg(graph)
    for old, new in (
        ("exp", "sqrt"),
        ("[2,-,0]", "[2,0,-]"),
        ("2 × 4096", "2 × 2048"),
        ("accum_sum_last", "accum_sum"),
    ):
        assert old in picture
        assert read_back(picture.replace(old, new)) != graph


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_in_a_node_is_what_it_carries(name: str) -> None:
    graph = example(name).candidate
    picture = graph_svg(graph)
    for node in all_nodes(levels(graph)):
        pattern = rf'<g class="n [^>]*data-node="{re.escape(node.id)}".*?<text class="h"[^>]*>([^<]*)<'
        (shown,) = re.findall(pattern, picture, re.DOTALL)
        assert unescape(shown) == node.label[:44]


def test_a_level_alone_has_no_graph_inside() -> None:
    level = levels(example("attn").candidate)
    assert 'data-level="block"' not in level_svg(level, "kernel graph")
    assert 'data-level="block"' in level_svg(level, "kernel graph", opened=True)


def test_every_kind_of_node_occurs() -> None:
    graphs = [example(name).candidate for name in NAMES]
    ops = [op for graph in graphs for op in graph.ops if isinstance(op, GraphDefined)]
    kinds = {node.kind for graph in graphs for node in all_nodes(levels(graph))}
    assert {"input", "kernel", "iterator", "op", "saver", "output"} <= kinds
    threads = any(isinstance(inner, ThreadDefined) for op in ops for inner in op.graph.ops)
    assert ("thread" in kinds) == threads


@pytest.mark.parametrize("name", NAMES)
def test_every_formula_comes_from_the_replay(name: str) -> None:
    found = example(name)
    proof = replay_and_explain(found.program, found.candidate, found.proof)
    (part,) = proof.parts
    tables = json.loads(found.proof)
    assert [step.number for step in part.steps] == list(range(len(tables["steps"])))
    assert [lemma.number for lemma in part.lemmas] == list(range(len(tables["lemmas"])))
    assert all(step.places for step in part.steps)
    for formula in (part.steps[-1].right, part.identities[0].program):
        assert formula_text(formula)
        assert latex(formula).count("{") == latex(formula).count("}")
        assert mathml(formula).count("<mrow>") == mathml(formula).count("</mrow>")


def test_one_changed_step_and_nothing_is_shown() -> None:
    found = example("attn")
    tables: dict[str, Any] = json.loads(found.proof)
    refused = 0
    for number, step in enumerate(tables["steps"]):
        if step[0] not in ("unary", "binary", "sum"):
            continue
        changed = json.loads(found.proof)
        changed["steps"][number][1] = {"exp": "sqrt", "div": "mul"}.get(step[1], step[1])
        if step[0] == "sum":
            changed["steps"][number][2] = 0 if step[2] else 1
        with pytest.raises(ProofError):
            replay_and_explain(found.program, found.candidate, json.dumps(changed).encode())
        refused += 1
    assert refused >= 6


def test_steps_lead_to_nodes_that_are_drawn() -> None:
    for name in NAMES:
        found = example(name)
        nodes = {
            graph: {node.id for node in all_nodes(levels(value))}
            for graph, value in (("program", found.program), ("candidate", found.candidate))
        }
        (part,) = replay_and_explain(found.program, found.candidate, found.proof).parts
        for step in part.steps:
            for place in step.places:
                assert place.node in nodes[place.graph]
        operators = {place.node for step in part.steps for place in step.places if place.graph == "program"}
        assert operators >= {f"op{n}" for n in range(len(found.program.ops)) if _computes(found.program, n)}


def _computes(graph: KernelGraph, number: int) -> bool:
    op = graph.ops[number]
    return isinstance(op, GraphDefined) or op.kind.value not in ("reshape", "cast", "transpose", "repeat", "concat")


# --- masks, selections and special values ----------------------------------------------------------------------------

CLAIMS = {claim.name: claim for claim in load("prove") if claim.name.startswith("masks.")}


def test_a_program_is_written_with_its_selections_and_numbers() -> None:
    shown = {name: formula_text(formula) for name, formula in definitions(masked_attention.apart("float16"))}
    written = " ".join(shown.values())
    assert "div_no_nan(" in written
    assert "select(logical_not(M)" not in shown["output 1"]
    assert "maximum(logical_not(M), gt(S, 1/10))" in written
    assert "round_bfloat16(S)" in written
    assert "maximum(S, 0)" in written  # a product with 0 is 0


@pytest.mark.parametrize("name", CLAIMS)
def test_every_step_of_a_proof_about_masks_is_written(name: str) -> None:
    claim: Claim = CLAIMS[name]
    pair = claim.tiny()
    verdict = prove(*pair)
    assert isinstance(verdict, Equivalent)
    (part,) = replay_and_explain(*pair, verdict.proof).parts
    assert part.steps
    for step in part.steps:
        for formula in (step.head, step.left, step.right):
            assert formula_text(formula)
            assert latex(formula)
            assert mathml(formula).startswith("<math>")


def test_what_a_selection_keeps_of_a_partial_value_is_written_as_one() -> None:
    found: set[str] = set()
    for claim in CLAIMS.values():
        pair = claim.tiny()
        verdict = prove(*pair)
        assert isinstance(verdict, Equivalent)
        for part in replay_and_explain(*pair, verdict.proof).parts:
            found |= {formula_text(identity.program) for identity in part.identities}
    assert any("select(" in one and "/" in one for one in found)
    assert any("inv0(" in one for one in found)
    assert any("negative(" in one for one in found)


def test_special_values_of_a_candidate_are_told() -> None:
    plain = ReportedCandidate(
        1, "0" * 64, "", "equivalent", Basis.RECORDED, None, 1, 1.0, special=SpecialValues(17, 34000, 1200, 0)
    )
    section = render("candidate", "candidate_section", plain, None)
    assert "special values" in section
    assert "34,000 elements of 17 draws, of which 1,200 have none" in section
    assert "overflow" not in section
    removed = str(
        render("candidate", "candidate_section", replace(plain, special=SpecialValues(17, 34000, 1200, 5)), None)
    )
    assert "an overflow of the program was removed at 5" in removed


def test_they_are_read_from_the_verification_log(tmp_path: Path) -> None:
    settings = Settings(engine="tests.kit.runs.fake_engine:Eager", config="tiny", keep=1, workers=1)
    run_search(program(), settings, tmp_path / "run")
    (candidate,) = read_report(tmp_path / "run").candidates
    assert candidate.special is not None
    assert candidate.special.elements == 64 * candidate.special.draws

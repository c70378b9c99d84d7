"""Faults that others reported: each gets a counterexample, each right form a proof, and the document lists them all."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.graph.counterexample import Counterexample
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.prove.counterexamples.refute import evaluate_counterexample, input_arrays
from mirage_formal.semantics import float64_reference
from tests.kit.paths import REPOSITORY
from tests.kit.proofs.claims import load, modules

FAULTS: list[Any] = next(one for one in modules("refute") if one.__name__ == "refute.public_faults").FAULTS
PAGE = (REPOSITORY / "docs" / "bugs-found.md").read_text(encoding="utf-8")
#: An issue or a pull request, of which GitHub has one numbering.
REPORT = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


def _refuted(fault: Any) -> tuple[KernelGraph, Counterexample]:
    graphs = fault.made()
    verdict = mf.equivalence(graphs.program, graphs.wrong)
    assert isinstance(verdict, mf.Different), (fault.name, verdict)
    assert verdict.counterexample is not None, fault.name
    return graphs.program, verdict.counterexample


def _inputs(program: KernelGraph, found: Counterexample) -> str:
    """What is not 0, in words."""
    names = [source.name for source in program.inputs]
    parts = [f"{names[one.input]}{list(one.index)} = {one.value:g}" for one in found.entries]
    for number, (name, fill) in enumerate(zip(names, found.fills, strict=True)):
        rest = " elsewhere" if any(one.input == number for one in found.entries) else ""
        if fill.even != fill.odd:
            parts.append(f"{name} = {fill.even} and {fill.odd} by turns{rest}")
        elif fill.even:
            parts.append(f"{name} = {fill.even}{rest}")
    return ", ".join(parts) or "all 0"


def _row(fault: Any) -> str:
    match = REPORT.fullmatch(fault.report)
    assert match is not None, fault.report
    program, found = _refuted(fault)
    output = f" of output {found.output}" if len(program.outputs) > 1 else ""
    proved = " Right form proved." if fault.made().right is not None else ""
    text = (
        f"- `{fault.name}` ([{match[1]}#{match[2]}]({fault.report})): {fault.said} *Ours:* {fault.ours}. "
        f"*Inputs:* {_inputs(program, found)}; element {found.index}{output} is {found.got:.4g}, not "
        f"{found.expected:.4g}.{proved}"
    )
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def test_there_are_enough_and_each_has_a_report_of_its_own() -> None:
    assert len(FAULTS) >= 25
    assert len({fault.name for fault in FAULTS}) == len({fault.report for fault in FAULTS}) == len(FAULTS)
    listed = {f"public_faults.{fault.name}" for fault in FAULTS}
    assert listed == {claim.name for claim in load("refute") if claim.name.startswith("public_faults.")}
    assert all(fault.said.endswith(".") and not fault.ours.endswith(".") for fault in FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_wrong_rewriting_is_refuted_on_inputs_that_the_reference_confirms(fault: Any) -> None:
    program, found = _refuted(fault)
    wrong = fault.made().wrong
    inputs = input_arrays(program, found)
    left, right = (float64_reference.run(graph, inputs)[found.output] for graph in (program, wrong))
    assert (left[found.index], right[found.index]) == (found.expected, found.got)
    assert not np.isclose(found.expected, found.got, rtol=1e-3, atol=0)
    value = evaluate_counterexample(program, wrong, found)
    assert (value.expected, value.got) == (found.expected, found.got)


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.made().right is not None], ids=lambda fault: fault.name)
def test_a_right_form_is_proved_and_needs_nothing_more(fault: Any) -> None:
    graphs = fault.made()
    verdict = mf.equivalence(graphs.program, graphs.right)
    assert isinstance(verdict, mf.Equivalent), (fault.name, verdict)
    assert verdict.added == ()
    assert isinstance(mf.equivalence(graphs.right, graphs.wrong), mf.Different)


#: Extents and inputs that a report gives, and what it says that the program and the wrong rewriting compute. Triton's
#: expects a first row that is the softmax of other numbers; only what it observed is compared.
NUMBERS: dict[str, tuple[dict[str, int], list[Any], list[Any] | None, list[Any]]] = {
    "maxima_and_sums_of_other_rows": (
        {"n": 2},
        [[[0.0, 2.0], [3.0, 1.0]]],
        None,
        [[0.2689, 0.1289], [5.4018, 0.0474]],
    ),
    "weight_before_the_norm": ({"b": 1, "n": 2}, [[[1.0, 1.0]], [[1.0, 2.0]]], [[1.0, 2.0]], [[0.6325, 1.265]]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_our_graphs_compute_the_numbers_of_a_report(name: str) -> None:
    extents, inputs, expected, got = NUMBERS[name]
    arrays = [np.array(one) for one in inputs]
    graphs = next(fault for fault in FAULTS if fault.name == name).made(**extents)
    for graph, wanted in ((graphs.program, expected), (graphs.wrong, got)):
        if wanted is not None:
            np.testing.assert_allclose(float64_reference.run(graph, arrays)[0], wanted, rtol=0, atol=1e-4)


def test_the_document_lists_them_with_links_and_inputs() -> None:
    section = PAGE.partition("## Public faults that it decides\n")[2].partition("\n## ")[0]
    rows = "\n".join(_row(fault) for fault in FAULTS)
    assert "\n".join(re.findall(r"^- .*(?:\n  .*)*", section, flags=re.MULTILINE)) == rows
    proved = sum(fault.made().right is not None for fault in FAULTS)
    assert f"{len(FAULTS)} faults" in section
    assert f"{proved} have a right form" in section


def test_the_document_counts_the_corpus() -> None:
    assert f"has {len(load('refute'))} wrong programs" in PAGE

"""Page section on refuted and undecided graphs, with counterexamples as worked examples."""

from __future__ import annotations

from dataclasses import replace

from mirage_formal.report.model import Candidate, Example, JudgedGraph, Report
from mirage_formal.report.page.candidates import badge
from mirage_formal.report.page.graphs import graph_section
from mirage_formal.report.page.markup import Markup, details, element, join_contents, table
from mirage_formal.report.page.proofs import proof_section

_MEANING = {
    "different": "Refuted: at the inputs below the two give different numbers.",
    "unknown": "Neither proved nor refuted, so it is not accepted.",
    "certificate": "A tensor has no certificate that both solvers confirm.",
    "unproved": "The prover knows no proof.",
    "proof-refused": "The checker's kernel refused the proof: a bug of the prover.",
    "numerics": "It is outside of tolerance, or has no value, where the program's own operators are not and have one.",
}


def judged_section(report: Report) -> Markup:
    """Return the section on all graphs that were judged, or rejected by a run."""
    if not report.judged:
        return element("p", None, "No graph was refuted, and none was left undecided.")
    rows = [(one.name[:12], one.verdict, badge(one.basis, short=True), one.reason[:300]) for one in report.judged]
    made = [table("Graphs with their verdicts", ("graph", "verdict", "basis", "reason"), rows)]
    if report.rejected > len(report.judged):
        made.append(element("p", None, f"{report.rejected - len(report.judged)} more are not listed."))
    return join_contents(
        [*made, *(_judged_details(one) for one in report.judged if one.graph is not None or one.example is not None)]
    )


def _judged_details(one: JudgedGraph) -> Markup:
    example = worked_example(one.example) if one.example is not None else None
    graph = graph_section(one.graph, "candidate", {}) if one.graph is not None else None
    proof = None
    if one.verdict == "equivalent" and one.proof is not None:
        shown = Candidate(0, one.name, "", "equivalent", one.basis, one.graph, 0, 0.0, proof=one.proof)
        shown = replace(shown, conditions=one.proof.conditions, added=one.proof.added)
        proof = proof_section(shown, f"g{one.name}")
    faults = [element("p", {"class": "bad"}, f"{fault.file}: {fault.what}") for fault in one.faults]
    meaning = element("p", None, _MEANING.get(one.verdict, ""))
    return details(
        f"Graph {one.name[:12]}: {one.verdict}", meaning, *faults, example, graph, proof, attributes={"class": "judged"}
    )


def worked_example(example: Example) -> Markup:
    """Return a counterexample, step by step."""
    where = f"output {example.output}[{', '.join(map(str, example.index))}]"
    given = element("ul", None, *(element("li", None, one) for one in example.inputs))
    gap = abs(example.expected - example.got)
    return element(
        "div",
        {"class": "worked"},
        element("h4", None, "A worked example"),
        element("ol", None,
                element("li", None, "Take these inputs:", given),
                element("li", None, f"Look at {where}."),
                element("li", None, f"The program gives {example.expected:.9g}."),
                element("li", None, f"This graph gives {example.got:.9g}, which is {gap:.3g} away.")),
    )  # fmt: skip

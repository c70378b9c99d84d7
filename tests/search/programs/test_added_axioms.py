"""Added axioms and those that are switched off change what both engines prune; without any, nothing changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice, read_choice
from mirage_formal.prove.abstract.pruning_audit import AuditFinding, DecisionSample, audit_decisions
from mirage_formal.search.engine_interface import Engine, SearchOptions, Stats
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.space import load_space
from tests.kit.paths import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "axioms"
ENGINES: Sequence[Engine] = (GuidedEngine(), ExhaustiveEngine())
LAW = read_choice([str(EXAMPLES / "exponential.smt2")])
ASKED = read_choice([str(EXAMPLES / "root.smt2")])


def product_of(function: str) -> KernelGraph:
    """f(x) f(y)."""
    graph = mf.new_kernel_graph()
    x, y = (graph.new_input(dims=(4, 4), dtype=mf.float16) for _ in "xy")
    graph.mark_output(graph.mul(getattr(graph, function)(x), getattr(graph, function)(y)))
    return graph.freeze()


def search(
    engine: Engine, program: KernelGraph, choice: AxiomChoice, sample: DecisionSample | None = None
) -> tuple[set[KernelGraph], Stats]:
    options, space = SearchOptions(choice=choice, sample=sample), load_space("tiny").with_overrides(max_block_ops=4)
    found: set[KernelGraph] = set()
    stats = Stats()
    for unit in engine.units(program, space, options):
        result = engine.run(program, space, options, unit)
        found |= {one.graph for one in result.candidates}
        stats += result.stats
    return found, stats


def functions(graph: KernelGraph, kind: OpKind) -> int:
    blocks = [op.graph.ops for op in graph.ops if isinstance(op, GraphDefined)]
    return sum(getattr(op, "kind", None) is kind for ops in (graph.ops, *blocks) for op in ops)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_law_is_seen_and_gives_new_candidates(engine: Engine) -> None:
    program = product_of("exp")
    usual, law = (search(engine, program, choice) for choice in (USUAL_AXIOMS, LAW))
    assert law[1].states > usual[1].states
    assert law[1].pruned["expression"] != usual[1].pruned["expression"]
    assert usual[0] < law[0]
    assert min(functions(graph, OpKind.EXP) for graph in usual[0]) == 2
    assert min(functions(graph, OpKind.EXP) for graph in law[0]) == 1


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_equation_that_is_no_law_prunes_less_and_still_prunes(engine: Engine) -> None:
    program = product_of("sqrt")
    usual, asked = (search(engine, program, choice) for choice in (USUAL_AXIOMS, ASKED))
    assert asked[1].states > usual[1].states
    assert asked[1].pruned["expression"] > usual[1].pruned["expression"]
    assert usual[0] <= asked[0]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_equation_that_cannot_matter_changes_nothing(engine: Engine) -> None:
    program = product_of("exp")
    assert search(engine, program, ASKED) == search(engine, program, USUAL_AXIOMS)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_axiom_that_is_switched_off_prunes_more(engine: Engine) -> None:
    program = product_of("exp")
    usual = search(engine, program, USUAL_AXIOMS)
    fewer = search(engine, program, AxiomChoice(without=("sub-exp",)))
    assert fewer[1].states < usual[1].states
    assert fewer[0] <= usual[0]


@pytest.mark.parametrize("choice", [LAW, ASKED], ids=["law", "asked"])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_z3_contradicts_no_decision_under_the_axioms_in_force(engine: Engine, choice: AxiomChoice) -> None:
    sample = DecisionSample(40, "axioms")
    search(engine, product_of("exp" if choice is LAW else "sqrt"), choice, sample)
    decisions = sample.decisions()
    found = audit_decisions(decisions, choice)
    assert decisions
    assert AuditFinding.CONTRADICTED not in found.findings

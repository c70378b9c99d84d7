"""What the prover knows of tensors is what the checker knows, which decides what a selection is."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mirage_formal.check.proof.elaborate import Elaboration
from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults
from mirage_formal.prove.equality.exact_domain import ExactDomain
from mirage_formal.prove.equality.facts import Sign, TensorFacts, combine_facts
from mirage_formal.prove.equality.prove import prove
from tests.kit.graphs.random_graphs import random_graph
from tests.kit.proofs.claims import Mask, pair
from tests.kit.sampling import number


def drawn(count: int) -> list[KernelGraph]:
    rng, found = random.Random(17), list[KernelGraph]()
    while len(found) < count:
        graph = random_graph(rng, frozenset(OpKind), 3)
        if not faults(graph):
            found.append(graph)
    return found


def test_both_sides_know_the_same() -> None:
    seen: Counter[TensorFacts] = Counter()
    for graph in drawn(number(150, 1000)):
        domain = ExactDomain()
        inputs = domain.inputs([source.tensor.shape for source in graph.inputs])
        mine = domain.outputs(0, graph, inputs)
        theirs = Elaboration(terms := Terms(), graph, "program").outputs
        for value, other in zip(mine, theirs, strict=True):
            facts = [part.fact for part in value.parts]
            assert [(fact.total, int(fact.sign)) for fact in facts] == [terms.known[term] for term in other.pieces()]
            seen.update(facts)
    assert {sign for fact in seen for sign in (fact.sign,)} == set(Sign)
    assert {fact.total for fact in seen} == {True, False}


def test_tensors_side_by_side_have_what_all_have() -> None:
    assert combine_facts([TensorFacts(True, Sign.POSITIVE), TensorFacts(True, Sign.NONNEGATIVE)]) == TensorFacts(
        True, Sign.NONNEGATIVE
    )
    assert combine_facts([TensorFacts(True, Sign.POSITIVE), TensorFacts(False, Sign.UNKNOWN)]) == TensorFacts(
        False, Sign.UNKNOWN
    )


@pytest.mark.parametrize(("eps", "equal"), [(0.01, True), (None, False)])
def test_maxima_are_subtracted_behind_a_norm_only_if_it_always_has_a_value(eps: float | None, equal: bool) -> None:
    """What is selected by a mask may be divided before it is selected only where nothing is discarded by that."""
    graphs = pair(
        {"X": (4, 6), "W": (6, 5), "M": Mask(4, 5)},
        lambda g, x, w, m: g.select(m, g.exp(g.rms_norm(x, eps=eps) @ w), 0),
        lambda g, x, w, m: g.cast(m, "float16") * g.exp(g.rms_norm(x, eps=eps) @ w),
    )
    verdict = prove(*graphs)
    assert isinstance(verdict, Equivalent) == equal
    if isinstance(verdict, Equivalent):
        replay_composed(*graphs, verdict.proof)

"""Random edits of proofs and of the graphs they are about: nothing false is accepted, nothing whose meaning changed.

An edit of a proof is accepted in three cases only. The edited proof has the same normal form (``proof_edits.Normal``):
the same lemmas on the same tensors, written in another order. Or only the multiplier of an output is another product of
divisors. Or it is another proof of what is true: then every one of its lines is evaluated, and each tensor's element
must be what its operator term computes, so that nothing false was stated on the way.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import faults, kernel_types
from tests.kit.graphs.mutants import Decision, differs, single_mutants
from tests.kit.proofs.hand_proofs import PAIRS, false_proofs, text, true_proofs
from tests.kit.proofs.proof_edits import Normal, edited
from tests.kit.proofs.proof_judge import accepts, kind, lines_are_true
from tests.kit.proofs.prover_faults import CASES
from tests.kit.sampling import number, share

EDITS = number(500, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "real"])
def test_no_edit_of_a_proof_is_accepted_that_changes_what_it_says(size: str) -> None:
    rng = random.Random(4)
    kinds: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for turn in range(EDITS):
        pair, written = true_proofs(size)[turn % len(true_proofs(size))]
        old = json.loads(written)
        label, new = edited(old, rng)
        labels[label] += 1
        if accepts(pair, new):
            what = kind(old, new)
            kinds[what] += 1
            conditions = [replay(*pair[1:], json.dumps(proof)).conditions for proof in (old, new)]
            assert conditions[0] == conditions[1]
            if what == "other lines":
                assert size == "small", (pair[0], label)
                assert lines_are_true(pair, new), (pair[0], label)
    assert sum(kinds.values()) < EDITS // 50
    assert kinds["other lines"] < max(2, EDITS // 500)
    assert len(labels) >= 35


@pytest.mark.slow
def test_orders_do_not_change_the_normal_form_and_extents_do() -> None:
    accepted: Counter[Any] = Counter()
    for pair, written in share(true_proofs("small")[::3], 2, 0):
        old, normal = json.loads(written), Normal()
        assert lines_are_true(pair, old), pair[0]
        for table in ("factors", "lemmas"):
            for row, raw in enumerate(old[table]):
                if raw[0] in ("exp", "pow", "content") and len(raw[1]) > 1:
                    new = json.loads(written)
                    new[table][row][1].reverse()
                    assert normal(old) == normal(new)
                    accepted[accepts(pair, new)] += 1
        for at in range(len(old["digits"])):
            new = json.loads(written)
            new["digits"][at] += 1
            assert normal(old) != normal(new)
            assert not accepts(pair, new)
    assert accepted[True] > number(10, 20)
    assert not accepted[False]


def test_another_multiplier_is_accepted_if_it_is_of_divisors() -> None:
    pair = ("halves", *PAIRS["halves"])
    old = json.loads(text("halves"))
    for multiplier, good in (([2, 2], True), ([2, 4], True), ([2, 1], False), ([2, 2, 0, 2], False), ([2, -2], False)):
        new = json.loads(text("halves"))
        new["outputs"][0][2] = multiplier
        assert accepts(pair, new) == good
        if good and multiplier != old["outputs"][0][2]:
            assert kind(old, new) == "other multiplier"


@pytest.mark.slow
def test_no_edit_of_a_false_proof_is_accepted() -> None:
    """Edits upon edits, as long as the proof fails at nothing but the comparison of the outputs."""
    rng, refused, deep = random.Random(8), 0, 0
    for pair, written in false_proofs(number(2, 1)) * number(1, 2):
        proof = json.loads(written)
        for _ in range(5):
            label, new = edited(proof, rng)
            try:
                replay(pair[1], pair[2], json.dumps(new))
            except ProofError as error:
                refused += 1
                if error.where == "outputs" and "equal elements" in error.what:
                    proof, deep = new, deep + 1
                continue
            pytest.fail(f"accepted: {pair[0]}, {label}")
    assert refused >= number(300, 3000)
    assert deep >= number(3, 30)


@pytest.mark.slow
def test_a_proof_of_one_pair_is_none_of_a_pair_of_refute() -> None:
    """Proofs of prove/ for programs and candidates of refute/ that read inputs of the same shapes."""
    tried: Counter[bool] = Counter()
    for (name, program, _), written in share(true_proofs("small"), 4, 0):
        for label, other, wrong in CASES:
            if _inputs(program) != _inputs(other):
                continue
            for left in (program, other):
                if _shapes(left) == _shapes(wrong) and differs(left, wrong) is not Decision.DIFFERENT:
                    continue  # two claims may have one candidate
                tried[accepts((name, left, wrong), written)] += 1
                assert not tried[True], (name, label)
    assert tried[False] >= number(250, 1000)


@pytest.mark.slow
def test_a_proof_kept_for_a_changed_graph_is_refused_unless_the_change_computes_the_same() -> None:
    """Changed maps, extents, operators, operands and attributes, of the program or of the candidate."""
    rng = random.Random(10)
    found: Counter[tuple[bool, Decision]] = Counter()
    for (name, program, candidate), written in true_proofs("small"):
        for side, graph in enumerate((program, candidate)):
            changes = list(single_mutants(graph))
            for label, changed in rng.sample(changes, min(number(2, 8), len(changes))):
                pair = (name, changed, candidate) if side == 0 else (name, program, changed)
                if faults(changed) or _shapes(changed) != _shapes(graph):
                    continue
                said = differs(pair[1], pair[2])
                taken = accepts(pair, written)
                found[taken, said] += 1
                assert not (taken and said is Decision.DIFFERENT), (name, label)
    assert found[False, Decision.DIFFERENT] >= number(125, 500)


def _inputs(graph: KernelGraph) -> list[tuple[int, ...]]:
    return [source.tensor.shape for source in graph.inputs]


def _shapes(graph: KernelGraph) -> list[tuple[int, ...]]:
    types = kernel_types(graph)
    return [types[number].shape for number in graph.outputs]

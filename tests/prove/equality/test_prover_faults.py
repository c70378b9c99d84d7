"""Faults seeded into the prover: each makes it prove something false, and no such proof gets past the checker."""

from __future__ import annotations

from collections import Counter

import pytest

from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
from tests.kit.fuzz.rewrite_pairs import pairs
from tests.kit.graphs.mutants import Decision, differs, mutants
from tests.kit.proofs.prover_faults import CASES, FAULTS, faulty
from tests.kit.sampling import THOROUGH, number, share

#: Random pairs, and as many mutants of found candidates.
COUNT = number(100, 300)
Case = tuple[str, KernelGraph, KernelGraph]


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    """Those that float64 tells apart; a faulty prover may prove the others."""
    cases = [(x.name, x.program, x.candidate) for x in pairs(9, COUNT)]
    cases += [(x.name, x.program, x.graph) for x in mutants(9, COUNT, every=THOROUGH)]
    return [item for item in cases if differs(*item[1:]) is Decision.DIFFERENT]


def refused(name: str, cases: list[Case]) -> int:
    """How many false proofs the prover writes with a fault, all of which the checker refuses."""
    count = 0
    with faulty(name) as proof:
        for label, program, candidate in cases:
            text = proof(program, candidate)
            if text is None:
                continue
            count += 1
            try:
                replay(program, candidate, text)
            except ProofError:
                continue
            pytest.fail(f"accepted: {label}")
    return count


@pytest.mark.parametrize("name", FAULTS)
def test_no_false_proof_gets_past_the_checker(name: str) -> None:
    assert refused(name, CASES), "the fault never led to a false proof, so nothing was tested"


@pytest.mark.slow
def test_no_false_proof_of_a_random_pair_or_a_mutant_gets_past_the_checker(drawn: list[Case]) -> None:
    assert len(drawn) >= 0.8 * COUNT
    plain = "outputs_not_compared"  # which proves everything
    shares = {name: drawn if name == plain else share(drawn, 2, turn) for turn, name in enumerate(FAULTS)}
    false = Counter({name: refused(name, list(cases)) for name, cases in shares.items()})
    assert false[plain] >= 0.8 * COUNT
    assert len(+false) >= 7, false


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 10

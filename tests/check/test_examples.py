"""An introduction to ``mirage_formal/check``: the checker replays a proof and trusts nothing that made it."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.check.equivalence import crosscheck_proof, replay_with_obligations
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove


def program(*, divide_first: bool, swap: bool = False) -> KernelGraph:
    """(X / Y) W, or (X W) / Y with one Y for each row; ``swap`` computes with W twice as large."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    y = graph.new_input(dims=(4, 1), dtype=mf.float16)
    w = graph.new_input(dims=(8, 16), dtype=mf.float16)
    factor = w + w if swap else w
    graph.mark_output(graph.matmul(x / y, factor) if divide_first else graph.matmul(x, factor) / y)
    return graph.freeze()


@pytest.fixture(scope="module")
def proof() -> bytes:
    verdict = prove(program(divide_first=True), program(divide_first=False))
    assert isinstance(verdict, Equivalent)
    return verdict.proof


def test_a_replayed_proof_is_a_theorem_with_side_conditions(proof: bytes) -> None:
    theorem = replay(program(divide_first=True), program(divide_first=False), proof)
    assert [text.partition(": ")[2] for text in theorem.conditions] == ["divisor nonzero", "divisor nonzero"]


def test_a_proof_shows_nothing_of_other_graphs(proof: bytes) -> None:
    with pytest.raises(ProofError):
        replay(program(divide_first=True), program(divide_first=False, swap=True), proof)


def test_a_changed_proof_is_refused(proof: bytes) -> None:
    with pytest.raises(ProofError):
        replay(program(divide_first=True), program(divide_first=False), proof[:-20] + b"}")


def test_sympy_confirms_the_closing_identities(proof: bytes) -> None:
    found = crosscheck_proof(replay_with_obligations(program(divide_first=True), program(divide_first=False), proof))
    assert found.confirmed >= 1
    assert found.undecided == ()

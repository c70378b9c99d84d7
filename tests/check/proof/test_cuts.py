"""Proofs that take a tensor as the concatenation of its slices: rows that say where, and false ones."""

from __future__ import annotations

import json

import pytest

import mirage_formal as mf
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from tests.kit.proofs.claims import pair

PAIR = pair(
    {"X": (2, 8), "W": (8, 3)},
    lambda g, x, w: x @ w,
    lambda g, x, w: x[:, :3] @ w[:3] + x[:, 3:] @ w[3:],
)


def proof() -> dict[str, list[object]]:
    verdict = prove(*PAIR)
    assert isinstance(verdict, Equivalent)
    found: dict[str, list[object]] = json.loads(verdict.proof)
    return found


def test_a_proof_says_where_inputs_are_cut() -> None:
    assert proof()["atoms"] == [[0, 0, 1, [3, 5]], [0, 1, 0, [3, 5]], [1, 0, 1, [3, 5]], [1, 1, 0, [3, 5]]]
    replay(*PAIR, json.dumps(proof()))


@pytest.mark.parametrize(
    "row",
    [
        [0, 0, 1, [3, 4]],
        [0, 0, 1, [4, 4]],
        [0, 0, 1, [3, 5, 0]],
        [0, 0, 1, []],
        [0, 0, 2, [3, 5]],
        [0, 0, 0, [3, 5]],
        [0, 0, 1, [3, -3, 8]],
        [0, 0, 1, "35"],
        [0, 5, 1, [3, 5]],
        [2, 0, 1, [3, 5]],
    ],
)
def test_a_wrong_cut_is_refused(row: list[object]) -> None:
    changed = proof()
    changed["atoms"][0] = row
    with pytest.raises(ProofError):
        replay(*PAIR, json.dumps(changed))


def test_a_proof_without_cuts_is_refused() -> None:
    with pytest.raises(ProofError):
        replay(*PAIR, json.dumps({**proof(), "atoms": []}))


def test_cuts_into_too_many_pieces_are_refused() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(64, 64), dtype=mf.float32, name="X")
    graph.mark_output(graph.exp(x))
    frozen = graph.freeze()
    verdict = prove(frozen, frozen)
    assert isinstance(verdict, Equivalent)
    changed = json.loads(verdict.proof)
    changed["atoms"] = [[0, 0, axis, [1] * 64] for axis in (0, 1)]
    with pytest.raises(ProofError, match="at most 2048 pieces"):
        replay(frozen, frozen, json.dumps(changed))

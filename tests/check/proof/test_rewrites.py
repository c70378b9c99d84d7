"""Steps that write an element in another form, squares, and atoms of equal tensors: with a fault they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from tests.kit.proofs.claims import Mask, pair

S = (3, 5)
GIVEN = {"X": S, "Y": S, "M": Mask(*S)}
Body = Callable[[Graph, Tensor, Tensor, Tensor], object]


def both(left: Body, right: Body) -> tuple[KernelGraph, KernelGraph]:
    return pair(GIVEN, left, right)


SIGMOID = both(lambda g, x, y, m: g.exp(g.sigmoid(-x)), lambda g, x, y, m: g.exp(1 - g.sigmoid(x)))
SELECTED = both(lambda g, x, y, m: g.exp(g.select(m, x, y)), lambda g, x, y, m: g.select(m, g.exp(x), g.exp(y)))
DIVIDED = both(lambda g, x, y, m: g.exp(g.select(m, x / y, y)), lambda g, x, y, m: g.select(m, g.exp(x / y), g.exp(y)))
SQUARE = both(lambda g, x, y, m: g.sqrt(x * x + 2 * x * y + y * y), lambda g, x, y, m: g.abs(x + y))
SUMMED = both(lambda g, x, y, m: g.reshape(x + y, 5, 3), lambda g, x, y, m: g.reshape(2 * x + y - x, 5, 3))
ATOM = both(
    lambda g, x, y, m: g.reshape(g.softmax(x + y, 1), 5, 3),
    lambda g, x, y, m: g.reshape(g.softmax(2 * x + y - x, 1), 5, 3),
)
NOWHERE = both(lambda g, x, y, m: x / (y - y), lambda g, x, y, m: (x + y - y) / (2 * y - y - y))
COMPARED = both(lambda g, x, y, m: g.select(g.gt(x, y), x, y), lambda g, x, y, m: g.maximum(x, y))
LOGARITHM = both(lambda g, x, y, m: g.maximum(g.log(x), g.log(y)), lambda g, x, y, m: g.log(g.maximum(x, y)))
NUMBERED = both(lambda g, x, y, m: g.exp(g.reshape(x, 5, 3)), lambda g, x, y, m: g.reshape(g.exp(x), 5, 3))


ACCEPTED = (SIGMOID, SELECTED, DIVIDED, SQUARE, SUMMED, ATOM, NOWHERE, COMPARED, LOGARITHM, NUMBERED)


def proof_of(graphs: tuple[KernelGraph, KernelGraph]) -> Any:
    verdict = prove(*graphs)
    assert isinstance(verdict, Equivalent)
    return json.loads(verdict.proof)


def place(proof: Any, table: str, name: str) -> list[Any]:
    """The first entry of a table with this name."""
    return next(row for row in proof[table] if row[0] == name)


def refused(graphs: tuple[KernelGraph, KernelGraph], proof: Any, words: str) -> None:
    with pytest.raises(ProofError, match=words):
        replay(*graphs, json.dumps(proof))


@pytest.mark.parametrize("graphs", ACCEPTED)
def test_what_the_prover_writes_is_accepted(graphs: tuple[KernelGraph, KernelGraph]) -> None:
    replay(*graphs, json.dumps(proof_of(graphs)))


@pytest.mark.parametrize("graphs", [SIGMOID, SELECTED, DIVIDED])
def test_another_coefficient_is_refused(graphs: tuple[KernelGraph, KernelGraph]) -> None:
    proof = proof_of(graphs)
    place(proof, "steps", "rewrite")[2][0][0] = 7
    refused(graphs, proof, "equal elements")


@pytest.mark.parametrize("graphs", [SELECTED, DIVIDED])
def test_without_cases_nothing_is_known_of_a_function_of_a_selection(graphs: tuple[KernelGraph, KernelGraph]) -> None:
    proof = proof_of(graphs)
    place(proof, "steps", "rewrite")[4] = []
    refused(graphs, proof, "equal elements")


def test_what_is_no_mask_has_no_cases() -> None:
    proof = proof_of(SELECTED)
    row, factors = place(proof, "steps", "rewrite"), proof["factors"]
    row[4] = [next(i for i, factor in enumerate(factors) if factor[:2] == ["in", 0])]
    refused(SELECTED, proof, "expected masks")


def test_an_input_of_numbers_is_no_mask() -> None:
    shapes = {"X": S, "Y": S, "M": S}
    graphs = (
        pair(shapes, lambda g, x, y, m: m * m * x, lambda g, x, y, m: m * x),
        pair(GIVEN, lambda g, x, y, m: g.select(m, g.select(m, x, 0), 0), lambda g, x, y, m: g.select(m, x, 0)),
    )
    assert [isinstance(prove(*each), Equivalent) for each in graphs] == [False, True]


def test_what_a_selection_discards_may_not_come_out_of_it() -> None:
    """A product with a mask is 0 times what may have no value; the selection has nothing of that."""
    proof = proof_of(DIVIDED)
    row, factors = place(proof, "steps", "rewrite"), proof["factors"]
    keep = next(i for i, factor in enumerate(factors) if factor[0] == "keep")
    (mask,), (value,) = factors[keep][1:]
    for term in row[2]:
        if keep in term[1::2]:
            at = term.index(keep, 1)
            term[at : at + 2] = [*mask[1:], *value[1:]]
    refused(DIVIDED, proof, "the same needs in each case")


def test_a_new_divisor_is_refused() -> None:
    proof = proof_of(DIVIDED)
    row, factors = place(proof, "steps", "rewrite"), proof["factors"]
    x = next(i for i, factor in enumerate(factors) if factor[:2] == ["in", 0])
    row[2] = [[1, x, -2]]
    refused(DIVIDED, proof, "no new divisor")


def test_another_square_is_refused() -> None:
    proof = proof_of(SQUARE)
    place(proof, "lemmas", "square")[2][0][0] = 3
    refused(SQUARE, proof, "the square of the root")


def test_an_atom_needs_pairs_of_equal_tensors() -> None:
    for graphs in (ATOM, NOWHERE):
        a, pairs = place(proof_of(graphs), "steps", "congruent")[1:]
        for row, words in (
            ([a, []], "list of 1"),
            ([a, [[pairs[0][0], 0]]], "pairs of equal tensors"),
            ([a, [[pairs[0][0], pairs[0][0]]]], "that the graphs compute|steps to be used"),
            ([pairs[0][1], pairs], "expected"),
        ):
            proof = proof_of(graphs)
            place(proof, "steps", "congruent")[1:] = row
            refused(graphs, proof, words)


def test_the_larger_of_two_is_told_by_their_own_comparison_only() -> None:
    proof = proof_of(COMPARED)
    masks = proof["outputs"][0][3]
    mask = proof["factors"][masks[0]]
    assert mask[:2] == ["fn", "negative"]
    for cases, words in ((masks[:0], "no empty list"), ([mask[2][0][1]], "expected masks")):
        proof["outputs"][0][3] = cases
        refused(COMPARED, proof, words)
    proof = proof_of(COMPARED)
    del proof["outputs"][0][3]
    refused(COMPARED, proof, "equal elements")
    # x > y tells nothing of the larger of 2 x and y.
    other = both(lambda g, x, y, m: g.select(g.gt(x, y), 2 * x, y), lambda g, x, y, m: g.maximum(2 * x, y))
    assert not isinstance(prove(*other), Equivalent)


def test_a_logarithm_of_a_size_is_increasing_only_above_0() -> None:
    proof = proof_of(LOGARITHM)
    assert place(proof, "lemmas", "largest")[5] == "log"
    proof["atoms"] = [entry for entry in proof["atoms"] if len(entry) != 1]
    refused(LOGARITHM, proof, "no logarithm of what is below 0")


def test_an_element_by_its_number_is_none_of_another_tensor() -> None:
    proof = proof_of(NUMBERED)
    row = next(row for row in proof["steps"] if row[0] == "input")
    assert row[1] < 0
    for number, words in ((~row[1], "expected"), (-2, "expected"), (-4, "integer in")):
        changed = json.loads(json.dumps(proof))
        next(one for one in changed["steps"] if one[0] == "input")[1] = number
        refused(NUMBERED, changed, words)

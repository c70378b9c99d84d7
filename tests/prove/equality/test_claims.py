"""The corpora themselves: enough pairs, and every one is what its folder says, as far as float64 can tell."""

from __future__ import annotations

import math

import pytest

from mirage_formal.graph.verifier import kernel_types
from tests.kit.proofs.claims import gap, load, points


@pytest.mark.parametrize("corpus", ["prove", "refute"])
def test_there_are_enough_claims_and_their_names_differ(corpus: str) -> None:
    names = [item.name for item in load(corpus)]
    assert len(names) >= 110
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("corpus", ["prove", "refute"])
def test_real_and_small_pairs_are_well_formed_and_have_one_interface(corpus: str) -> None:
    for item in load(corpus):
        for left, right in (item.real(), item.tiny()):
            assert left != right, item.name
            assert left.inputs == right.inputs, item.name
            shapes = [[kernel_types(graph)[n].shape for n in graph.outputs] for graph in (left, right)]
            assert shapes[0] == shapes[1], item.name


def test_small_pairs_are_smaller() -> None:
    for item in (*load("prove"), *load("refute")):
        sizes = [sum(source.tensor.elements for source in made[0].inputs) for made in (item.tiny(), item.real())]
        assert sizes[0] <= 500, (item.name, sizes)
        assert sizes[0] < sizes[1], (item.name, sizes)


def test_pairs_to_prove_agree() -> None:
    for item in load("prove"):
        left, right = item.tiny()
        for inputs in points(left, seed=11, positive=item.positive, negative=item.negative):
            assert gap(left, right, inputs) < 1e-9, item.name


def test_pairs_to_refute_differ() -> None:
    for item in load("refute"):
        left, right = item.tiny()
        gaps = [
            gap(left, right, inputs) for inputs in points(left, seed=11, positive=item.positive, negative=item.negative)
        ]
        assert not any(math.isnan(g) for g in gaps), item.name
        assert max(gaps) > 1e-3, (item.name, gaps)

"""The fuzz generator: pairs are well-formed, right rewrites are right, wrong ones mostly wrong, every rule occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest

from mirage_formal.graph.verifier import faults, kernel_types
from tests.kit.fuzz.rewrite_pairs import FuzzPair, Truth, pairs
from tests.kit.fuzz.wrong_rewrites import RIGHT, WRONG
from tests.kit.graphs.mutants import Decision, differs
from tests.kit.sampling import share

#: As many as it takes for every rule to occur; a third of them are looked at.
COUNT = 9000


@cache
def _pairs() -> tuple[FuzzPair, ...]:
    return tuple(pairs(2, COUNT))


@pytest.mark.slow
def test_pairs_are_well_formed_and_have_one_interface() -> None:
    for item in share(_pairs(), 3, 0):
        assert faults(item.program) + faults(item.candidate) == [], item.name
        assert item.program.inputs == item.candidate.inputs
        shapes = [kernel_types(graph)[graph.outputs[0]].shape for graph in (item.program, item.candidate)]
        assert shapes[0] == shapes[1], item.name


def test_right_rewrites_change_nothing_and_wrong_ones_most_often_do() -> None:
    found: Counter[tuple[Truth, Decision]] = Counter()
    looked_at = share(_pairs(), 3, 1)
    for item in looked_at:
        decision = differs(item.program, item.candidate)
        found[item.truth, decision] += 1
        assert (item.truth, decision) != (Truth.RIGHT, Decision.DIFFERENT), item
    assert found[Truth.RIGHT, Decision.SAME] > 0.4 * len(looked_at)
    assert found[Truth.WRONG, Decision.DIFFERENT] > 0.3 * len(looked_at)
    assert found[Truth.RIGHT, Decision.UNCLEAR] + found[Truth.WRONG, Decision.UNCLEAR] < 0.1 * len(looked_at)


def _names(items: Iterable[FuzzPair]) -> set[str]:
    return {name for item in items for name in item.name.split(" + ")}


def test_every_rule_occurs() -> None:
    rules = {rule.__name__ for table in (RIGHT, WRONG) for group in table.values() for rule in group}
    assert len(rules) >= 80
    missing = rules - _names(_pairs())
    for seed in range(3, 6):  # some are rare
        missing = missing and missing - _names(pairs(seed, COUNT))
    assert missing == set()


def test_the_seed_decides() -> None:
    assert list(pairs(7, 50)) == list(pairs(7, 50))
    assert list(pairs(7, 50)) != list(pairs(8, 50))


def test_pairs_hardly_repeat() -> None:
    assert len({(item.program, item.candidate) for item in _pairs()}) > 0.95 * COUNT

"""Which operators a stable form changes together, and in which order the groups can be computed."""

from __future__ import annotations

import random

import pytest

from mirage_formal.check.partitioning.subgraphs import partition
from mirage_formal.codegen.online_softmax.rewrite_groups import DisjointSets, group_operators
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from tests.kit.graphs import workloads as w


def graph(*operands: tuple[int, ...]) -> KernelGraph:
    """Operators over one input, tensor 0, by the tensors that they read; all that nobody reads are outputs."""
    ops = tuple(w.op(OpKind.ADD if len(reads) == 2 else OpKind.SQUARE, *reads) for reads in operands)
    read = {n for reads in operands for n in reads}
    return KernelGraph((w.tensor("x", 4, 4),), ops, tuple(n for n in range(1, len(ops) + 1) if n not in read))


def found(given: KernelGraph, *groups: tuple[int, ...]) -> list[tuple[tuple[int, ...], bool]]:
    together = DisjointSets(len(given.ops))
    for group in groups:
        together.join(group)
    return [(run.operators, run.changed) for run in group_operators(given, together, {group[0] for group in groups})]


def test_what_stays_is_put_together() -> None:
    chain = graph((0,), (1,), (2,), (3,), (4,))
    assert found(chain) == [((0, 1, 2, 3, 4), False)]
    assert found(chain, (2,)) == [((0, 1), False), ((2,), True), ((3, 4), False)]
    assert found(chain, (2,), (3,)) == [((0, 1), False), ((2,), True), ((3,), True), ((4,), False)]


def test_what_lies_between_changes_with_it() -> None:
    assert found(graph((0,), (1,), (2,), (3,)), (0, 2)) == [((0, 1, 2), True), ((3,), False)]


def test_what_reads_the_first_alone_comes_after() -> None:
    # 0 -> 2 and 1 -> 3 have nothing to do with each other but for 1, which 2 reads as well.
    assert found(graph((0,), (0,), (1, 2), (2,), (1,)), (0, 2)) == [((1,), False), ((0, 2), True), ((3, 4), False)]


def test_groups_that_need_each_other_become_one() -> None:
    # {0, 3} and {1, 2}: 1 reads 0, and 3 reads 2, which reads nothing of the others.
    assert found(graph((0,), (1,), (0,), (3,)), (0, 3), (1, 2)) == [((0, 1, 2, 3), True)]


@pytest.mark.parametrize("seed", range(50))
def test_of_random_graphs_and_groups_they_are_a_partition_that_the_checker_takes(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 14)
    given = graph(*(tuple(rng.randint(0, n) for _ in range(rng.randint(1, 2))) for n in range(count)))
    groups = [tuple(rng.sample(range(count), rng.randint(1, min(3, count)))) for _ in range(rng.randint(0, 3))]
    parts = found(given, *groups)
    assert len(partition(given, [operators for operators, _ in parts])) == len(parts)
    for group in groups:
        assert sum(changed and set(group) <= set(operators) for operators, changed in parts) == 1

"""An introduction to ``mirage_formal/partition``: a large program is cut into subgraphs that a search can take."""

from __future__ import annotations

from collections import Counter

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.partition.partition import Partition, PartLimits, extract_subprogram, partition_program
from tests.kit.graphs.workloads import tensor

H200 = load_target("h200")
#: Four operators one behind another: exp(exp(exp(exp(X)))).
CHAIN = KernelGraph((tensor("X", 64, 64),), tuple(Op(OpKind.EXP, (i,)) for i in range(4)), (4,))


def partition(operators: int) -> Partition:
    """The cheapest partition if every subgraph costs the same."""
    return partition_program(CHAIN, H200, PartLimits(operators=operators, inputs=3), lambda part: 1.0)


def test_every_operator_is_in_one_subgraph() -> None:
    counts = Counter(op for part in partition(2).parts for op in part.operators)
    assert counts == Counter(range(4))


def test_the_fewest_subgraphs_are_cheapest_if_all_cost_the_same() -> None:
    assert [len(partition(limit).parts) for limit in (1, 2, 4)] == [4, 2, 1]


def test_a_subgraph_is_a_program_of_its_own() -> None:
    program, reads, results = extract_subprogram(CHAIN, partition(2).parts[1].operators)
    assert program.ops == (Op(OpKind.EXP, (0,)), Op(OpKind.EXP, (1,)))
    assert (reads, results) == ((2,), (4,))
    assert estimate(program, H200).us < estimate(CHAIN, H200).us

"""Merged parts: still a partition, in order, within the limits, and never dearer than before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from mirage_formal.check.__main__ import main as check
from mirage_formal.check.partitioning.subgraphs import extract_operators
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import is_view, kernel_count
from mirage_formal.kernel_build.build import build
from mirage_formal.partition.cover_search import search_covers
from mirage_formal.partition.covers import Cover, select_covers
from mirage_formal.partition.merging import Merger
from mirage_formal.partition.partition import (
    Offers,
    Partition,
    PartLimits,
    extract_subprogram,
    floor_us,
    partition_program,
    partitions,
)
from mirage_formal.run.ranking import uses_library_products_only
from mirage_formal.run.settings import Settings
from tests.kit.graphs import workloads as w
from tests.kit.graphs.workloads import TINY, gates, long_chain, projections, sum_and_norm
from tests.partition.test_partition import random_program, set_partitions, takes, used_outside
from tests.partition.test_whole_programs import agree

H200 = load_target("h200")
LIMITS = PartLimits(5, 4)


def offers(part: KernelGraph) -> Offers:
    us = floor_us(part, H200, LIMITS.inputs) if takes(part) else None
    return () if us is None else ((1, us),)


def us(part: KernelGraph) -> float | None:
    return offers(part)[0][1] if offers(part) else None


def merged(program: KernelGraph, kernel_us: float = 0.0) -> tuple[Partition, Partition]:
    cut = partition_program(program, H200, LIMITS, us)
    return cut, Merger(program, H200, LIMITS).merged(cut, offers, kernel_us)


@pytest.mark.parametrize("seed", range(40))
def test_each_operator_once_and_in_order(seed: int) -> None:
    program = random_program(seed, 20)
    before, after = merged(program)
    assert len(after.parts) <= len(before.parts)
    assert sorted(n for part in after.parts for n in part.operators) == list(range(20))
    known = set(range(len(program.inputs)))
    for part in after.parts:
        assert known.issuperset(part.reads)
        known.update(part.results)
        piece = extract_operators(program, part.operators)
        assert (piece.program, piece.reads, piece.results) == (part.program, part.reads, part.results)
    assert known.issuperset(program.outputs)
    assert after == merged(program)[1]


def test_some_are_merged() -> None:
    parts = [part for seed in range(40) for part in merged(random_program(seed, 20))[1].parts]
    assert sum(len(part.results) > 1 for part in parts) > 20


def exps(*reads: int) -> tuple[Op, ...]:
    return tuple(Op(OpKind.EXP, (i,)) for i in reads)


def test_what_lies_between_two_parts_keeps_them_apart() -> None:
    """X goes into exp and into a product with the softmax of that exp, which no search takes here."""
    x = w.tensor("X", 64, 64)
    ops = (Op(OpKind.EXP, (0,)), w.op(OpKind.SOFTMAX, 1, dim=1), Op(OpKind.MUL, (0, 2)))
    program = KernelGraph((x,), ops, (1, 2, 3))

    def no_softmax(part: KernelGraph) -> Offers:
        return () if any(isinstance(op, Op) and op.kind is OpKind.SOFTMAX for op in part.ops) else ((1, 1.0),)

    cut = partition_program(program, H200, LIMITS, lambda part: no_softmax(part)[0][1] if no_softmax(part) else None)
    assert len(cut.parts) == 3
    assert Merger(program, H200, LIMITS).merged(cut, no_softmax).parts == cut.parts


def test_merging_follows_what_it_saves() -> None:
    program = KernelGraph((w.tensor("X", 64, 64),), exps(0, 0, 0), (1, 2, 3))

    def priced(part: KernelGraph) -> Offers:
        return ({1: ((1, 5.0),), 2: ((1, 8.0),), 3: ((1, 20.0),)})[len(part.ops)]

    cut = partition_program(program, H200, LIMITS, lambda part: priced(part)[0][1])
    pairs = Merger(program, H200, LIMITS).merged(cut, priced)
    assert sorted(len(part.operators) for part in pairs.parts) == [1, 2]
    # As if every kernel took 10 us more: all three save 15, two of them 12.
    wide = Merger(program, H200, LIMITS)
    assert sorted(len(part.operators) for part in wide.merged(cut, priced, 10.0).parts) == [3]


def test_a_result_beyond_the_limits_is_not_merged() -> None:
    inputs = tuple(w.tensor(f"t{i}", 16, 16) for i in range(2))
    chain = [Op(OpKind.EXP, (0,))]
    chain += [Op(OpKind.SQUARE, (1 + i,)) for i in range(1, 4)]
    chain.append(Op(OpKind.MATMUL, (5, 1)))  # a program with a product is not cut further
    program = KernelGraph(inputs, (*chain, Op(OpKind.ADD, (0, 1))), (6, 7))
    cut = partition_program(program, H200, LIMITS, us)
    small = PartLimits(4, 4)
    assert any(len(part.results) == 2 for part in Merger(program, H200, LIMITS).merged(cut, offers).parts)
    assert all(len(part.results) == 1 for part in Merger(program, H200, small).merged(cut, offers).parts)


def rotation(inputs: int, first: int, x: int) -> tuple[Op, ...]:
    """x * cos + concat(-x's second half, its first half) * sin, where cos and sin are tensors 2 and 3."""
    end, half = inputs + first, Attrs(dim=1)
    return (
        Op(OpKind.SLICE, (x,), replace(half, start=8, stop=16)),
        Op(OpKind.SLICE, (x,), replace(half, start=0, stop=8)),
        Op(OpKind.SCALE, (end,), Attrs(factor=Fraction(-1))),
        Op(OpKind.CONCAT, (end + 2, end + 1), half),
        Op(OpKind.MUL, (x, 2)),
        Op(OpKind.MUL, (end + 3, 3)),
        Op(OpKind.ADD, (end + 4, end + 5)),
    )


def test_what_reads_more_than_a_kernel_may_is_merged_where_it_is_one_in_another_form() -> None:
    """Each of two rotations reads five tensors, concatenation included, which no kernel does; both are one kernel."""
    inputs = (w.tensor("q", 32, 16), w.tensor("k", 8, 16), w.tensor("cos", 1, 16), w.tensor("sin", 1, 16))
    program = KernelGraph(inputs, (*rotation(4, 0, 0), *rotation(4, 7, 1)), (10, 17))
    cut, found = merged(program)
    assert sum(part.searched for part in cut.parts) == 2
    (part,) = [part for part in found.parts if part.searched]
    assert part.results == (10, 17)
    assert len(part.reads) > LIMITS.inputs


def two_offers(part: KernelGraph) -> Offers:
    """One kernel at the floor, or two at less."""
    return tuple(offer for _, least in offers(part) for offer in ((1, least + 2.0), (2, least / 2)))


def ways(program: KernelGraph, block: list[int]) -> Offers:
    """What may take the place of operators that are a part, with their kernels and nanoseconds."""
    if len(block) > LIMITS.operators or used_outside(program, block) != 1:
        return ()
    if len(block) == 1 and is_view(program, len(program.inputs) + block[0]):
        return ((0, 0.0),)
    graph, _, _ = extract_subprogram(program, sorted(block))
    own = ((1, estimate(graph, H200).us),) if len(block) == 1 else ()
    return tuple((kernels, round(1000 * one)) for kernels, one in two_offers(graph) or own)


def front_of(found: set[tuple[int, float]]) -> list[tuple[int, float]]:
    out: list[tuple[int, float]] = []
    for cost, kernels in sorted((cost, kernels) for kernels, cost in found):
        if not out or kernels < out[-1][0]:
            out.append((kernels, cost))
    return out


@pytest.mark.parametrize("seed", range(12))
def test_the_front_is_that_of_all_partitions(seed: int) -> None:
    program = random_program(seed, 6)
    every: set[tuple[int, float]] = set()
    for blocks in set_partitions(list(range(6))):
        sums: set[tuple[int, float]] = {(0, 0.0)}
        for block in blocks:
            sums = {(a + kernels, b + cost) for a, b in sums for kernels, cost in ways(program, block)}
        every |= sums
    found = []
    for one in partitions(program, H200, LIMITS, two_offers):
        chosen = [dict(ways(program, list(part.operators)))[part.kernels or 0] for part in one.parts]
        found.append((sum(part.kernels or 0 for part in one.parts), sum(chosen)))
    assert found == front_of(every)
    assert seed or len(found) > 1


def _cover(kernels: int, cost: float) -> Cover:
    """A cover of a certain number of kernels; only that they differ matters."""
    x = w.tensor("X", 8, 8)
    return Cover((), KernelGraph((x,), exps(*range(kernels)), (kernels,)), cost, kernels)


def test_which_covers_are_reported() -> None:
    def listed(*covers: tuple[int, float], unfused: float = 10.0) -> list[tuple[int, float]]:
        return [(one.kernels, one.us) for one in select_covers([_cover(*pair) for pair in covers], unfused)]

    assert listed((5, 3.0), (4, 4.0), (2, 6.0), (1, 11.0)) == [(5, 3.0), (4, 4.0), (2, 6.0)]  # 11 us is above unfused
    assert listed((5, 1.0), (4, 2.0), (3, 3.0), (2, 4.0), (1, 5.0)) == [(5, 1.0), (4, 2.0), (3, 3.0), (1, 5.0)]
    assert listed((2, 1.0), (3, 2.0), (4, 3.0), (5, 4.0)) == [(2, 1.0), (3, 2.0), (4, 3.0)]  # none has fewer: the next
    assert listed((3, 10.0), (3, 10.0)) == [(3, 10.0)]


def test_what_leaves_products_to_a_library_is_reported() -> None:
    """However many fused covers cost less, and although it is not the one of fewest kernels."""
    kernel = w.kernel(
        (2,), (96, 1, 1), 1, [w.load((1, None, None))], [w.op(OpKind.ACCUM_SUM, 0)], [(1, (1, None, None))]
    )
    product = w.op(OpKind.MATMUL, 0, 1)
    library = replace(w.rmsnorm(), ops=(product, kernel))
    unfused = replace(w.rmsnorm(), ops=(product, w.op(OpKind.EXP, 2)))
    fused = [Cover((), w.rmsnorm_fused(grid=48 * 2**n), 1.0 + n, 5 - n) for n in range(4)]
    assert [uses_library_products_only(graph) for graph in (library, unfused, *(one.graph for one in fused))] == [
        True
    ] * 2 + [False] * 4
    found = select_covers([*fused, Cover((), library, 8.0, 2), Cover((), unfused, 9.0, 2)], 9.0)
    assert [one.us for one in found] == [1.0, 2.0, 3.0, 4.0, 8.0, 9.0]


def test_covers_that_differ_in_the_order_of_operators_are_one() -> None:
    x = w.tensor("X", 8, 8)
    exp, tanh = Op(OpKind.EXP, (0,)), Op(OpKind.TANH, (0,))
    one = KernelGraph((x,), (exp, tanh, Op(OpKind.SUB, (1, 2))), (3,))
    other = KernelGraph((x,), (tanh, exp, Op(OpKind.SUB, (2, 1))), (3,))
    third = KernelGraph((x,), (tanh, exp, Op(OpKind.SUB, (1, 2))), (3,))
    assert one != other
    found = select_covers([Cover((), graph, 5.0, 3) for graph in (one, other, third)], 10.0)
    assert [cover.graph for cover in found] == [one, third]


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merged")


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("make", "kernels"), [(projections, 1), (gates, 1), (sum_and_norm, 1), (long_chain, 1)])
def test_one_kernel(make: Callable[[], KernelGraph], kernels: int, rooms: Path) -> None:
    """Searched, proved, checked from the files alone, lowered, and run on the emulator."""
    program = make()
    found = search_covers(program, Settings(workers=1), rooms / make.__name__, name=make.__name__)
    assert found.result is not None
    assert found.record.best.kernels == kernels < found.record.unfused_kernels == kernel_count(program)
    assert found.record.covers[-1].kernels > kernels
    for one in found.covers:
        agree(program, one.graph)
    assert check([str(rooms / make.__name__), "--jobs", "1"]) == 0
    made = build(found.result.graph, program, H200)
    assert len(made.executable.launches) == kernels
    assert compare_on_emulator(made, scales=(0.1, 1.0)).answer == "within"


def test_without_merging_it_is_dearer(rooms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = projections((64, 64))
    found = search_covers(program, Settings(**TINY), rooms / "merged", name="merged")
    monkeypatch.setattr(Merger, "merged", lambda self, cut, prices, kernel_us=0.0: cut)
    alone = search_covers(program, Settings(**TINY), rooms / "alone", name="alone")
    assert found.record.best.estimated_us < alone.record.best.estimated_us <= alone.record.unfused_us
    assert alone.record.best.graph_digest in {one.graph_digest for one in found.record.covers}

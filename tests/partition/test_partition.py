"""Partitions: whole, ordered, within the limits, and the cheapest of all that there are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from mirage_formal.check.partitioning.subgraphs import extract_operators
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import is_view
from mirage_formal.graph.verifier import faults
from mirage_formal.partition.partition import (
    Partition,
    PartLimits,
    Subgraph,
    extract_subprogram,
    floor_us,
    is_single_kernel_best,
    partition_program,
)
from mirage_formal.support.errors import ProgramError
from tests.kit.graphs import workloads as w
from tests.kit.graphs.workloads import layers
from tests.kit.paths import REPOSITORY

H200 = load_target("h200")
EXAMPLES = REPOSITORY / "examples"


def random_program(seed: int, count: int) -> KernelGraph:
    """Operators over square tensors of several sizes of which some are read often, some never, some shown."""
    rng = random.Random(seed)
    size = rng.choice((16, 256, 2048))
    inputs = tuple(w.tensor(f"t{i}", size, size) for i in range(3))
    ops: list[Op] = []
    for number in range(count):
        recent = range(max(0, number - 1), number + 3)
        a, b = rng.choice(recent), rng.choice(range(number + 3))
        kind = rng.choice((OpKind.ADD, OpKind.MUL, OpKind.EXP, OpKind.MATMUL, OpKind.TRANSPOSE, OpKind.SUB))
        match kind:
            case OpKind.EXP:
                ops.append(Op(kind, (a,)))
            case OpKind.TRANSPOSE:
                ops.append(Op(kind, (a,), Attrs(perm=(1, 0))))
            case _:
                ops.append(Op(kind, (a, b)))
    shown = {count + 2, *rng.sample(range(3, count + 3), rng.randint(0, 1))}
    return KernelGraph(inputs, tuple(ops), tuple(sorted(shown)))


def takes(part: KernelGraph) -> bool:
    """Everything without a transpose."""
    return all(isinstance(op, Op) and op.kind is not OpKind.TRANSPOSE for op in part.ops)


def set_partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for others in set_partitions(rest):
        yield [[first], *others]
        for i, block in enumerate(others):
            yield [*others[:i], [first, *block], *others[i + 1 :]]


def used_outside(program: KernelGraph, block: list[int]) -> int:
    base = len(program.inputs)
    read = {i for n, op in enumerate(program.ops) if n not in block for i in op.operands} | set(program.outputs)
    # A result that nobody reads is its part's.
    dead = [n for n in block if not any(base + n in op.operands for op in program.ops) and base + n not in read]
    return sum(base + n in read for n in block) + len(dead)


def price(part: KernelGraph, limits: PartLimits, taken: Callable[[KernelGraph], bool] = takes) -> float | None:
    return floor_us(part, H200, limits.inputs) if taken(part) else None


def parted(program: KernelGraph, limits: PartLimits, taken: Callable[[KernelGraph], bool] = takes) -> Partition:
    return partition_program(program, H200, limits, lambda part: price(part, limits, taken))


def nanos(program: KernelGraph, block: list[int], limits: PartLimits) -> int | None:
    graph, _, _ = extract_subprogram(program, sorted(block))
    floor = price(graph, limits)
    if floor is None:
        return None if len(block) > 1 else round(1000 * estimate(graph, H200).us)
    return round(1000 * floor)


def cheapest(program: KernelGraph, limits: PartLimits) -> tuple[int, int]:
    """Cost and, negated, number of parts of the best partition, by looking at all of them."""
    known: dict[tuple[int, ...], int | None] = {}
    best = (10**18, 0)
    for blocks in set_partitions(list(range(len(program.ops)))):
        total = 0
        for block in blocks:
            key = tuple(sorted(block))
            if key not in known:
                fits = len(block) <= limits.operators and used_outside(program, block) == 1
                known[key] = nanos(program, block, limits) if fits else None
            cost = known[key]
            if cost is None:
                break
            total += cost
        else:
            best = min(best, (total, -len(blocks)))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_of_all(seed: int) -> None:
    program = random_program(seed, 7)
    limits = PartLimits(4, 3)
    found = parted(program, limits)
    parts = found.parts
    assert found.limited == 0
    costs = [nanos(program, list(part.operators), limits) for part in parts]
    assert all(cost is not None for cost in costs)
    assert (sum(cost for cost in costs if cost is not None), -len(parts)) == cheapest(program, limits)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_where_each_part_counts_for_more(seed: int) -> None:
    program = random_program(seed, 7)
    limits, more = PartLimits(4, 3), 10.0
    parts = partition_program(program, H200, limits, lambda part: price(part, limits), more).parts
    usual = parted(program, limits).parts
    views = {part.operators for part in (*parts, *usual) if is_view(program, part.results[0])}

    def us(found: Sequence[Subgraph], kernel_us: float) -> float:
        own = [part.operators for part in found if len(part.operators) > 1 or part.operators not in views]
        costs = [nanos(program, list(operators), limits) for operators in own]
        return sum(cost for cost in costs if cost is not None) / 1000 + kernel_us * len(own)

    assert us(parts, more) <= us(usual, more)
    assert us(parts, 0.0) >= us(usual, 0.0)


@pytest.mark.parametrize("seed", range(40))
def test_each_operator_once_and_in_order(seed: int) -> None:
    program = random_program(seed, 24)
    limits = PartLimits(6, 4)
    parts = parted(program, limits).parts
    assert sorted(n for part in parts for n in part.operators) == list(range(24))
    known = set(range(len(program.inputs)))
    for part in parts:
        assert known.issuperset(part.reads)
        known.update(part.results)
        assert len(part.operators) <= limits.operators
        assert part.searched == takes(part.program)
        assert part.searched or len(part.operators) == 1
        assert faults(part.program) == []
    assert parts == parted(program, limits).parts


@pytest.mark.parametrize("seed", range(20))
def test_the_checker_takes_out_the_same_parts(seed: int) -> None:
    program = random_program(seed, 12)
    for part in parted(program, PartLimits(5, 4)).parts:
        piece = extract_operators(program, part.operators)
        assert (piece.program, piece.reads, piece.results) == (part.program, part.reads, part.results)


def test_equal_layers_are_equal_programs() -> None:
    parts = parted(layers(3), PartLimits(6, 4)).parts
    wide = [part.program for part in parts if len(part.operators) == 6]
    assert len(wide) == 3
    assert len(set(wide)) == 1


def test_sets_that_are_not_looked_at_are_counted() -> None:
    """A sum of thirteen chains: more sets below the last operators than are looked at."""
    inputs = tuple(w.tensor(f"t{i}", 16, 16) for i in range(13))
    ops = [Op(OpKind.EXP, (i,)) for i in range(13)]
    ops += [Op(OpKind.SQUARE, (13 + i,)) for i in range(13)]
    last = 26
    for i in range(27, 39):
        ops.append(Op(OpKind.ADD, (last, i)))
        last = len(inputs) + len(ops) - 1
    program = KernelGraph(inputs, tuple(ops), (last,))
    found = parted(program, PartLimits(24, 4), lambda part: len(part.ops) < 3)
    assert 0 < found.limited < len(ops)
    assert sorted(n for part in found.parts for n in part.operators) == list(range(len(ops)))
    assert parted(program, PartLimits(3, 4)).limited == 0


def test_graph_defined_kernels_are_refused() -> None:
    with pytest.raises(ProgramError, match="predefined operators"):
        parted(w.ntrans_fused(n=512), PartLimits(6, 4))


def test_a_chain_of_wide_products_is_cut_and_attention_is_not() -> None:
    """Few rows: letting the inner product cross costs less than partial sums of every block, unless it is wide."""
    x, up, down = w.tensor("X", 1, 4096), w.tensor("U", 4096, 14336), w.tensor("D", 14336, 4096)
    chain = KernelGraph((x, up, down), (Op(OpKind.MATMUL, (0, 1)), Op(OpKind.MATMUL, (3, 2))), (4,))
    assert floor_us(chain, H200, 4) > 2 * floor_us(chain, H200, 4, cuts=False)  # one block draws little
    assert is_single_kernel_best(chain, H200) is False  # another order of products may be better
    assert [part.operators for part in parted(chain, PartLimits(9, 4)).parts] == [(0,), (1,)]
    q, k, v = w.tensor("Q", 8, 4, 128), w.tensor("K", 8, 128, 4096), w.tensor("V", 8, 4096, 128)
    ops = (Op(OpKind.MATMUL, (0, 1)), Op(OpKind.EXP, (3,)), Op(OpKind.MATMUL, (4, 2)))
    attention = KernelGraph((q, k, v), ops, (5,))
    assert len(parted(attention, PartLimits(9, 4)).parts) == 1
    assert not is_single_kernel_best(attention, H200)  # partial sums


def test_several_kernels_are_searched_where_there_is_something_between_them() -> None:
    """Attention that fills the device is one kernel or its parts; products pass sums and factors of rows."""

    def attention(heads: int, tokens: int, *between: Op) -> KernelGraph:
        q, k, v = (w.tensor(name, heads, tokens, tokens) for name in "QKV")
        mask, row = w.tensor("M", heads, tokens, tokens), w.tensor("R", heads, tokens, 1)
        last = Op(OpKind.MATMUL, (5 + len(between), 2))
        ops = (Op(OpKind.MATMUL, (0, 1)), *between, last)
        return KernelGraph((q, k, v, mask, row), ops, (5 + len(ops) - 1,))

    for heads, tokens in ((24, 128), (12, 512)):
        assert is_single_kernel_best(attention(heads, tokens, Op(OpKind.EXP, (5,))), H200)
        assert is_single_kernel_best(attention(heads, tokens, Op(OpKind.MUL, (5, 3))), H200)
        assert not is_single_kernel_best(attention(heads, tokens, Op(OpKind.MUL, (5, 4))), H200)
        assert not is_single_kernel_best(attention(heads, tokens, Op(OpKind.ADD, (5, 3))), H200)


def test_few_long_rows_are_worth_several_kernels() -> None:
    def summed(rows: int) -> KernelGraph:
        return KernelGraph((w.tensor("X", rows, 32768),), (Op(OpKind.SUM, (0,), Attrs(dim=1)),), (1,))

    assert not is_single_kernel_best(summed(1), H200)
    assert is_single_kernel_best(summed(4096), H200)


def test_short_attention_is_expected_to_be_one_kernel() -> None:
    """24 products of 128 rows fill a part of the device only, which is less than a launch and the scores cost."""
    q, k, v = w.tensor("Q", 24, 128, 64), w.tensor("K", 24, 64, 128), w.tensor("V", 24, 128, 64)
    ops = (Op(OpKind.MATMUL, (0, 1)), Op(OpKind.SOFTMAX, (3,), Attrs(dim=2)), Op(OpKind.MATMUL, (4, 2)))
    assert len(parted(KernelGraph((q, k, v), ops, (5,)), PartLimits(9, 4)).parts) == 1


@pytest.mark.parametrize("batch", [1, 8])
def test_a_decoder_layer_is_cut_where_an_engineer_would(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_BATCH", str(batch))
    program = load_programs(EXAMPLES / "decoder_layer.py")["decoder_layer"]

    def fusable(part: KernelGraph) -> bool:
        return all(isinstance(op, Op) and op.kind is not OpKind.RESHAPE for op in part.ops)

    found = parted(program, PartLimits(9, 4), fusable)
    parts = found.parts
    assert found.limited == 0
    kinds = [tuple(op.kind.value for op in part.program.ops if isinstance(op, Op)) for part in parts]
    assert [k for k in kinds if k != ("reshape",)] == [
        ("rms_norm",),
        *([("matmul",)] * 3),
        *([("mul", "matmul", "mul", "add")] * 2),
        ("matmul", "scale", "exp"),
        ("matmul", "scale", "exp", "sum", "add", "matmul", "mul", "add", "div"),
        ("matmul", "add"),
        ("rms_norm", "matmul", "silu", "matmul", "mul"),
        ("matmul", "add"),
    ]
    assert sum(k == ("reshape",) for k in kinds) == 6

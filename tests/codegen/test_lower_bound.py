"""Lower bound of the cost model: below every graph of small spaces, and near the best of the examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.lower_bound import COUNTS, lower_bounds
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.types import Band, DTensor, DType, row_major
from mirage_formal.graph.verdict import Candidate, Probable, Unknown, Verdict
from mirage_formal.revalidate.space_comparison import EnumeratedSpace, find_equal_graphs
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.known_incompleteness import is_equal, needs_cancellation
from mirage_formal.search.space import SearchSpace
from tests.search.engine_comparison import K, gated, matmul, op, program, rmsnorm, search, tensor, tiny

TARGET = load_target("h200")


def least(graph: KernelGraph, kernels: int) -> float:
    """The bound of graphs with so many kernels."""
    return next(one.us for one in lower_bounds(graph, TARGET) if one.kernels == min(kernels, COUNTS[-1]))


def chain(*kinds: K, shape: tuple[int, ...] = (4, 8)) -> KernelGraph:
    """Functions of one element, and sums along the last dim, one after another."""
    ops = [op(kind, i, dim=1 if kind in {K.SUM, K.RMS_NORM} else None) for i, kind in enumerate(kinds)]
    return program((tensor("X", *shape),), *ops)


def pair(kind: K, *kinds: K, shape: tuple[int, ...] = (4, 8)) -> KernelGraph:
    """An operator of two inputs, and then functions of one element."""
    own = [op(one, i + 2, dim=1 if one in {K.SUM, K.RMS_NORM} else None) for i, one in enumerate(kinds)]
    return program((tensor("X", *shape), tensor("Y", *shape)), op(kind, 0, 1), *own)


def chain_of_product(*kinds: K) -> KernelGraph:
    """A product, and then functions of one element."""
    source = matmul(2, 4, 4)
    return program(source.inputs, op(K.MATMUL, 0, 1), *(op(kind, 2 + i) for i, kind in enumerate(kinds)))


def few(most: int, *kinds: K, kernels: int = 1) -> SearchSpace:
    """A space of these operators; accumulators are always among them."""
    space = tiny(kernels=kernels, defined=kernels, max_block_ops=most)
    return replace(space, kernel_ops=tuple(k for k in space.kernel_ops if k in kinds), block_ops=(*kinds, K.ACCUM_SUM))


#: Programs in spaces that are enumerated without pruning.
SPACES: dict[str, tuple[Callable[[], KernelGraph], SearchSpace]] = {
    "exp": (lambda: chain(K.EXP), few(3, K.EXP)),
    "exp-sqrt": (lambda: chain(K.EXP, K.SQRT), few(4, K.EXP, K.SQRT)),
    "exp-sum": (lambda: chain(K.EXP, K.SUM), few(4, K.EXP, K.SUM)),
    "sum": (lambda: chain(K.SUM), few(3, K.SUM, K.ACCUM_SUM_LAST)),
    "sum-tall": (lambda: chain(K.SUM, shape=(16, 2)), few(3, K.SUM, K.ACCUM_SUM_LAST)),
    "norm": (lambda: chain(K.RMS_NORM), few(3, K.RMS_NORM)),
    "norm-silu": (lambda: chain(K.RMS_NORM, K.SILU), few(4, K.RMS_NORM, K.SILU)),
    "square-sum-sqrt": (lambda: chain(K.SQUARE, K.SUM, K.SQRT), few(4, K.SQUARE, K.SUM, K.SQRT)),
    "add": (lambda: pair(K.ADD), few(3, K.ADD)),
    "mul-sum": (lambda: pair(K.MUL, K.SUM), few(3, K.MUL, K.SUM)),
    "div-exp": (lambda: pair(K.DIV, K.EXP), few(3, K.DIV, K.EXP)),
    "add-norm": (lambda: pair(K.ADD, K.RMS_NORM), few(3, K.ADD, K.RMS_NORM)),
    "add-tanh-sum": (lambda: pair(K.ADD, K.TANH, K.SUM), few(4, K.ADD, K.TANH, K.SUM)),
    "mul-two-kernels": (lambda: pair(K.MUL, K.EXP), few(1, K.MUL, K.EXP, kernels=2)),
    "exp-two-kernels": (lambda: chain(K.EXP, K.SQRT), few(1, K.EXP, K.SQRT, kernels=2)),
    "sum-two-kernels": (lambda: chain(K.SUM), few(1, K.SUM, kernels=2)),
    "matmul": (lambda: matmul(2, 4, 6), few(3, K.MATMUL)),
    "matmul-square": (lambda: matmul(4, 4, 4), few(3, K.MATMUL)),
    "matmul-two-kernels": (lambda: matmul(2, 4, 2), few(1, K.MATMUL, kernels=2)),
    "rmsnorm": (lambda: rmsnorm(2, 4, 6), few(3, K.MATMUL, K.RMS_NORM)),
    "matmul-tall": (lambda: matmul(8, 2, 2), few(3, K.MATMUL)),
    "matmul-exp": (
        lambda: program((tensor("X", 2, 4), tensor("W", 4, 4)), op(K.MATMUL, 0, 1), op(K.EXP, 2)),
        few(3, K.MATMUL, K.EXP),
    ),
    "sigmoid-sum": (lambda: chain(K.SIGMOID, K.SUM), few(4, K.SIGMOID, K.SUM)),
}


@pytest.mark.parametrize("name", SPACES)
def test_no_graph_of_a_small_space_is_estimated_below_the_bound(name: str) -> None:
    build, space = SPACES[name]
    source = build()

    def accept(candidate: Candidate) -> Verdict:
        return Probable(1, None) if is_equal(source, candidate.graph) else Unknown("differs at a random point")

    options = SearchOptions(engine="exhaustive", accept=accept)
    every = search(ExhaustiveEngine(), source, space, SearchOptions(engine="exhaustive", accept=accept, prune=False))
    assert every
    # Code that shares nothing with the engine enumerates the space again, and finds the same.
    again = find_equal_graphs(source, space, 0)
    assert isinstance(again, EnumeratedSpace)
    assert again.survivors == every
    for graph in (source, *again.survivors.values()):
        assert estimate(graph, TARGET).us >= least(source, kernel_count(graph)) * (1 - 1e-12)
    # Pruning loses no survivor, but for those that cancel.
    pruned = search(ExhaustiveEngine(), source, space, options)
    assert pruned.keys() <= every.keys()
    assert all(needs_cancellation(source, graph) for key, graph in every.items() if key not in pruned)


@pytest.mark.parametrize(
    ("graph", "share"),
    [
        (rmsnorm(2, 4096, 6144), 0.9),
        (gated(8, 4096, 4096), 0.9),
        (matmul(16, 4096, 4096), 0.8),
        (program((tensor("X", 4096, 4096),), op(K.EXP, 0)), 0.7),
    ],
)
def test_a_bound_of_bytes_is_near_what_one_kernel_takes(graph: KernelGraph, share: float) -> None:
    (one, two, *_) = lower_bounds(graph, TARGET)
    floor = sum(t.tensor.bytes for t in graph.inputs) / (TARGET.bandwidth_gbs * TARGET.model.bandwidth_efficiency * 1e3)
    assert one.body_us >= floor
    assert one.us >= share * (floor + TARGET.model.launch_us + TARGET.model.latency_us)
    assert one.us < two.us < estimate(graph, TARGET).us * 2
    assert one.us == pytest.approx(one.launch_us + one.body_us)


def test_a_block_reads_the_rows_on_which_its_part_of_the_output_depends() -> None:
    """Cut along the columns, each block of a norm reads whole rows; of a sum of two tensors only its own part."""
    whole, parts = pair(K.ADD, K.RMS_NORM, shape=(2, 65536)), pair(K.ADD, K.EXP, shape=(2, 65536))
    assert lower_bounds(whole, TARGET)[0].us > lower_bounds(parts, TARGET)[0].us


def test_an_input_without_influence_counts_nothing() -> None:
    big, small = tensor("X", 4096, 4096), tensor("Y", 4, 4)
    ops = (Op(K.SCALE, (0,), Attrs(factor=Fraction(0))), op(K.SUM, 2, dim=1), op(K.SUM, 1, dim=1))
    dead = KernelGraph((big, small), ops, (4,))
    assert lower_bounds(dead, TARGET)[0].us < 2.0
    alive = KernelGraph((big, small), ops, (3,))
    assert lower_bounds(alive, TARGET)[0].us < 2.0  # 0 x is 0, whatever x is
    assert lower_bounds(program((big,), op(K.SUM, 0, dim=1)), TARGET)[0].us > 6.0


def test_a_masked_input_need_not_be_read_whole() -> None:
    """Tiles of a causal mask that are empty are skipped, so of large inputs no bytes are counted; no mask is read."""
    rows = 1 << 13
    mask = Input("M", DTensor((rows, rows), DType.BOOL), row_major((rows, rows)), band=Band(None, 0))
    ops = (op(K.EXP, 0), Op(K.SELECT, (1, 2), Attrs(value=Fraction(0))))
    masked = KernelGraph((tensor("X", rows, rows), mask), ops, (3,))
    found = lower_bounds(masked, TARGET)[0]
    written = rows * rows * 2 / (TARGET.bandwidth_gbs * TARGET.model.bandwidth_efficiency * 1e3)
    assert found.body_us == pytest.approx(written)
    (plain, *_) = lower_bounds(KernelGraph((tensor("X", rows, rows),), (op(K.EXP, 0),), (1,)), TARGET)
    assert plain.body_us > 1.5 * found.body_us


def test_outputs_without_a_value_say_nothing() -> None:
    """The reference of 0 / 0 is no number, which neither warns nor counts as a dependence."""
    zero = Op(K.SCALE, (0,), Attrs(factor=Fraction(0)))
    lost = KernelGraph((tensor("X", 64, 64),), (zero, op(K.DIV, 1, 1)), (2,))
    assert lower_bounds(lost, TARGET)[0].us > 0


def test_what_no_operator_reads_counts_nothing_even_if_it_is_an_output() -> None:
    big, small = tensor("X", 4096, 4096), tensor("Y", 4, 4)
    graph = KernelGraph((big, small), (op(K.EXP, 1),), (0, 2))
    assert lower_bounds(graph, TARGET)[0].us < 2.0


@pytest.mark.parametrize("graph", [rmsnorm(2, 4096, 6144), chain(K.EXP, shape=(4096, 4096)), matmul(16, 256, 4096)])
def test_long_loops_are_not_forgotten(graph: KernelGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewer numbers of iterations are tried one by one, the lower is the bound."""
    many = lower_bounds(graph, TARGET)[0].us
    monkeypatch.setattr("mirage_formal.codegen.lower_bound._MOST_ITERATIONS", 2)
    assert lower_bounds(graph, TARGET)[0].us <= many

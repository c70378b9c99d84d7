"""Values that are kept at a point: outputs, failures and logs are what they are without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verdict import Different, Probable
from mirage_formal.prove.identity_testing import modular_arithmetic
from mirage_formal.prove.identity_testing.draw import field_point
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from mirage_formal.prove.identity_testing.modular_arithmetic import BLOCK, Modulus, Residues, to_uint64
from mirage_formal.prove.identity_testing.point import Point
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.prove.identity_testing.tape_evaluation import Inputs, Outcome, UndefinedStep, run_tape
from mirage_formal.prove.identity_testing.value_cache import KEPT_BYTES, ValueCache
from mirage_formal.semantics.straight_line_trace import (
    NotLax,
    ResiduePart,
    join_sums_of_products,
    needed_parts,
    record_tape,
)
from tests.kit.graphs import workloads as w
from tests.kit.graphs.random_graphs import EXPONENTIALS, ORDERED, ROOTS, random_graph

K = OpKind
PAIR = field_pair(16)
LINEAR = frozenset(K) - ORDERED - ROOTS - EXPONENTIALS - {K.EXP, K.DIV}
PLACE = field_point(3, 0, PAIR)


def program(shapes: Sequence[Shape], *ops: Op) -> KernelGraph:
    inputs = tuple(w.tensor(f"t{i}", *shape) for i, shape in enumerate(shapes))
    return KernelGraph(inputs, ops, (len(inputs) + len(ops) - 1,))


def read(graph: KernelGraph) -> Inputs:
    """Inputs by number and part: graphs with inputs of the same shapes read the same ones."""
    return Point(3, 4, 0, PLACE, tuple(i.tensor for i in graph.inputs)).read


def evaluated(graph: KernelGraph, inputs: Inputs, kept: ValueCache | None) -> Outcome | NotLax:
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    return wanted if isinstance(wanted, NotLax) else run_tape(tape, wanted, PLACE, inputs, kept)


def same(one: Outcome | NotLax, other: Outcome | NotLax) -> bool:
    if isinstance(one, UndefinedStep):
        assert isinstance(other, UndefinedStep)
        at = (one.reader, one.step, one.part, one.reason) == (other.reader, other.step, other.part, other.reason)
        return at and np.array_equal(one.bad, other.bad)
    if isinstance(one, tuple):
        assert isinstance(other, tuple)
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    return one == other


@pytest.mark.parametrize("most", [0, 100, 1000, KEPT_BYTES])
@pytest.mark.parametrize("kinds", [LINEAR | EXPONENTIALS, LINEAR | ROOTS | {K.DIV}])
def test_outcomes_are_those_without(kinds: frozenset[OpKind], most: int) -> None:
    """Random graphs, each beside those that end in its other tensors."""
    rng = random.Random(7)
    defined = undefined = 0
    for _ in range(60):
        graph = random_graph(rng, kinds)
        inputs, kept = read(graph), ValueCache(most)
        others = [replace(graph, outputs=(number,)) for number in range(graph.outputs[0])]
        for each in (*others, graph, *reversed(others)):
            expected = evaluated(each, inputs, None)
            assert same(expected, evaluated(each, inputs, kept))
            defined += isinstance(expected, tuple)
            undefined += isinstance(expected, UndefinedStep)
    assert defined > 50
    assert K.DIV not in kinds or undefined > 5


X = ((4, 6), (6, 4))
PRODUCT = w.op(K.MATMUL, 0, 1)
#: Programs over the same inputs that differ in one thing in front of their last product or sum, or in that itself.
NEAR = {
    "operands": (w.op(K.MATMUL, 1, 0), w.op(K.SUM, 2, dim=1)),
    "rows": (PRODUCT, w.op(K.SUM, 2, dim=0)),
    "columns": (PRODUCT, w.op(K.SUM, 2, dim=1)),
    "factor 2": (w.op(K.SCALE, 0, factor=Fraction(2)), w.op(K.MATMUL, 2, 1), w.op(K.SUM, 3, dim=1)),
    "factor 3": (w.op(K.SCALE, 0, factor=Fraction(3)), w.op(K.MATMUL, 2, 1), w.op(K.SUM, 3, dim=1)),
    "square": (w.op(K.SQUARE, 0), w.op(K.MATMUL, 2, 1), w.op(K.SUM, 3, dim=1)),
    "in Z_q": (PRODUCT, w.op(K.SUM, 2, dim=1), w.op(K.EXP, 3)),
    "exp of a product": (PRODUCT, w.op(K.EXP, 2), w.op(K.SUM, 3, dim=1)),
    "exp of a factor": (w.op(K.EXP, 0), w.op(K.MATMUL, 2, 1), w.op(K.SUM, 3, dim=1)),
    "both": (w.op(K.EXP, 0), w.op(K.MATMUL, 2, 1), PRODUCT, w.op(K.EXP, 4), w.op(K.MUL, 3, 5)),
}


def test_a_value_is_that_of_its_step_its_part_and_all_before_it() -> None:
    graphs = [program(X, *ops) for ops in NEAR.values()]
    inputs, kept = read(graphs[0]), ValueCache()
    seen: set[bytes] = set()
    for graph in [*graphs, *graphs]:
        expected, found = evaluated(graph, inputs, None), evaluated(graph, inputs, kept)
        assert same(expected, found)
        assert isinstance(found, tuple)
        seen.add(found[0].tobytes())
    assert len(seen) == len(graphs)


def test_what_is_kept_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what leads to it alone; what does not fit any more is."""
    calls: list[str] = []
    product, power = Modulus.product, Modulus.multiply

    def counted_product(self: Modulus, a: Residues, b: Residues) -> Residues:
        calls.append("product")
        return product(self, a, b)

    def counted_square(self: Modulus, a: Residues, b: Residues) -> Residues:
        calls.append("square")
        return power(self, a, b)

    monkeypatch.setattr(Modulus, "product", counted_product)
    monkeypatch.setattr(Modulus, "multiply", counted_square)
    graph = program(X, *NEAR["square"])
    other = program(X, *NEAR["square"][:2], w.op(K.SCALE, 3, factor=Fraction(5)))
    inputs, kept = read(graph), ValueCache()
    for each in (graph, graph, other):
        evaluated(each, inputs, kept)
    assert calls == ["square", "product"]
    small = ValueCache(8 * 4)  # the sums alone
    evaluated(graph, inputs, small)
    evaluated(other, inputs, small)
    assert calls == ["square", "product"] * 3


def test_one_product_of_inputs_is_computed_once_however_kernels_cut_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    product = Modulus.product

    def counted(self: Modulus, a: Residues, b: Residues) -> Residues:
        calls.append(a.shape[-2:])
        return product(self, a, b)

    monkeypatch.setattr(Modulus, "product", counted)
    shapes = ((8, 6), (6, 4))
    raised = [w.op(K.RESHAPE, i, shape=(1, *shape)) for i, shape in enumerate(shapes)]
    graphs = [
        program(shapes, w.op(K.MATMUL, 0, 1)),
        program(shapes, *raised, w.op(K.MATMUL, 2, 3), w.op(K.RESHAPE, 4, shape=(8, 4))),
        program(shapes, w.op(K.SLICE, 0, dim=0, start=0, stop=4), w.op(K.MATMUL, 2, 1)),
        program(shapes, w.op(K.SLICE, 0, dim=0, start=4, stop=8), w.op(K.MATMUL, 2, 1)),
    ]
    inputs, kept = read(graphs[0]), ValueCache()
    found = [evaluated(graph, inputs, kept) for graph in graphs]
    assert calls == [(8, 6), (4, 6), (4, 6)]
    assert all(same(evaluated(graph, inputs, None), mine) for graph, mine in zip(graphs, found, strict=True))


def test_one_product_is_computed_once_however_loops_cut_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accumulator sums the products of its loop's chunks: of inputs, and of values computed alike."""
    calls: list[tuple[int, ...]] = []
    product = Modulus.product

    def counted(self: Modulus, a: Residues, b: Residues) -> Residues:
        calls.append((*a.shape, b.shape[-1]))
        return product(self, a, b)

    monkeypatch.setattr(Modulus, "product", counted)
    shapes = ((4, 12), (12, 6))
    loads = (w.load((None, None, None), 1), w.load((1, None, None), 0))
    inner = (w.op(K.MATMUL, 0, 1), w.op(K.ACCUM_SUM, 2))

    def graphs(*before: Op) -> list[KernelGraph]:
        """The product of the last tensor and the second input, by kernels with different grids and loops."""
        operands = (len(before) + 1 if before else 0, 1)
        kernels = [
            w.kernel(operands, (grid, 1, 1), loop, loads, inner, [(3, (1, None, None))])
            for grid, loop in ((1, 2), (2, 4), (3, 3), (6, 1))
        ]
        return [program(shapes, *before, w.op(K.MATMUL, *operands)), *(built(*before, one) for one in kernels)]

    def built(*ops: Op | GraphDefined) -> KernelGraph:
        return KernelGraph(program(shapes).inputs, ops, (len(shapes) + len(ops) - 1,))

    for some in (graphs(), graphs(w.op(K.SQUARE, 0), w.op(K.ADD, 2, 0))):
        inputs, kept = read(some[0]), ValueCache()
        found = [evaluated(graph, inputs, kept) for graph in some]
        assert calls == [(4, 12, 6)]
        calls.clear()
        assert all(same(evaluated(graph, inputs, None), mine) for graph, mine in zip(some, found, strict=True))
        calls.clear()


def test_a_product_that_a_loop_reads_otherwise_is_summed_apart() -> None:
    """A sum of products is one product only where nothing else reads the products and both operands vary."""
    shapes = ((4, 12), (12, 6))
    loads = (w.load((None, None, None), 1), w.load((1, None, None), 0))
    square = (w.op(K.MATMUL, 0, 1), w.op(K.SQUARE, 2))
    both = (*square, w.op(K.ACCUM_SUM, 2), w.op(K.ACCUM_SUM, 3), w.op(K.ADD, 4, 5))
    one = w.kernel((0, 1), (2, 1, 1), 3, loads, both, [(6, (1, None, None))])
    fixed = (w.load((None, None, None), 0), w.load((None, None, None)))
    rows = w.kernel(
        (0, 1), (1, 1, 1), 2, fixed, (w.op(K.MATMUL, 0, 1), w.op(K.ACCUM_SUM, 2)), [(3, (None, None, None))]
    )
    for kernel in (one, rows):
        graph = KernelGraph(program(shapes).inputs, (kernel,), (2,))
        tape = record_tape(graph)
        assert join_sums_of_products(tape) == tape.steps


def test_a_point_that_is_drawn_anew_keeps_nothing_of_what_it_was() -> None:
    """The verdicts and logs of a session are those of sessions of their own, in any order of candidates."""
    quotient = w.op(K.DIV, 0, 1)
    quotients = (quotient, w.op(K.SUM, 2, dim=1))
    one = program(((300, 250), (300, 250)), *quotients)
    inverse = (w.op(K.RECIPROCAL, 1), w.op(K.MUL, 0, 2), w.op(K.SUM, 3, dim=1))
    roots = (w.op(K.SQRT, 0), w.op(K.SQUARE, 2), w.op(K.DIV, 3, 1), w.op(K.SUM, 4, dim=1))
    candidates = [
        program(((300, 250), (300, 250)), *ops)
        for ops in (inverse, (*quotients, w.op(K.SCALE, 3, factor=Fraction(2))), roots, inverse)
    ]
    settings = FingerprintSettings(seed=5, prime_bits=16)
    session = FingerprintSession(one, settings)
    redraws = set()
    for candidate, verdict in zip(candidates, (Probable, Different, Probable, Probable), strict=True):
        expected = FingerprintSession(one, settings).check(candidate)
        assert isinstance(expected.verdict, verdict)
        assert session.check(candidate) == expected
        redraws.add(len(expected.record.draws[0].redraws))
    assert len(redraws) > 1


def test_numbers_of_steps_do_not_matter() -> None:
    """A tape in which the same steps have other numbers reads what the first has left."""
    first = program(X, *NEAR["columns"])
    second = program(X, w.op(K.SQUARE, 0), w.op(K.MATMUL, 0, 1), w.op(K.SUM, 3, dim=1))
    kept = ValueCache()
    evaluated(first, read(first), kept)
    tape = record_tape(second)
    wanted = needed_parts(tape)
    assert not isinstance(wanted, NotLax)
    known, todo = kept.begin(tape, wanted)
    assert list(known) == [(tape.outputs[0], ResiduePart.P)]
    assert todo == {}


@pytest.mark.parametrize("shape", [(3, BLOCK + 5), (2 * BLOCK + 1,), (5, 7, 1000), (BLOCK, 3, 1), (40, 1, 1 << 10)])
def test_blocks_are_the_whole(shape: Shape) -> None:
    """Elementwise functions of arrays of many blocks, with operands that broadcast and others that lie transposed."""
    field = Modulus(PAIR.p)
    rng = np.random.default_rng(0)
    a = rng.integers(0, PAIR.p, shape, dtype=np.uint64)
    b = rng.integers(0, PAIR.p, shape[::-1], dtype=np.uint64).transpose()
    narrow = rng.integers(0, PAIR.p, (*shape[:-1], 1), dtype=np.uint64).astype(np.float64)
    for other in (b, narrow, narrow.reshape(-1)[0].reshape((1,) * len(shape))):
        assert np.array_equal(field.multiply(a, other), to_uint64(a) * to_uint64(other) % np.uint64(PAIR.p))
        assert np.array_equal(
            field.subtract(a, other), (to_uint64(a) + np.uint64(PAIR.p) - to_uint64(other)) % np.uint64(PAIR.p)
        )
    assert np.array_equal(field.scale(a, 7), a * np.uint64(7) % np.uint64(PAIR.p))
    assert np.array_equal(field.offset(b, 9), (b + np.uint64(9)) % np.uint64(PAIR.p))
    sizes: list[int] = []
    modular_arithmetic.apply_in_blocks(lambda x: sizes.append(x.size) or to_uint64(x).copy(), a)  # type: ignore[func-returns-value]
    assert sum(sizes) == a.size
    assert max(sizes) <= BLOCK

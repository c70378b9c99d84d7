"""Tensors by classes, elements by cones and values with bounds, against the reference that computes everything."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from mirage_formal.graph.counterexample import DefaultValues
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.prove.counterexamples.compressed_tensor import CompressedTensor, TooManyClasses, run_compressed
from mirage_formal.prove.counterexamples.element import evaluate_element
from mirage_formal.prove.counterexamples.rounding_bounds import BoundedDomain, run_bounded, without_error
from mirage_formal.prove.counterexamples.sparse_inputs import InputPositions, Trial, make_inputs
from mirage_formal.semantics.batched_reference import BatchedDomain
from mirage_formal.semantics.float64_reference import run
from tests.kit.graphs.random_graphs import random_graph, with_masks
from tests.kit.proofs.claims import load, program

FILLS = (DefaultValues(0, 0), DefaultValues(1, 1), DefaultValues(0, 1), DefaultValues(1, 2))
GRAPHS = [random_graph(random.Random(seed), frozenset(OpKind) - {OpKind.CAST}) for seed in range(150)]
GRAPHS += [side for name in ("prove", "refute") for claim in load(name) for side in claim.tiny()]


def written_out(item: CompressedTensor) -> np.ndarray:
    """All elements of a tensor by classes."""
    values = item.values
    for axis, (extent, labels) in enumerate(zip(item.shape, item.labels, strict=True)):
        assert values.shape[axis + 1] == (1 if labels is None else labels.max() + 1)
        values = np.take(values, np.zeros(extent, dtype=int) if labels is None else labels, axis=axis + 1)
    return values


def trials(graph: KernelGraph, seed: int, count: int = 3) -> tuple[InputPositions, list[Trial]]:
    """Trials with different defaults and changed elements."""
    rng, places = random.Random(seed), InputPositions([item.tensor for item in graph.inputs])
    made = []
    for _ in range(count):
        fills = tuple(rng.choice(FILLS[: 3 if mask else 4]) for mask in places.masks)
        cells = {rng.randrange(places.total): rng.choice((-2, -1, 1, 2)) for _ in range(rng.randrange(5))}
        cells = {n: int(v > 0) if places.masks[places.locate(n)[0]] else v for n, v in cells.items()}
        made.append(Trial(fills, cells))
    return places, made


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to rounding where the reference has a value that rounding has left."""
    with np.errstate(all="ignore"):
        use = np.isfinite(expected) & np.isfinite(got) & (np.abs(expected) < 1e8)
        np.testing.assert_allclose(got[use], expected[use], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", range(8))
def test_classes_give_what_the_reference_gives_everywhere(part: int) -> None:
    for number, graph in enumerate(GRAPHS[part::8]):
        places, chosen = trials(graph, number)
        inputs = make_inputs(places, chosen, np.float64)
        found = run_compressed(graph, inputs, BatchedDomain())
        for row in range(len(chosen)):
            expected = run(graph, [written_out(item)[row] for item in inputs])
            for got, want in zip(found, expected, strict=True):
                assert got.shape == want.shape
                same(written_out(got)[row], want)


@pytest.mark.parametrize("part", range(8))
def test_an_element_is_the_reference_s(part: int) -> None:
    for number, graph in enumerate(GRAPHS[part::8]):
        rng = random.Random(number)
        drawn = [np.random.default_rng(number).integers(-2, 3, item.tensor.shape) for item in graph.inputs]
        arrays = with_masks(graph, drawn)
        for output, want in enumerate(run(graph, arrays)):
            index = tuple(rng.randrange(extent) for extent in want.shape)
            got = evaluate_element(
                graph, partial(lambda arrays, i, box: arrays[i][np.ix_(*box)], arrays), output, index
            )
            assert got is not None
            same(np.array([got]), np.array([want[index]]))


@pytest.mark.parametrize("part", range(8))
def test_bounds_hold_what_extended_precision_says(part: int) -> None:
    from mirage_formal.semantics.batched_reference import run_many

    compared = 0
    for number, graph in enumerate(GRAPHS[part::8]):
        numbers = np.random.default_rng(number)
        arrays = with_masks(graph, [numbers.normal(0, 1.5, item.tensor.shape) for item in graph.inputs])
        extended = run_many(graph, [array[None].astype(np.longdouble) for array in arrays])
        for got, want in zip(run_bounded(graph, arrays), extended, strict=True):
            with np.errstate(all="ignore"):
                # gelu's error function is float64's in every float type, exact constants are rounded to it.
                off = np.abs(got[0] - want[0]) - got[1]
                use = np.isfinite(off)
                assert (off[use] <= 1e-15 * np.abs(want[0][use])).all()
                compared += int(use.sum())
    assert compared > 100


def test_sums_count_every_coordinate() -> None:
    n = 1 << 20
    graph = program({"X": (2, n)}, lambda g, x: g.reduction(g.square(x), 1))
    places = InputPositions([graph.inputs[0].tensor])
    (found,) = run_compressed(
        graph, make_inputs(places, [Trial((DefaultValues(1, 2),), {5: 7})], np.float64), BatchedDomain()
    )
    assert written_out(found)[0].tolist() == [[n / 2 + 4 * n / 2 - 4 + 49], [n / 2 + 4 * n / 2]]


def test_a_tensor_whose_elements_all_differ_is_refused() -> None:
    n = 4096
    numbers = np.arange(n)
    item = CompressedTensor((n, n), (numbers, numbers), np.zeros((1, n, n)))
    with pytest.raises(TooManyClasses):
        run_compressed(program({"X": (n, n)}, lambda g, x: g.reshape(x, n * 2, n // 2)), [item], BatchedDomain())


def test_a_bound_grows_with_what_is_lost() -> None:
    """(x + c)^2 - (x - c)^2 over 4c is x, of which nothing is left beside a large c."""
    domain = BoundedDomain()
    for exponent, kept in ((4, True), (60, False)):
        x, c = without_error(np.array([1.0])), without_error(np.array([2.0**exponent]))
        left, right = (domain.binary(kind, x, c) for kind in (OpKind.ADD, OpKind.SUB))
        squares = [domain.unary(OpKind.SQUARE, side) for side in (left, right)]
        found = domain.binary(OpKind.DIV, domain.binary(OpKind.SUB, *squares), domain.scale(c, Fraction(4)))
        assert (found[1][0] < 1e-3) is np.bool_(kept)


def test_a_quotient_by_what_may_be_zero_has_no_bound() -> None:
    domain, one = BoundedDomain(), without_error(np.array([1.0]))
    tenth = domain.scale(one, Fraction(1, 10))
    zero = domain.binary(OpKind.SUB, domain.scale(tenth, Fraction(10)), one)
    with np.errstate(all="ignore"):
        assert domain.binary(OpKind.DIV, one, zero)[1][0] == np.inf

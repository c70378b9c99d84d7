"""Counterexamples: found for every wrong pair of the corpus, small, confirmed; none for right pairs."""

from __future__ import annotations

import json
import statistics
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal import Graph, Tensor
from mirage_formal.graph.counterexample import Counterexample, CounterexampleEntry, DefaultValues
from mirage_formal.prove.counterexamples.refute import (
    CLEAR,
    evaluate_counterexample,
    find_counterexample,
    input_arrays,
)
from mirage_formal.prove.counterexamples.trial_evaluator import WRITTEN_OUT, critical_values
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.working_set import working_set_size
from mirage_formal.support.errors import ShapeError
from tests.kit.processes import calls
from tests.kit.proofs.claims import Claim, load, pair, program
from tests.kit.sampling import number, share

SEED = 5


def _found(claim: Claim) -> Counterexample | None:
    return find_counterexample(*claim.tiny(), seed=SEED)


def test_every_wrong_pair_has_a_small_counterexample() -> None:
    found = {claim.name: _found(claim) for claim in load("refute")}
    assert [name for name, item in found.items() if item is None] == []
    changed = [len(item.entries) for item in found.values() if item is not None]
    assert statistics.median(changed) <= 5
    assert max(changed) <= 12
    values = [entry.value for item in found.values() if item is not None for entry in item.entries]
    # Others than small ones are near numbers that a pair compares with; 0 is in masks.
    near = {value for claim in load("refute") for value in critical_values(claim.tiny())}
    assert set(values) <= {-4, -3, -2, -1, 0, 1, 2, 3, 4} | near
    assert values.count(1) > 0.8 * len(values)


def test_the_reference_confirms_every_one_and_no_element_before_differs() -> None:
    for claim in load("refute"):
        left, right = claim.tiny()
        item = _found(claim)
        assert item is not None
        inputs = input_arrays(left, item)
        outputs = list(zip(float64_reference.run(left, inputs), float64_reference.run(right, inputs), strict=True))
        assert all(np.isfinite(a).all() and np.isfinite(b).all() for a, b in outputs), claim.name
        a, b = outputs[item.output]
        size = max(np.abs(a).max(), np.abs(b).max())
        assert (item.expected, item.got) == (a[item.index], b[item.index])
        assert abs(item.expected - item.got) > CLEAR * size
        flat = np.abs(a - b).ravel() > CLEAR * size
        assert not flat[: np.ravel_multi_index(item.index, a.shape)].any()
        for a, b in outputs[: item.output]:
            np.testing.assert_allclose(a, b, rtol=CLEAR)
        value = evaluate_counterexample(left, right, item)
        assert (value.expected, value.got) == (item.expected, item.got)


@pytest.mark.slow
def test_right_pairs_have_none() -> None:
    for claim in share(load("prove"), 3, 0):
        assert find_counterexample(*claim.tiny(), seed=SEED, attempts=2) is None, claim.name


def test_a_search_takes_few_trials() -> None:
    """12,000 calls at the median and 38,000 at most; benchmarks/speed.py has the time, 5 ms at the median."""
    found = []
    for claim in share(load("refute"), 2, 0):
        made = claim.tiny()
        found.append(calls(partial(find_counterexample, *made, seed=SEED), 2_000_000))
    assert statistics.median(found) < 120_000


def test_the_seed_decides() -> None:
    claim = next(item for item in load("refute") if item.name == "linear.factors_exchanged")
    assert _found(claim) == _found(claim)


def _apart(x: NDArray[Any], y: NDArray[Any]) -> bool:
    return bool(np.abs(x - y).max() > CLEAR * max(np.abs(x).max(), np.abs(y).max()))


def test_entries_are_minimal() -> None:
    """No entry can be left out."""
    for claim in load("refute")[::7]:
        left, right = claim.tiny()
        item = _found(claim)
        assert item is not None
        for entry in item.entries:
            rest = tuple(other for other in item.entries if other != entry)
            inputs = input_arrays(left, Counterexample(item.fills, rest, item.output, item.index, 0.0, 0.0))
            a, b = float64_reference.run(left, inputs), float64_reference.run(right, inputs)
            pairs = list(zip(a, b, strict=True))
            finite = all(np.isfinite(x).all() and np.isfinite(y).all() for x, y in pairs)
            assert not (finite and any(_apart(x, y) for x, y in pairs)), (claim.name, entry)


def test_defaults_are_zero_unless_a_norm_needs_more() -> None:
    zero, norm, centred = (
        find_counterexample(*pair({"X": (2, 3)}, *sides), seed=SEED)
        for sides in (
            (lambda g, x: g.exp(x), lambda g, x: g.exp(g.scale(x, 2))),
            (lambda g, x: g.rms_norm(x), lambda g, x: g.scale(g.rms_norm(x), 2)),
            (lambda g, x: g.layer_norm(x), lambda g, x: g.scale(g.layer_norm(x), 2)),
        )
    )
    assert zero is not None
    assert zero.fills == (DefaultValues(0, 0),)
    assert norm is not None
    assert norm.fills == (DefaultValues(1, 1),)
    assert centred is not None
    assert centred.fills[0].even != centred.fills[0].odd


def test_rounding_is_no_difference() -> None:
    """A tenth and a third have no exact float64; both sides compute the same, or nothing at all."""
    sides = (
        (lambda g, x: g.scale(g.scale(x, 0.1), 3), lambda g, x: g.scale(x, 0.3)),
        (lambda g, x: g.layer_norm(x), lambda g, x: g.layer_norm(g.scale(x, 0.1))),
        (lambda g, x: g.sub(g.exp(x) * g.exp(g.scale(x, -1)), g.exp(g.scale(x, 0))), lambda g, x: g.scale(x, 0)),
        (lambda g, x: g.sub(x, g.mean(x, 1)) / g.sub(x, g.mean(x, 1)), lambda g, x: g.exp(g.scale(x, 0))),
    )
    for left, right in sides:
        for seed in range(5):
            assert find_counterexample(*pair({"X": (3, 7)}, left, right), seed=seed) is None


@pytest.mark.slow
def test_what_every_float_type_loses_is_no_difference() -> None:
    """((x + c)^2 - (x - c)^2) / 4c is x; beside a large c, x is lost."""

    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        c = g.exp(g.scale(y, 16))
        return g.sub(g.square(x + c), g.square(g.sub(x, c))) / g.scale(c, 4)

    for seed in range(number(6, 20)):
        assert (
            find_counterexample(*pair({"X": (3, 7), "Y": (3, 7)}, lambda g, x, y: g.scale(x, 1), candidate), seed=seed)
            is None
        )


def test_a_difference_of_a_sign_in_a_large_tensor_is_found() -> None:
    n = 256
    made = pair(
        {"X": (n, n), "Y": (n, n)},
        lambda g, x, y: g.sub(x @ y, g.transpose(x, 0, 1)),
        lambda g, x, y: g.sub(x @ y, x),
    )
    item = find_counterexample(*made, seed=SEED)
    assert item is not None
    assert len(item.entries) <= 2


@pytest.mark.slow
def test_every_wrong_pair_at_real_extents_has_a_counterexample_that_the_reference_confirms() -> None:
    """Extents of 4096 and more: what is evaluated are classes of equal elements, and the cone of one element."""
    for claim in share(load("refute"), 3, 0):
        left, right = claim.real()
        item = find_counterexample(left, right, seed=SEED)
        assert item is not None, claim.name
        assert len(item.entries) <= 12, claim.name
        value = evaluate_counterexample(left, right, item)
        assert (value.expected, value.got) == (item.expected, item.got), claim.name


def test_right_pairs_at_real_extents_have_none() -> None:
    for claim in share(load("prove")[::5], 2, 0):
        assert find_counterexample(*claim.real(), seed=SEED, attempts=1) is None, claim.name


def test_what_is_found_at_large_extents_is_what_the_whole_evaluation_gives() -> None:
    """Large enough for classes, small enough to be written out as a whole."""
    n = 160
    made = [
        pair({"X": (n, n), "Y": (n, n)}, lambda g, x, y: g.sub(x @ y, x), lambda g, x, y: g.sub(y @ x, x)),
        pair({"X": (n, n)}, lambda g, x: g.rms_norm(x), lambda g, x: g.rms_norm(x, dim=0)),
        pair({"X": (n, n)}, lambda g, x: g.softmax(x, 0), lambda g, x: g.softmax(x, 1)),
    ]
    for left, right in made:
        assert working_set_size(left) > WRITTEN_OUT
        item = find_counterexample(left, right, seed=SEED)
        assert item is not None
        inputs = input_arrays(left, item)
        a, b = (float64_reference.run(side, inputs)[item.output] for side in (left, right))
        assert item.expected == pytest.approx(a[item.index], rel=1e-12)
        assert item.got == pytest.approx(b[item.index], rel=1e-12)
        flat = np.abs(a - b).ravel() > CLEAR * max(np.abs(a).max(), np.abs(b).max())
        assert not flat[: np.ravel_multi_index(item.index, a.shape)].any()


def test_it_is_plain_data_that_json_takes() -> None:
    item = Counterexample(
        (DefaultValues(0, 0), DefaultValues(1, 1)), (CounterexampleEntry(1, (0, 2), -1),), 0, (0, 1), 0.5, 1.0
    )
    text = msgspec.json.encode(item)
    assert json.loads(text) == {
        "fills": [{"even": 0, "odd": 0}, {"even": 1, "odd": 1}],
        "entries": [{"input": 1, "index": [0, 2], "value": -1}],
        "output": 0,
        "index": [0, 1],
        "expected": 0.5,
        "got": 1.0,
    }
    assert msgspec.json.decode(text, type=Counterexample) == item


def test_one_that_does_not_fit_is_refused() -> None:
    left, right = pair({"X": (2, 3)}, lambda g, x: g.exp(x), lambda g, x: g.square(x))
    fitting = find_counterexample(left, right, seed=SEED)
    assert fitting is not None
    for wrong in (
        Counterexample(fitting.fills, (CounterexampleEntry(0, (2, 0), 1),), 0, (0, 0), 1.0, 0.0),
        Counterexample(fitting.fills, (CounterexampleEntry(1, (0, 0), 1),), 0, (0, 0), 1.0, 0.0),
        Counterexample(fitting.fills, (), 1, (0, 0), 1.0, 0.0),
        Counterexample(fitting.fills, (), 0, (0, 3), 1.0, 0.0),
        Counterexample(fitting.fills, (CounterexampleEntry(0, (0,), 1),), 0, (0, 0), 1.0, 0.0),
        Counterexample(fitting.fills, (CounterexampleEntry(0, (0, -1), 1),), 0, (0, 0), 1.0, 0.0),
        Counterexample((), (), 0, (0, 0), 1.0, 0.0),
    ):
        with pytest.raises(ShapeError):
            evaluate_counterexample(left, right, wrong)


def test_graphs_of_other_shapes_are_refused() -> None:
    left, right = pair({"X": (2, 3)}, lambda g, x: g.reduction(x, 0), lambda g, x: g.reduction(x, 1))
    other = program({"X": (3, 2)}, lambda g, x: g.reduction(x, 1))
    for wrong in (right, other):
        with pytest.raises(ShapeError, match="expected inputs and outputs"):
            find_counterexample(left, wrong, seed=SEED)

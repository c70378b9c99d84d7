"""Many trials at once are what each trial is alone; the footprint is what the reference holds."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.semantics.batched_reference import BatchedDomain, run_many
from mirage_formal.semantics.float64_reference import FloatDomain, run
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.working_set import working_set_size
from tests.kit.graphs.random_graphs import random_graph
from tests.kit.proofs.claims import load


def _close(many: NDArray[Any], one: NDArray[Any]) -> None:
    np.testing.assert_allclose(many, one, rtol=1e-9, atol=1e-9)


def _inputs(graph: KernelGraph, count: int, seed: int) -> list[NDArray[Any]]:
    numbers = np.random.default_rng(seed)
    return [numbers.uniform(0.3, 1.2, (count, *source.tensor.shape)) for source in graph.inputs]


@pytest.mark.parametrize("count", [1, 3])
def test_trials_are_independent(count: int) -> None:
    for item in (*load("prove")[::5], *load("refute")[::5]):
        for graph in item.tiny():
            arrays = _inputs(graph, count, 3)
            outputs = run_many(graph, arrays)
            for trial in range(count):
                for many, one in zip(outputs, run(graph, [array[trial] for array in arrays]), strict=True):
                    _close(many[trial], one)


def test_trials_are_independent_on_random_graphs() -> None:
    wanted = {OpKind.RUNNING_MAX, OpKind.ACCUM_RESCALED_SUM, OpKind.ACCUM_MAX, OpKind.MATMUL}
    seen: set[OpKind] = set()
    for seed in range(1000):
        if seed >= 150 and wanted <= seen:
            break
        graph = random_graph(random.Random(seed), frozenset(OpKind))
        seen |= {
            inner.kind for op in graph.ops if hasattr(op, "graph") for inner in op.graph.ops if hasattr(inner, "kind")
        }
        arrays = _inputs(graph, 2, seed)
        outputs = run_many(graph, arrays)
        for trial in range(2):
            for many, one in zip(outputs, run(graph, [array[trial] for array in arrays]), strict=True):
                _close(many[trial], one)
    assert wanted <= seen


def test_extended_precision_stays_extended() -> None:
    (left, _) = next(item for item in load("prove") if item.name == "attention.in_one_kernel").tiny()
    outputs = run_many(left, [array.astype(np.longdouble) for array in _inputs(left, 2, 1)])
    assert outputs[0].dtype == np.longdouble


class _Counting(FloatDomain):
    """Adds up the elements that operators produce."""

    def __init__(self) -> None:
        self.elements = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("unary", "binary", "matmul", "scale", "offset", "sum", "softmax", "concat"):

            def counted(*args: Any) -> NDArray[Any]:
                out = found(*args)
                self.elements += out.size
                return out

            return counted
        return found


def test_the_footprint_covers_what_is_computed() -> None:
    for item in (*load("prove"), *load("refute")):
        for graph in item.tiny():
            domain = _Counting()
            arrays = [array[0] for array in _inputs(graph, 1, 3)]
            with np.errstate(all="ignore"):
                evaluate(graph, arrays, domain)
            counted = domain.elements + sum(array.size for array in arrays)
            assert counted <= working_set_size(graph) <= 4 * counted + 100, item.name


def test_a_mean_of_equal_integers_is_exact() -> None:
    assert BatchedDomain().scale(np.array([[49.0]]), Fraction(1, 49)) == 1.0

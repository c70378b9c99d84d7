"""Whether two graphs compute the same, as far as float64 can tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.errors import GraphError
from mirage_formal.graph.graph import KernelGraph, operators
from mirage_formal.graph.ops import COMPARISONS, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.semantics.batched import BatchedDomain, run_many
from mirage_formal.semantics.interpreter import evaluate

#: Larger values are not trusted; nor are results beside which larger ones were lost.
LARGE = 1e6
LARGEST = 1e8
#: Relative difference up to which rounding may decide a comparison.
NEAR = 1e-9
DIFFERENT = 1e-6
EQUAL = 1e-10
#: Of ones in masks, at each point.
SHARES = (0.6, 0.3, 0.9, 0.0)


class Decision(Enum):
    """What float64 says: unclear are overflow, undefined values, gaps near rounding."""

    SAME = "same"
    DIFFERENT = "different"
    UNCLEAR = "unclear"


@lru_cache(maxsize=64)
def _points(tensors: tuple[DTensor, ...], more: int) -> tuple[np.ndarray, ...]:
    """Four points [4, ...]: positive entries only, normal ones, some of them large, and small ones.

    Masks are nearly full at one of them and empty at another. There are ``more`` points of a few whole numbers, some
    of them equal, and of masks of which half is 1.
    """
    numbers = np.random.default_rng(5)
    found = []
    for tensor in tensors:
        shape = tensor.shape
        if tensor.dtype is DType.BOOL:
            shares = (*SHARES, *([0.5] * more))
            found.append(np.stack([numbers.random(shape) < share for share in shares]).astype(np.float64))
            continue
        kinds = (
            numbers.uniform(0.3, 1.5, shape),
            numbers.normal(0, 1, shape),
            numbers.normal(0, 1, shape) * numbers.choice([0.3, 2.5], shape),
            numbers.normal(0, 0.2, shape),
            *numbers.integers(-1, 3, (more, *shape)).astype(np.float64),
        )
        found.append(np.stack(kinds))
    return tuple(found)


def inputs_of(graph: KernelGraph) -> tuple[np.ndarray, ...]:
    """Return the points at which graphs with these inputs are compared: more where elements are, or several masks."""
    tensors = tuple(source.tensor for source in graph.inputs)
    if sum(tensor.dtype is DType.BOOL for tensor in tensors) > 1:
        return _points(tensors, 16)
    return _points(tensors, 4 if any(op.kind in COMPARISONS for op in operators(graph)) else 0)


@lru_cache(maxsize=256)
def _outputs(graph: KernelGraph) -> tuple[np.ndarray, ...]:
    return run_many(graph, inputs_of(graph))


def differs(program: KernelGraph, mutant: KernelGraph) -> Decision:
    """Compare two well-formed graphs of equal inputs.

    Different: at some point, where both are finite and not large, they differ clearly, and extended precision gives the
    same gap. Same: they agree at all points.

    Raises:
        GraphError: The mutant has no meaning, or other output shapes.
    """
    expected, got = _outputs(program), run_many(mutant, inputs_of(program))
    if [a.shape for a in got] != [a.shape for a in expected]:
        raise GraphError("other output shapes")
    decision = Decision.SAME
    for usable, gap in _gaps(expected, got):
        if usable and gap > DIFFERENT:
            return _precisely(program, mutant, got)
        if not usable or gap > EQUAL:
            decision = Decision.UNCLEAR
    return decision


def _gaps(expected: tuple[np.ndarray, ...], got: tuple[np.ndarray, ...]) -> Iterator[tuple[bool, float]]:
    """For each output and point whether its values can be trusted, and the relative gap."""
    with np.errstate(all="ignore"):
        for want, have in zip(expected, got, strict=True):
            for a, b in zip(want, have, strict=True):
                size = float(np.maximum(np.abs(a).max(), np.abs(b).max()))
                yield size <= LARGE, float(np.abs(a - b).max() / max(1.0, size))


def _precisely(program: KernelGraph, mutant: KernelGraph, got: tuple[np.ndarray, ...]) -> Decision:
    """Different only if extended precision sees nearly the same gap, at a point where intermediate values are small.

    Rounding looks different in another precision, but what is lost beside a large value is lost in both.
    """
    inputs = [array.astype(np.longdouble) for array in inputs_of(program)]
    (left, beside_left), (right, beside_right) = (run_watched(graph, inputs) for graph in (program, mutant))
    beside = np.maximum(beside_left, beside_right)
    with np.errstate(all="ignore"):
        for a, b, precise_a, precise_b in zip(_outputs(program), got, left, right, strict=True):
            gap = np.abs(precise_a - precise_b)
            size = np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
            sure = np.abs(a - precise_a) + np.abs(b - precise_b) <= 0.01 * gap
            apart = (sure & (gap > DIFFERENT * size)).reshape(len(a), -1).any(axis=1)
            if (apart & (beside <= LARGEST)).any():
                return Decision.DIFFERENT
    return Decision.UNCLEAR


class _WatchingDomain(BatchedDomain):
    """Notes the largest magnitude that occurs on the way, and how much divisors below 1 magnify, for each trial."""

    def __init__(self, trials: int) -> None:
        self.largest = np.zeros(trials)
        self.magnified = np.ones(trials)

    def _seen(self, a: NDArray[Any]) -> NDArray[Any]:
        self.largest = np.fmax(self.largest, np.abs(a).reshape(len(a), -1).max(axis=1).astype(np.float64))
        return a

    def unary(self, kind: OpKind, a: NDArray[Any]) -> NDArray[Any]:
        """See ``Domain.unary``."""
        return self._seen(super().unary(kind, a))

    def binary(self, kind: OpKind, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """See ``Domain.binary``."""
        if kind in (OpKind.DIV, OpKind.DIV_NO_NAN):
            sizes = np.abs(b) if kind is OpKind.DIV else np.where(b == 0, 1.0, np.abs(b))
            smallest = sizes.reshape(len(b), -1).min(axis=1).astype(np.float64)
            self.magnified = self.magnified / np.minimum(smallest, 1.0)
        if kind in COMPARISONS:
            # Where rounding may decide, in both precisions, nothing is said.
            near = np.abs(a - b) <= NEAR * np.maximum(np.abs(a), np.abs(b))
            trials = max(len(a), len(b))
            undecided = np.broadcast_to(near, (trials, *near.shape[1:])).reshape(trials, -1).any(axis=1)
            self.largest = np.where(undecided, np.inf, self.largest)
        return self._seen(super().binary(kind, a, b))

    def matmul(self, a: NDArray[Any], b: NDArray[Any], inner: int) -> NDArray[Any]:
        """See ``Domain.matmul``."""
        return self._seen(super().matmul(a, b, inner))

    def sum(self, a: NDArray[Any], axis: int, extent: int, kept: int) -> NDArray[Any]:
        """See ``Domain.sum``."""
        return self._seen(super().sum(a, axis, extent, kept))


def run_watched(
    graph: KernelGraph, arrays: Sequence[NDArray[Any]]
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.float64]]:
    """As ``run_many``, with the magnitude [trials] beside which anything may have been lost in rounding.

    It is the largest magnitude that a function, quotient, product or sum had on the way, over the product of the
    smallest divisors below 1. What is lost beside a large value is lost in every float type, so this bounds what a gap
    can mean.

    Raises:
        GraphError: The graph is not well-formed.
    """
    domain = _WatchingDomain(len(arrays[0]) if arrays else 1)
    with np.errstate(all="ignore"):
        return evaluate(graph, arrays, domain), domain.largest * domain.magnified

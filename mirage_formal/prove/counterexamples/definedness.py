"""Search for an input at which two graphs are defined: a proof is vacuous if its side conditions never hold.

Inputs are compressed by classes of equal elements (grouped), so that real extents cost no more than small ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, Shape
from mirage_formal.graph.verdict import Unknown
from mirage_formal.prove.counterexamples.compressed_tensor import CompressedTensor, TooManyClasses, run_compressed
from mirage_formal.prove.counterexamples.rounding_bounds import BoundedDomain, without_error
from mirage_formal.prove.counterexamples.sparse_inputs import classes
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals

#: Random points that are tried before the conditions count as never met.
POINTS: Final = 200
NEVER: Final = "its conditions were never met"
#: Scales of random values: moderate ones first, then tiny and huge ones.
_SCALES: Final = (1.0, 0.1, 3.0, 1e-6, 1e3)
#: Values of corner points, in which all elements of all inputs, or all but a few, have one value.
_CORNERS: Final = (1.0, 0.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-8, -1e-8, 1e8, -1e8)


class _Undefined(Exception):
    """A divisor may be 0, a radicand negative, or the argument of a logarithm not above 0."""


class _ConditionsDomain(BoundedDomain):
    """A domain of values with bounds that stops at a divisor, radicand or logarithm that may be invalid."""

    def unary(self, kind: OpKind, a: NDArray[Any]) -> NDArray[Any]:
        """Implement ``Domain.unary``."""
        if not _in_domain(FUNCTION_SPECS[kind].domain, a):
            raise _Undefined
        return super().unary(kind, a)

    def binary(self, kind: OpKind, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """Implement ``Domain.binary``."""
        if kind is OpKind.DIV and not _nonzero(b):
            raise _Undefined
        return super().binary(kind, a, b)


def _in_domain(domain: Reals, a: NDArray[Any]) -> bool:
    match domain:
        case Reals.ALL:
            return True
        case Reals.NONNEGATIVE:
            return bool((a[0] >= a[1]).all())
        case Reals.POSITIVE:
            return bool((a[0] > a[1]).all())
        case Reals.NONZERO:
            return _nonzero(a)
        case _:
            assert_never(domain)


def _nonzero(a: NDArray[Any]) -> bool:
    return bool(((np.abs(a[0]) > a[1]) & np.isfinite(a[0])).all())


def check_conditions(program: KernelGraph, candidate: KernelGraph, doubtful: bool, *, seed: int = 0) -> Unknown | None:
    """Return Unknown if the conditions of a proof hold at no input that is tried; None if they hold at one.

    Sound: it only ever takes an answer back. That it does not is evidence in float64, beyond what rounding may have
    done, that some input meets all conditions, and no proof of it.

    Args:
        program: The program.
        candidate: A graph that is proved equal to it where all conditions hold.
        doubtful: Whether there is a condition that does not show by its form that it always holds.
        seed: The seed of the points.

    Raises:
        GraphError: A graph is not well-formed.
    """
    if not doubtful:
        return None
    inputs = [source.tensor for source in program.inputs]
    if any(_is_defined(program, point) and _is_defined(candidate, point) for point in _points(inputs, seed)):
        return None
    return Unknown(NEVER)


def _is_defined(graph: KernelGraph, point: Sequence[CompressedTensor]) -> bool:
    try:
        run_compressed(graph, point, _ConditionsDomain())
    except (_Undefined, TooManyClasses):
        return False
    return True


def _points(inputs: Sequence[DTensor], seed: int) -> Iterator[list[CompressedTensor]]:
    """Yield random points of several scales and signs, and with the first ones corners of one value everywhere.

    An element of a mask is 1 where the number that is drawn for it is positive.
    """
    rng = np.random.default_rng(seed)
    for number in range(POINTS):
        scale = _SCALES[number // 3 % len(_SCALES)]
        yield [_fit_mask(_random(rng, tensor.shape, scale, number % 3), tensor) for tensor in inputs]
        if number < len(_CORNERS):
            value = _CORNERS[number]
            yield [_fit_mask(_constant(rng, tensor.shape, value, few=False), tensor) for tensor in inputs]
            yield [_fit_mask(_constant(rng, tensor.shape, value, few=True), tensor) for tensor in inputs]


def _fit_mask(drawn: CompressedTensor, tensor: DTensor) -> CompressedTensor:
    """Return the drawn values, as zeros and ones for a mask."""
    if tensor.dtype.floating:
        return drawn
    return CompressedTensor(drawn.shape, drawn.labels, without_error((drawn.values[0] > 0).astype(np.float64)))


def _random(rng: np.random.Generator, shape: Shape, scale: float, sign: int) -> CompressedTensor:
    """Return normal values: of both signs, positive only, or negative only."""
    labels, size = _axis_classes(rng, shape)
    values = scale * rng.normal(0.0, 1.0, size)
    if sign:
        values = np.abs(values) if sign == 1 else -np.abs(values)
    return CompressedTensor(shape, labels, without_error(values))


def _constant(rng: np.random.Generator, shape: Shape, value: float, *, few: bool) -> CompressedTensor:
    """Return one value everywhere, or everywhere except for a few elements."""
    if not few:
        return CompressedTensor(shape, (None,) * len(shape), without_error(np.full((1,) * len(shape), value)))
    labels, size = _axis_classes(rng, shape)
    values = np.where(rng.random(size) < 0.3, rng.integers(-2, 3, size).astype(np.float64), value)
    return CompressedTensor(shape, labels, without_error(values))


def _axis_classes(
    rng: np.random.Generator, shape: Shape
) -> tuple[tuple[NDArray[np.int64] | None, ...], tuple[int, ...]]:
    """Return classes of every axis: the first and the last coordinate and one more, and the rest by parity."""
    cut = [classes(extent, {0, extent - 1, int(rng.integers(extent))}, parity=True) for extent in shape]
    return tuple(labels for labels, _ in cut), tuple(len(first) for _, first in cut)


__all__ = ["NEVER", "POINTS", "check_conditions"]

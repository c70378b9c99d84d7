"""Known incompleteness of the guided engine, as predicates on a candidate that is equal to its program.

Float64 evaluation at random points decides each predicate; it holds only if it holds at every point. Values are
compared to a relative 1e-9. The predicates only explain a difference between the engines: they neither prune nor accept
a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Final

import numpy as np

from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import SPECS, OpKind
from mirage_formal.semantics.float64_reference import FloatDomain, Floats
from mirage_formal.semantics.interpreter import evaluate, trace

#: Points at which a predicate must hold.
DRAWS: Final = 3
_TOLERANCE: Final = 1e-9


class IncompletenessReason(StrEnum):
    """Explanation why the guided engine may lack a candidate that the exhaustive engine finds."""

    ONLY_COPIES = "only_copies"
    RECOMPUTES = "recomputes"
    CANCELS = "cancels"


class _NonCancellingDomain(FloatDomain):
    """Float64 domain with another division and another root, for which the laws that do not cancel still hold.

    x / y is x * |y| ** -a, with 0 for y = 0 or without, and sqrt(x) is |x| ** b, for a other than 1 and b other than
    1/2. The laws of A_eq that do not cancel hold for them as for the real ones: division is additive in x, commutes
    with products and sums, and dividing by y and then by z is dividing by y * z; sqrt(x) * sqrt(y) = sqrt(x * y). But
    x * y / y is not x, sqrt(x) ** 2 is not x, and rms_norm(c * x) is not rms_norm(x).
    """

    keeps: Final = frozenset({OpKind.SILU})  # type: ignore[misc]
    _DIVISION: Final = 0.71
    _ROOT: Final = 0.37

    def unary(self, kind: OpKind, a: Floats) -> Floats:
        """Implement ``Domain.unary``."""
        return np.abs(a) ** self._ROOT if kind is OpKind.SQRT else super().unary(kind, a)

    def binary(self, kind: OpKind, a: Floats, b: Floats) -> Floats:
        """Implement ``Domain.binary``."""
        if kind is OpKind.DIV_NO_NAN:
            return np.where(b == 0, 0.0, a * np.abs(np.where(b == 0, 1.0, b)) ** -self._DIVISION)
        return a * np.abs(b) ** -self._DIVISION if kind is OpKind.DIV else super().binary(kind, a, b)


def random_inputs(program: KernelGraph) -> Iterator[tuple[Floats, ...]]:
    """Yield random inputs of a program: in [0.5, 1.5], so that every root and quotient exists; masks of 0 and 1."""
    for draw in range(DRAWS):
        random = np.random.default_rng([0, draw])
        yield tuple(
            random.uniform(0.5, 1.5, source.tensor.shape)
            if source.tensor.dtype.floating
            else random.integers(0, 2, source.tensor.shape).astype(np.float64)
            for source in program.inputs
        )


def is_equal(program: KernelGraph, candidate: KernelGraph) -> bool:
    """Return whether the outputs agree, and are finite, at the points."""
    return all(_outputs_agree(program, candidate, arrays, FloatDomain()) for arrays in random_inputs(program))


def needs_cancellation(program: KernelGraph, candidate: KernelGraph) -> bool:
    """Return whether equality with the program holds only through a cancellation or a scale-invariance law.

    Definition: the outputs agree with the real division and root, and differ at every point with those of
    ``_NonCancellingDomain``, in which all laws that do not cancel still hold.
    """
    return is_equal(program, candidate) and not any(
        _outputs_agree(program, candidate, arrays, _NonCancellingDomain()) for arrays in random_inputs(program)
    )


def recomputes_value(candidate: KernelGraph) -> bool:
    """Return whether two tensors have the same value: in one stage of a block graph, two kernels, or device memory.

    Definition: two tensors have the same value if, at every point, the sets of their elements are equal; so a value is
    the same in another layout, tiling or replication. Masks are left out: all have the elements 0 and 1. The predicate
    compares tensors of one block graph on the same side of its accumulators, device tensors, and the results of two
    kernels. It leaves out results that have the value of an input of their own kernel (one kernel writes a tensor, and
    the next one accumulates it in one iteration).
    """
    values = [_values(candidate, arrays) for arrays in random_inputs(candidate)]
    return any(_any_same_value(values, group) for group in _stages(candidate)) or any(
        _have_same_value(values, a, b)
        for one, other in combinations(_computed_tensors(candidate, values), 2)
        for a in one
        for b in other
    )


def has_copy_kernel(candidate: KernelGraph) -> bool:
    """Return whether some graph-defined kernel only copies its inputs.

    Definition: each of its outputs has, at every point, the same set of elements as one of its inputs.
    """
    values = [_values(candidate, arrays) for arrays in random_inputs(candidate)]
    return any(
        isinstance(op, GraphDefined)
        and all(
            any(_have_same_value(values, (None, out), (None, n)) for n in op.operands)
            for out in range(first, first + op.results)
        )
        for first, op in enumerate_results(len(candidate.inputs), candidate.ops)
    )


def missing_reason(program: KernelGraph, candidate: KernelGraph) -> IncompletenessReason | None:
    """Return the first of the predicates, in the order of ``IncompletenessReason``, that holds; None if none does."""
    if has_copy_kernel(candidate):
        return IncompletenessReason.ONLY_COPIES
    if recomputes_value(candidate):
        return IncompletenessReason.RECOMPUTES
    return IncompletenessReason.CANCELS if needs_cancellation(program, candidate) else None


#: A tensor of a candidate: (None, number) in device memory, (operator index, number) in a block graph.
_Place = tuple[int | None, int]
#: The sets of elements of all tensors of a candidate at one point.
_Values = dict[_Place, Floats]


def _values(candidate: KernelGraph, arrays: tuple[Floats, ...]) -> _Values:
    with np.errstate(all="ignore"):
        found = trace(candidate, arrays, FloatDomain())
    out: _Values = {(None, number): _elements(tensor) for number, tensor in enumerate(found.tensors)}
    for index, inside in found.blocks.items():
        out |= {(index, number): _elements(tensor) for number, tensor in enumerate(inside)}
    return out


def _have_same_value(values: Sequence[_Values], a: _Place, b: _Place) -> bool:
    """Return whether two tensors have the same value."""
    return all(_same_elements(at[a], at[b]) for at in values)


def _any_same_value(values: Sequence[_Values], group: Sequence[_Place]) -> bool:
    return any(_have_same_value(values, a, b) for a, b in combinations(group, 2))


def _stages(candidate: KernelGraph) -> list[list[_Place]]:
    """Return groups of tensors, each of one stage: device memory, and both sides of the accumulators of each kernel."""
    device = len(candidate.inputs)
    groups: list[list[_Place]] = []
    for index, op in enumerate(candidate.ops):
        device += op.results
        if isinstance(op, GraphDefined):
            behind = _behind_accumulator(op.graph)
            groups += [[(index, n) for n, after in enumerate(behind) if after is side] for side in (False, True)]
    return [[(None, n) for n in range(device)], *groups]


def _behind_accumulator(graph: BlockGraph) -> list[bool]:
    """Return for each tensor of a block graph whether it is behind an accumulator."""
    out = [False] * len(graph.inputs)
    for op in graph.ops:
        accumulates = isinstance(op, Op) and SPECS[op.kind].accumulator
        out += [accumulates or out[op.operands[0]]] * op.results
    return out


def _computed_tensors(candidate: KernelGraph, values: Sequence[_Values]) -> list[list[_Place]]:
    """Return for each kernel the tensors that it computes and that do not have the value of one of its inputs."""
    out: list[list[_Place]] = []
    for first, (index, op) in zip(_first_results(candidate), enumerate(candidate.ops), strict=True):
        read: list[_Place] = [(None, n) for n in op.operands]
        made: list[_Place] = [(None, first)]
        if isinstance(op, GraphDefined):
            inputs = len(op.graph.inputs)
            made = [(index, n) for n in range(inputs, len(_behind_accumulator(op.graph)))]
        out.append([a for a in made if not any(_have_same_value(values, a, b) for b in read)])
    return out


def _first_results(candidate: KernelGraph) -> Iterator[int]:
    return (number for number, _ in enumerate_results(len(candidate.inputs), candidate.ops))


def _elements(a: Floats) -> Floats:
    """Return the distinct elements, ascending; those within the tolerance of each other count once."""
    ordered = np.unique(a)
    gaps = np.diff(ordered) > _TOLERANCE * np.maximum(np.abs(ordered[1:]), 1e-300)
    return ordered[np.concatenate(([True], gaps))]


def _same_elements(x: Floats, y: Floats) -> bool:
    if np.isin(x, (0.0, 1.0)).all():
        return False
    return x.shape == y.shape and bool(np.allclose(x, y, rtol=10 * _TOLERANCE, atol=0.0))


def _outputs_agree(
    program: KernelGraph, candidate: KernelGraph, arrays: tuple[Floats, ...], domain: FloatDomain
) -> bool:
    """Return whether all outputs agree at one point; a value that is not finite agrees with nothing."""
    with np.errstate(all="ignore"):
        pairs = zip(evaluate(program, arrays, domain), evaluate(candidate, arrays, domain), strict=True)
    return all(
        x.shape == y.shape and np.isfinite(x).all() and bool(np.allclose(x, y, rtol=_TOLERANCE, atol=0.0))
        for x, y in pairs
    )

"""The points at which the conditions of a theorem hold, in float64: elsewhere it says nothing about the two graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import Input, KernelGraph, enumerate_results
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType, row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.batched_reference import BatchedDomain
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals
from mirage_formal.semantics.interpreter import evaluate, trace
from tests.kit.graphs.mutants import Decision, differs, inputs_of

#: What is nearer to 0 than this, next to its operator's largest operand or 1, may be 0 but for rounding.
NEAR_ZERO: Final = 1e-9
#: Sizes of the numbers at further points.
_SIZES: Final = (0.1, 1.0, 3.0, 10.0)
DIVISOR: Final = "divisor"
RADICAND: Final = "radicand"
ARGUMENT: Final = "argument"
_SUBJECTS: Final = {Reals.NONZERO: DIVISOR, Reals.NONNEGATIVE: RADICAND, Reals.POSITIVE: ARGUMENT}


class _SubjectsDomain(BatchedDomain):
    """Notes for each trial whether every divisor, radicand and argument of a logarithm is one, by subject."""

    def __init__(self, trials: int) -> None:
        self.good = {subject: np.ones(trials, dtype=bool) for subject in _SUBJECTS.values()}

    def unary(self, kind: OpKind, a: NDArray[Any]) -> NDArray[Any]:
        """See ``Domain.unary``."""
        subject = _SUBJECTS.get(FUNCTION_SPECS[kind].domain)
        if subject is not None:
            self._note(subject, a)
        return super().unary(kind, a)

    def binary(self, kind: OpKind, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """See ``Domain.binary``."""
        if kind is OpKind.DIV:
            self._note(DIVISOR, b)
        return super().binary(kind, a, b)

    def _note(self, subject: str, a: NDArray[Any]) -> None:
        rows = a.reshape(len(a), -1)
        least = NEAR_ZERO * np.fmax(1.0, np.abs(rows).max(axis=1, keepdims=True))
        good = {DIVISOR: np.abs(rows) > least, RADICAND: rows >= 0, ARGUMENT: rows > least}[subject]
        self.good[subject] &= (good & np.isfinite(rows)).all(axis=1)


def where_conditions_hold(
    program: KernelGraph, candidate: KernelGraph, conditions: Collection[str], inputs: Sequence[NDArray[Any]]
) -> NDArray[np.bool_]:
    """Return for each point whether the conditions of a theorem about two graphs hold there.

    A condition names a graph, an operator of it and what must not be 0 or negative there. Every divisor, radicand or
    argument of that kernel operator counts, and no other operator: if the theorem should have named it, its points are
    evidence. Conditions of a padded program follow from those of the two graphs, or from their form.

    Args:
        program: The program.
        candidate: The candidate.
        conditions: The conditions, as ``Theorem.conditions`` lists them.
        inputs: The points, as arrays [points, ...], one for each input.
    """
    holds = np.ones(len(inputs[0]), dtype=bool)
    for name, graph in (("program", program), ("candidate", candidate)):
        places = [text.partition(", kernel operator ")[2] for text in conditions if text.startswith(f"{name}, ")]
        named = {(int(place.split(",")[0].split(":")[0]), place.split(": ")[1].split(" ")[0]) for place in places}
        good = _subjects(graph, {number for number, _ in named}, inputs)
        for number, subject in named:
            holds &= good[number][subject]
    return holds


def differs_under(program: KernelGraph, candidate: KernelGraph, conditions: Collection[str]) -> Decision:
    """Compare two graphs that a theorem says to be equal, at points where its conditions hold.

    With conditions there are more points, of one sign or both and of several sizes, so that some meet them. Unclear is
    also what none meets.

    Raises:
        GraphError: A graph has no meaning, or the two have other output shapes.
    """
    if not conditions or not program.inputs:
        return differs(program, candidate)
    pairs = zip(inputs_of(program), _more_points(program), strict=True)
    points = tuple(np.concatenate(pair) for pair in pairs)
    holds = where_conditions_hold(program, candidate, conditions, points)
    return differs(program, candidate, tuple(array[holds] for array in points)) if holds.any() else Decision.UNCLEAR


def _more_points(graph: KernelGraph) -> Iterator[NDArray[Any]]:
    numbers = np.random.default_rng(6)
    for tensor in (source.tensor for source in graph.inputs):
        drawn = numbers.normal(0.0, 1.0, (len(_SIZES), 3, *tensor.shape))
        if tensor.dtype is DType.BOOL:
            yield (drawn > 0).astype(np.float64).reshape(-1, *tensor.shape)
            continue
        drawn *= np.array(_SIZES).reshape(-1, *([1] * (drawn.ndim - 1)))
        drawn[:, 1], drawn[:, 2] = np.abs(drawn[:, 1]), -np.abs(drawn[:, 2])
        yield drawn.reshape(-1, *tensor.shape)


def _subjects(
    graph: KernelGraph, numbers: Collection[int], inputs: Sequence[NDArray[Any]]
) -> dict[int, dict[str, NDArray[np.bool_]]]:
    """Return for some kernel operators, and each point, whether every divisor, radicand and argument is one."""
    found: dict[int, dict[str, NDArray[np.bool_]]] = {}
    types, count = kernel_types(graph), len(inputs[0])
    with np.errstate(all="ignore"):
        values = trace(graph, inputs, BatchedDomain()).tensors
        for number, (_, op) in enumerate(enumerate_results(len(graph.inputs), graph.ops)):
            if number in numbers:
                sources = tuple(Input(f"x{i}", types[n], row_major(types[n].shape)) for i, n in enumerate(op.operands))
                results = tuple(range(len(sources), len(sources) + op.results))
                alone = KernelGraph(sources, (replace(op, operands=tuple(range(len(sources)))),), results)
                domain = _SubjectsDomain(count)
                evaluate(alone, [values[n] for n in op.operands], domain)
                found[number] = domain.good
    return found


__all__ = ["differs_under", "where_conditions_hold"]

"""Numerics of candidates before there are kernels: expected rounding errors, and evaluation at special values.

Both evaluate the form of a candidate that has running maxima, which is what its kernels compute, at extents that are
small enough.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.codegen.numerics.rounding_simulation import MAX_ELEMENTS, MAX_ESTIMATED, predict_numerics
from mirage_formal.codegen.numerics.shrink import ShrunkPair, evaluation_size, shrink
from mirage_formal.codegen.numerics.special_values import SpecialValueFault, check_special_values
from mirage_formal.codegen.online_softmax.stabilize import stable_form
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import SpecialRecord

#: Most elements for a rounding estimate at the program's own extents.
_OWN_EXTENTS: Final = 1 << 17
#: Most elements for special values at the program's own extents, and the least extent of a tile at smaller ones: so
#: many special values stand in one set of inputs that more elements only repeat them.
_OWN_SPECIAL_EXTENTS: Final = 1 << 12
_LEAST_TILE: Final = 16


def predict_rounding_error(program: KernelGraph, graph: KernelGraph) -> PredictedNumerics | None:
    """Return the estimated rounding error of the kernels of a candidate; None if it is too large to be evaluated.

    The running-maximum form of the candidate is evaluated, at smaller extents where its own are large.
    """
    pair = _shrink_for_evaluation(program, graph)
    return predict_numerics(pair.program, stable_form(pair.candidate))


def evaluate_special_values(program: KernelGraph, graph: KernelGraph) -> SpecialRecord | SpecialValueFault | None:
    """Evaluate the kernels of a candidate at special values, as far as float64 can represent them.

    The running-maximum form of the candidate is evaluated, at smaller extents where its own are large.

    Returns:
        The record, the first wrong element as a ``SpecialValueFault``, or None if the candidate is too large.
    """
    pair = _shrink_for_evaluation(program, graph, _OWN_SPECIAL_EXTENTS, _LEAST_TILE)
    if evaluation_size(pair.program, pair.candidate) > MAX_ESTIMATED:
        return None
    return check_special_values(pair.program, stable_form(pair.candidate), stable_form(pair.program))


@lru_cache(maxsize=64)
def _shrink_for_evaluation(
    program: KernelGraph, graph: KernelGraph, most: int = _OWN_EXTENTS, least_tile: int | None = None
) -> ShrunkPair:
    """Return a candidate and its program at extents small enough for fast evaluation.

    Args:
        program: The program.
        graph: The candidate.
        most: Most elements for an evaluation at the program's own extents.
        least_tile: As for ``shrink``.
    """
    large = evaluation_size(program, graph) > most
    return shrink(program, graph, MAX_ELEMENTS, least_tile) if large else ShrunkPair(program, graph, {})


__all__ = ["SpecialValueFault", "evaluate_special_values", "predict_rounding_error"]

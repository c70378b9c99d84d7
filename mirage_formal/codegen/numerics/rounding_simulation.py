"""Simulation of a candidate's rounding before kernels exist: its operators run in their element types, beside float64.

Kernels compute in float32, round the operands of 16-bit matrix products and store tensors between kernels in their
element types; values beyond the range of a type become infinite. NumPy does the same here, operator by operator, and
the results are judged as those of a kernel are (result_comparison.py in this folder). The judgement is about the µGraph
at some seeded inputs; a kernel is compared again once it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.numerics.correlated_rounding import rounding_drift
from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.codegen.numerics.result_comparison import (
    SCALES,
    compare_outputs,
    draw_all,
    exact_outputs,
    output_tolerances,
)
from mirage_formal.codegen.numerics.rounding import LARGEST, product_type, store_as
from mirage_formal.graph.edit import extract_kernel
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import MOVES
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import Answer
from mirage_formal.semantics.float64_reference import FloatDomain
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.working_set import working_set_size

Array = NDArray[Any]

#: Elements that an evaluation may hold for its errors to be estimated, and for it to be executed at all.
MAX_ESTIMATED: Final = 1 << 21
MAX_ELEMENTS: Final = 1 << 24
_SEED: Final = 0
#: The share of an element type's largest number beyond which results without a tolerance are not judged.
_FAR: Final = 0.5
#: The scale at which errors of candidates are compared.
_USUAL: Final = 1.0


def round_to_type(values: Array, dtype: DType) -> Array:
    """Return values rounded to an element type, infinite beyond its range, as float32."""
    if dtype in (DType.FLOAT32, DType.BOOL):
        return np.asarray(values, np.float32)
    if dtype is DType.FLOAT16:  # numpy rounds to nearest, ties to even, from either type
        with np.errstate(all="ignore"):
            return np.asarray(values).astype(np.float16).astype(np.float32)
    return np.asarray(store_as(np.asarray(values, np.float64), dtype, np), np.float32)


class TypedDomain(FloatDomain):
    """A domain of float32 arrays that rounds operands of matrix products to an element type.

    Args:
        dtype: The element type.
        exact: Arrays of float32 that have numbers of this type only, and are no views. They need no rounding, and
            neither do their views.
    """

    def __init__(self, dtype: DType, exact: Sequence[Array] = ()) -> None:
        self._dtype = dtype
        self._exact = {id(array): array for array in exact}

    def matmul(self, a: Array, b: Array, inner: int) -> Array:
        """Implement ``Domain.matmul``."""
        return super().matmul(self._rounded(a), self._rounded(b), inner)

    def _rounded(self, array: Array) -> Array:
        """Return an operand rounded to the element type."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return array if id(owner) in self._exact else round_to_type(array, self._dtype)


def simulate(graph: KernelGraph, arrays: Sequence[Array]) -> list[Array]:
    """Return the outputs of a µGraph, each kernel in float32 and its results stored in their element types.

    Args:
        graph: The µGraph; a program's operators are a kernel each.
        arrays: One array for each input, of values that its element type holds.

    Returns:
        The outputs in float64.
    """
    types = kernel_types(graph)
    values = [np.asarray(array, np.float32) for array in arrays]
    inputs = [pair for pair in zip(graph.inputs, values, strict=True) if not isinstance(pair[1].base, np.ndarray)]
    with np.errstate(all="ignore"):
        for op in graph.ops:
            dtype = product_type(op, types)
            domain = TypedDomain(dtype, [array for item, array in inputs if item.tensor.dtype is dtype])
            operands: list[Array] = [values[number] for number in op.operands]
            for found in evaluate(extract_kernel(op, types), operands, domain):
                moved = isinstance(op, Op) and op.kind in MOVES
                values.append(found if moved else round_to_type(found, types[len(values)].dtype))
    return [np.asarray(values[number], np.float64) for number in graph.outputs]


def predict_numerics(program: KernelGraph, graph: KernelGraph) -> PredictedNumerics | None:
    """Return the predicted numerics of a candidate; None if it is too large to be executed.

    The tolerances are those of a kernel of the candidate. At scale 1 there is a second one, in norm: that of the
    program's own operators. So a candidate that loses precision which they keep is as much outside as one that
    overflows. Elements that the program's own operators do not compute, because their result is not finite, are left
    out. If the graphs are too large for tolerances, the only check is whether results are finite where the program's
    own are.

    Args:
        program: The program.
        graph: The µGraph from which the candidate's kernels are generated; it has the program's inputs and outputs.
    """
    elements = max(working_set_size(program), working_set_size(graph))
    if elements > MAX_ELEMENTS:
        return None
    if elements > MAX_ESTIMATED:
        return PredictedNumerics(tuple(scale for scale in SCALES if _overflows(program, graph, scale)), None)
    with np.errstate(all="ignore"):
        return _predict_with_tolerances(program, graph)


def _predict_with_tolerances(program: KernelGraph, graph: KernelGraph) -> PredictedNumerics:
    outside: list[float] = []
    rounding: float | None = None
    for scale in SCALES:
        arrays, values = _exact_results(program, scale)
        results, tolerances = simulate(graph, arrays), output_tolerances(graph, arrays)[0]
        numbers = range(len(values))
        judged = partial(_judge_output, program, scale)
        bad = [i for i in numbers if judged(i, results, tolerances) == "outside"]
        if bad:
            wider = [t + more for t, more in zip(tolerances, rounding_drift(graph, arrays), strict=True)]
            bad = [i for i in bad if judged(i, results, wider) == "outside"]
        if scale == _USUAL:
            shares = (_norm(t) / (_norm(v) or 1.0) for t, v in zip(tolerances, values, strict=True))
            most = max(shares)
            rounding = float(f"{most:.2g}") if np.isfinite(most) else None
        if bad or scale == _USUAL:
            plain, own = _program_tolerances(program, scale)
            inside = [i for i in numbers if judged(i, plain, own) == "within"]
            lost = [i for i in numbers if scale == _USUAL and _norm(results[i] - values[i]) > _norm(own[i])]
            if not {*bad, *lost}.isdisjoint(inside):
                outside.append(scale)
    return PredictedNumerics(tuple(outside), rounding)


def _overflows(program: KernelGraph, graph: KernelGraph, scale: float) -> bool:
    """Return whether a result overflows where the program's own operators give one far from the largest number.

    Near the largest number rounding decides whether a result is finite, for the program's operators as for the kernels.
    """
    types = kernel_types(program)
    results = simulate(graph, draw_all(program, _SEED, scale))
    for number, result, plain in zip(program.outputs, results, _program_results(program, scale), strict=True):
        if bool(overflowed_elements(result, plain, types[number].dtype).any()):
            return True
    return False


def overflowed_elements(result: Array, own: Array, dtype: DType) -> NDArray[np.bool_]:
    """Return where a result is not finite and the program's own operators give a number far from the largest one.

    Args:
        result: A result in float64 that was computed in element types.
        own: The result of the program's own operators.
        dtype: The element type of both.
    """
    return np.asarray(~np.isfinite(result) & (np.abs(own) < _FAR * LARGEST[dtype]))


@lru_cache(maxsize=3)
def _program_results(program: KernelGraph, scale: float) -> list[Array]:
    """Return the results of the program's own operators, each as a kernel."""
    return simulate(program, draw_all(program, _SEED, scale))


@lru_cache(maxsize=3)
def _exact_results(program: KernelGraph, scale: float) -> tuple[list[Array], tuple[Array, ...]]:
    """Return inputs, and the program's exact outputs."""
    arrays = draw_all(program, _SEED, scale)
    return arrays, exact_outputs(program, arrays)


@lru_cache(maxsize=3)
def _program_tolerances(program: KernelGraph, scale: float) -> tuple[list[Array], tuple[Array, ...]]:
    """Return the results of the program's own operators, each as a kernel, and their tolerances."""
    return _program_results(program, scale), output_tolerances(program, _exact_results(program, scale)[0])[0]


def _judge_output(
    program: KernelGraph, scale: float, i: int, results: Sequence[Array], tolerances: Sequence[Array]
) -> Answer:
    """Return the answer for one output, where the program's own operators compute it."""
    value, own = _exact_results(program, scale)[1][i], _program_results(program, scale)[i]
    gone = ~np.isfinite(own) & np.isfinite(value)
    dtype = kernel_types(program)[program.outputs[i]].dtype
    return compare_outputs(results[i], value, tolerances[i], dtype, gone=gone if gone.any() else None).answer


def _norm(values: Array) -> float:
    """Return the root of the sum of squares of the finite values."""
    finite = np.where(np.isfinite(values), values, 0.0)
    return float(np.sqrt((finite * finite).sum()))


__all__ = ["TypedDomain", "predict_numerics", "round_to_type", "simulate"]

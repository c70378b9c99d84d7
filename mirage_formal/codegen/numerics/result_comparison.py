"""Numerics: a comparison of a kernel's results with the program's exact values, within a derived tolerance.

Inputs are drawn from a seed at the scales 0.1, 1 and 8; at 8 logits are so large that exp overflows in
float16. The program is evaluated in float64 with an exponent of its own for every value (codegen/numerics/rounding.py),
so that exp does not overflow either. The candidate's µGraph is evaluated the same way with the variance of its rounding
errors:

- its device tensors are rounded to their element type, its matrix products round their operands, everything else is
  float32 (see the module named above for every term);
- the result is rounded once more: (u |y|)^2, or half of the smallest subnormal if that is more;
- the tolerance of an element is LAMBDA times the root of the total variance. A result outside of that is compared once
  more with a larger tolerance: the combined effect of the µGraph's own roundings is added (correlated_rounding.py), for
  roundings of equal values are not independent.

Some elements are not finite if the program's own operators compute them, each as a kernel that stores its result in its
element type. No execution operator by operator gets their exact value, so such elements are *lost*, and are not
compared (``nonfinite_reference_elements``). This is checked only if a result is outside.

Nothing in it was fitted. LAMBDA = 6 makes a false alarm in 10^8 normal errors improbable, and variances are taken from
the bound of each rounding rather than its mean square, which is three times smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from mirage_formal.codegen.numerics.correlated_rounding import rounding_drift
from mirage_formal.codegen.numerics.rounding import (
    LARGEST,
    Estimate,
    RoundingDomain,
    product_type,
    quantize,
    quantum,
    store_as,
    unit_roundoff,
)
from mirage_formal.codegen.numerics.tolerance import LAMBDA
from mirage_formal.graph.edit import extract_kernel
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import MOVES, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import Answer, NumericsRecord, OutputRecord, ScaleRecord
from mirage_formal.semantics.interpreter import evaluate

Array = Any
#: Computes the outputs from the inputs, both as float64 arrays; inputs hold values of their element types.
Runner = Callable[[Sequence[Array]], Sequence[Array]]

SCALES: Final = (0.1, 1.0, 8.0)
#: Roundings below the largest number of an element type within which rounding decides whether it is still a number.
_NEAR: Final = 8
#: One index in this many along an axis of a mask has no element that is 1.
_EMPTY: Final = 8
#: Elements of an input that are drawn at once, each with some ten numbers of 8 bytes on the way.
_PIECE: Final = 1 << 26
#: Standard deviation of a sum of four 16-bit numbers.
_DEVIATION: Final = ((2.0**32 - 1.0) * 4 / 12) ** 0.5
#: The reason for an undecided output.
_LOST: Final = "the program's own operators leave the range of their element types in all of its elements"


@dataclass(frozen=True, slots=True)
class ReferenceOutputs:
    """Reference results of a kernel on some inputs.

    Attributes:
        values: The program's outputs in float64; infinite where float64 cannot hold them.
        tolerances: For each of them, the largest allowed error of a result.
        overflows: See ScaleRecord.
    """

    values: tuple[Array, ...]
    tolerances: tuple[Array, ...]
    overflows: tuple[str, ...]


# --- inputs ----------------------------------------------------------------------------------------------------------


def draw_input(item: Input, number: int, seed: int, scale: float, xp: Any = np) -> Array:
    """Return seeded values for one input, about normal with standard deviation ``scale``, rounded to its element type.

    Element i is the sum of the four 16-bit parts of splitmix64(seed, number, i), which NumPy and CuPy compute alike.
    A mask is 1 where that is above 0, but for some indices along each axis of at least 3, at which all of it is 0.
    """
    state = (seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xD1B54A32D192ED03) % 2**64
    if item.band is not None:
        return xp.asarray(item.band.mask(item.tensor.shape), dtype=xp.float64)
    if not item.tensor.dtype.floating:
        return _mask(item.tensor.shape, state, xp)
    values = xp.empty(item.tensor.elements, dtype=xp.float64)
    for first in range(0, values.size, _PIECE):
        piece = values[first : first + _PIECE]
        sums = _sums(state, first, piece.size, xp)
        piece[...] = quantize(sums * (scale / _DEVIATION), item.tensor.dtype, xp)
    return values.reshape(item.tensor.shape)


def _mask(shape: Sequence[int], state: int, xp: Any) -> Array:
    """Return pseudorandom zeros and ones, with empty slices (rows, columns and so on) along every axis."""
    count = prod(shape)
    values = (_sums(state, 0, count, xp) > 0).astype(xp.float64).reshape(shape)
    for axis, extent in enumerate(shape):
        if extent >= 3:
            first = (state >> 8 * axis) % extent
            empty = [(first + i) % extent for i in range(0, extent, _EMPTY)]
            values[(*(slice(None),) * axis, empty)] = 0.0
    return values


def _sums(state: int, first: int, count: int, xp: Any) -> Array:
    """Return centred sums of four 16-bit parts for ``count`` elements of a sequence, from number ``first`` on."""
    z = splitmix(state, first, count, xp)
    parts = [(z >> xp.uint64(16 * i)) & xp.uint64(0xFFFF) for i in range(4)]
    return sum(part.astype(xp.float64) for part in parts) - 4 * 0x7FFF - 2.0


def splitmix(state: int, first: int, count: int, xp: Any = np) -> Array:
    """Return elements of a state's splitmix64 sequence, from the element of number ``first`` on."""
    z = xp.arange(first, first + count, dtype=xp.uint64) * xp.uint64(0x9E3779B97F4A7C15) + xp.uint64(state)
    z = (z ^ (z >> xp.uint64(30))) * xp.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> xp.uint64(27))) * xp.uint64(0x94D049BB133111EB)
    return z ^ (z >> xp.uint64(31))


def draw_all(graph: KernelGraph, seed: int, scale: float, xp: Any = np) -> list[Array]:
    """Return seeded values for every input."""
    return [draw_input(item, number, seed, scale, xp) for number, item in enumerate(graph.inputs)]


# --- what is expected ------------------------------------------------------------------------------------------------


def expected_results(
    program: KernelGraph, candidate: KernelGraph, arrays: Sequence[Array], xp: Any = np
) -> ReferenceOutputs:
    """Return the exact outputs of the program, and the tolerances of the candidate that computes them.

    Args:
        program: The program.
        candidate: The candidate; it has the program's inputs and outputs.
        arrays: One float64 array for each input, of values that its element type holds.
        xp: numpy or cupy, whichever made the arrays.
    """
    values = exact_outputs(program, arrays, xp)
    tolerances, overflows = output_tolerances(candidate, arrays, xp)
    return ReferenceOutputs(values, tolerances, overflows)


def exact_outputs(program: KernelGraph, arrays: Sequence[Array], xp: Any = np) -> tuple[Array, ...]:
    """Return the exact outputs of a program; see ``Expected.values``."""
    with np.errstate(all="ignore"):
        domain = RoundingDomain(xp, None)
        return tuple(domain.plain(value).mantissa for value in _exact_estimates(program, arrays, domain))


def _exact_estimates(program: KernelGraph, arrays: Sequence[Array], domain: RoundingDomain) -> Sequence[Estimate]:
    """Return the outputs of a program with separate exponents; they are not finite only where no exact value exists."""
    return evaluate(program, [Estimate(array) for array in arrays], domain)


def output_tolerances(
    candidate: KernelGraph, arrays: Sequence[Array], xp: Any = np
) -> tuple[tuple[Array, ...], tuple[str, ...]]:
    """Return the tolerance of each output of a candidate, and the tensors that overflow; see ``ReferenceOutputs``."""
    with np.errstate(all="ignore"):
        estimates, overflows = _estimates(candidate, arrays, xp)
        variances = (xp.zeros_like(e.mantissa) if e.variance is None else e.variance for e in estimates)
        return tuple(LAMBDA * xp.sqrt(variance) for variance in variances), overflows


def _estimates(graph: KernelGraph, arrays: Sequence[Array], xp: Any) -> tuple[list[Estimate], tuple[str, ...]]:
    """Return the candidate's outputs with their errors, kernel by kernel; device tensors are rounded."""
    types = kernel_types(graph)
    domain = RoundingDomain(xp, DType.FLOAT32)
    tensors = [Estimate(a) for a in arrays]
    overflows: list[str] = []
    for op in graph.ops:
        first, domain = len(tensors), RoundingDomain(xp, product_type(op, types))
        for result in evaluate(extract_kernel(op, types), [tensors[number] for number in op.operands], domain):
            number = len(tensors)
            moved = isinstance(op, Op) and op.kind in MOVES
            kept = result if moved else domain.rounded(result, types[number].dtype)
            # Errors of the result count in plain units from here on, where it can be held at all.
            plain = domain.plain(kept)
            dtype = types[number].dtype
            if dtype.floating and number not in graph.outputs and bool((xp.abs(plain.mantissa) > LARGEST[dtype]).any()):
                overflows.append(f"k{number}")
                plain = kept
            tensors.append(plain)
        assert len(tensors) == first + op.results
    return [domain.plain(tensors[number]) for number in graph.outputs], tuple(overflows)


def nonfinite_reference_elements(program: KernelGraph, arrays: Sequence[Array], xp: Any = np) -> tuple[Array, ...]:
    """Return, for each output, the elements at which the program's own operators give no finite result.

    Each stores its result in its element type, infinite beyond the range; within a few roundings of the largest number
    counts as beyond, for there the rounding of operands decides whether it is a number at all. Exponentials, and values
    computed from them, count as representable for operators that divide them by such a value or take their logarithm:
    kernels keep those in range by a maximum (docs/kernels.md). For other operators they do not. An element without an
    exact value is not lost: nothing is known of it, which is another answer.

    Sound: an element is lost only if a result of the program's own operators, each in its element type, is beyond that
    type's largest number or within a few roundings of it, and so what they make of it is infinite or not a number.

    Args:
        program: The program.
        arrays: One float64 array for each input.
        xp: numpy or cupy, whichever made the arrays.
    """
    types = kernel_types(program)
    domain = RoundingDomain(xp, None)
    # Each tensor as its operators hold it, and as it is where exponentials are held however large they are. They differ
    # only while it is made of exponentials that nothing was divided by yet.
    own = [Estimate(array) for array in arrays]
    free = list(own)
    ends: list[Array] = list(arrays)
    grown = [False] * len(own)
    with np.errstate(all="ignore"):
        for op in program.ops:
            grows, kernel = (
                _is_unscaled_exponential(op, [grown[number] for number in op.operands]),
                extract_kernel(op, types),
            )
            every = evaluate(kernel, [free[number] for number in op.operands], domain)
            held = evaluate(kernel, [own[number] for number in op.operands], domain) if grows else every
            for found, value in zip(every, (domain.plain(one).mantissa for one in held), strict=True):
                ends.append(value)
                own.append(Estimate(_store_with_margin(value, types[len(own)].dtype, xp)))
                free.append(found if grows else own[-1])
                grown.append(grows)
        known = [xp.isfinite(one.mantissa) for one in _exact_estimates(program, arrays, domain)]
    return tuple(~xp.isfinite(ends[n]) & real for n, real in zip(program.outputs, known, strict=True))


def _store_with_margin(values: Array, dtype: DType, xp: Any) -> Array:
    """Return values stored in an element type, infinite from a few roundings below its largest number on."""
    if not dtype.floating:
        return values
    most = LARGEST[dtype] * (1 - _NEAR * unit_roundoff(dtype))
    return xp.where(xp.abs(values) > most, xp.copysign(xp.inf, values), store_as(values, dtype, xp))


def _is_unscaled_exponential(op: Any, operands: Sequence[bool]) -> bool:
    """Return whether results are computed from exponentials without a quotient or a logarithm in between."""
    kind = op.kind if isinstance(op, Op) else None
    if kind is OpKind.DIV:
        return operands[0] and not operands[1]
    return kind is OpKind.EXP or (kind is not OpKind.LOG and any(operands))


# --- comparing -------------------------------------------------------------------------------------------------------


def compare_outputs(
    result: Array, value: Array, tolerance: Array, dtype: DType, xp: Any = np, gone: Array | None = None
) -> OutputRecord:
    """Compare one output with its expected values.

    Sound: it answers "within" only if there is an element that is judged, and of all that are every exact value and
    tolerance is finite and every result lies within its tolerance, or is infinite of the right sign where the element
    type cannot hold the exact value, or all that lies within its tolerance. Not judged is what is lost, and what has an
    infinite tolerance although its value is a number of the element type: a comparison on the way to it may come out
    either way.

    Args:
        result: The output of a kernel.
        value: The exact values.
        tolerance: The largest allowed error of each.
        dtype: The output's element type.
        xp: numpy or cupy.
        gone: The elements that are lost, see ``nonfinite_reference_elements``; None if none is.
    """
    with np.errstate(all="ignore"):
        result = result.reshape(value.shape)
        large = LARGEST[dtype]
        vain = xp.isinf(tolerance) & (xp.abs(value) <= large)
        if bool(vain.any()):
            gone = vain if gone is None else gone | vain
        count = 0 if gone is None else int(gone.sum())
        if gone is not None and count == value.size:
            return _lost_record(count)
        if gone is not None:
            kept = ~gone
            result, value, tolerance = result[kept], value[kept], tolerance[kept]
        beyond = xp.isfinite(value) & (xp.abs(value) > large * (1 - unit_roundoff(dtype)))
        reached = xp.isfinite(value) & (xp.abs(value) + tolerance > large * (1 - unit_roundoff(dtype)))
        right = xp.isinf(result) & (xp.sign(result) == xp.sign(value)) & (beyond | reached)
        difference = xp.abs(result - value)
        ratio = xp.where(difference == 0, 0.0, difference / tolerance)
        ratio = xp.where(right, 0.0, ratio)
        bad = ~xp.isfinite(value) | xp.isnan(tolerance)
        # No tolerance at all is as useless as an unknown value.
        vague = tolerance > xp.maximum(xp.abs(value), 1.0) * 1e6
        counted = ~(bad | right)
        ratio = xp.where(xp.isnan(ratio), xp.inf, ratio)
        worst = float(ratio.max()) if ratio.size else 0.0
        largest = float(xp.where(counted, xp.abs(value), 0.0).max()) if value.size else 0.0
        difference = xp.where(counted, difference, 0.0)
        most = float(xp.where(xp.isnan(difference), xp.inf, difference).max()) if value.size else 0.0
        ulps = xp.where(counted, difference / quantum(xp.where(counted, value, 1.0), dtype, xp), 0.0)
        norm = float(xp.sqrt((xp.where(counted, value, 0.0) ** 2).sum()))
        answer, reason = _answer(
            worst, bool(bad.any()), bool(vague.any()), bool((~xp.isfinite(result) & counted).any())
        )
        return OutputRecord(
            answer=answer,
            max_absolute_error=most,
            max_relative_error=most / largest if largest else most,
            relative_norm=float(xp.sqrt((difference**2).sum())) / norm if norm else most,
            max_ulps=float(xp.where(xp.isnan(ulps), xp.inf, ulps).max()) if value.size else 0.0,
            max_ratio=worst,
            largest=largest,
            median_tolerance=float(xp.median(tolerance)),
            max_tolerance=float(tolerance.max()),
            elements=int(value.size) + count,
            beyond_range=int(beyond.sum()),
            lost=count,
            reason=reason,
        )


def _lost_record(elements: int) -> OutputRecord:
    """Return the record of an output all of whose elements are lost."""
    none = 0.0
    return OutputRecord(
        answer="undecided",
        max_absolute_error=none,
        max_relative_error=none,
        relative_norm=none,
        max_ulps=none,
        max_ratio=none,
        largest=none,
        median_tolerance=none,
        max_tolerance=none,
        elements=elements,
        beyond_range=0,
        lost=elements,
        reason=_LOST,
    )


def computed_answer(record: NumericsRecord) -> Answer:
    """Return the combined answer of all outputs for which the program's own operators compute some element.

    Sound: "within" only if a scale is, and at all others every output is as well or has lost all of its elements, so
    that the program as it is written has no answer there.
    """
    known = [o.answer for one in record.scales for o in one.outputs if not o.elements or o.lost < o.elements]
    if not any(one.answer == "within" for one in record.scales):
        known.append("undecided")
    return _combine_answers(known)


def _answer(worst: float, bad: bool, vague: bool, missing: bool) -> tuple[Answer, str]:
    if bad:
        return "undecided", "an exact value or a tolerance is not finite"
    if missing:
        return "outside", "a result is infinite or not a number where the exact value can be held"
    if not worst <= 1.0:
        return "outside", f"an error is {worst:.3g} times its tolerance"
    return ("undecided", "a tolerance is a million times the value") if vague else ("within", "")


class Inputs(NamedTuple):
    """Distribution of the drawn inputs.

    Attributes:
        seed: Seed of the draws.
        scales: Their standard deviations, one set of inputs for each.
        xp: numpy or cupy, the module of the arrays.
    """

    seed: int = 0
    scales: Sequence[float] = SCALES
    xp: Any = np


USUAL: Final = Inputs()


def check(
    program: KernelGraph,
    candidate: KernelGraph,
    digest: str,
    run: Runner,
    *,
    device: str,
    inputs: Inputs = USUAL,
) -> NumericsRecord:
    """Run a kernel at every scale and compare.

    Args:
        program: The program.
        candidate: The µGraph that was lowered to the kernel.
        digest: Its digest.
        run: A function that runs the kernel.
        device: The device that it runs on, for the record.
        inputs: The distribution of its inputs; ``run`` gets and returns arrays of their package (numpy or cupy).

    Returns:
        The answer at every scale, and of all.
    """
    seed, scales, xp = inputs
    records = tuple(_at_scale(program, candidate, run, scale, seed, xp) for scale in scales)
    answer = _combine_answers(record.answer for record in records)
    return NumericsRecord(candidate=digest, device=device, answer=answer, tolerance_lambda=LAMBDA, scales=records)


def _at_scale(
    program: KernelGraph, candidate: KernelGraph, run: Runner, scale: float, seed: int, xp: Any
) -> ScaleRecord:
    arrays = draw_all(program, seed, scale, xp)
    results = run(arrays)
    wanted = expected_results(program, candidate, arrays, xp)
    types = kernel_types(program)
    dtypes = [types[number].dtype for number in program.outputs]
    every = list(zip(results, wanted.values, wanted.tolerances, dtypes, strict=True))
    outputs = [compare_outputs(*one, xp) for one in every]
    if any(output.answer == "outside" for output in outputs):
        every = [
            (*one[:2], one[2] + more, one[3])
            for one, more in zip(every, rounding_drift(candidate, arrays, xp), strict=True)
        ]
        outputs = [
            compare_outputs(*one, xp) if had.answer == "outside" else had
            for one, had in zip(every, outputs, strict=True)
        ]
    if any(output.answer != "within" for output in outputs):
        gone = nonfinite_reference_elements(program, arrays, xp)
        outputs = [
            compare_outputs(*one, xp, none) if had.answer != "within" and none.any() else had
            for one, none, had in zip(every, gone, outputs, strict=True)
        ]
    answer = _combine_answers(output.answer for output in outputs)
    return ScaleRecord(scale=scale, seed=seed, answer=answer, outputs=tuple(outputs), overflows=wanted.overflows)


def _combine_answers(answers: Any) -> Answer:
    """Return the combined answer of several.

    Sound: "within" only if all are.
    """
    found = set(answers)
    return "outside" if "outside" in found else "undecided" if "undecided" in found or not found else "within"


__all__ = [
    "LAMBDA",
    "SCALES",
    "Inputs",
    "NumericsRecord",
    "OutputRecord",
    "ReferenceOutputs",
    "ScaleRecord",
    "check",
    "compare_outputs",
    "computed_answer",
    "draw_all",
    "draw_input",
    "exact_outputs",
    "expected_results",
    "nonfinite_reference_elements",
    "output_tolerances",
    "splitmix",
]

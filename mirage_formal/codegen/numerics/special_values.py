"""Special values: a check that a candidate is defined exactly where its program is.

A proof is about real numbers. It does not cover infinities, NaN, overflow, or a divisor that is 0 in a branch that is
not selected: (m s) / n is not select(m, s / n, 0) where n is 0. So both are evaluated in float64, with the rules of
IEEE 754, on inputs that contain such values, and masks with empty rows and columns:

- where the program has a finite value, the candidate has to have it, up to the tolerance of its kernels, and at values
  of 1e25 in one input, where the element type has them, it must not overflow in its element types;
- where an operator of the program has no value (0/0, the logarithm of a negative number, NaN or an infinity in an
  input), the candidate must not have a finite one;
- where the program only overflowed on the way, the candidate may overflow too, or have the value.

An evaluation with a separate exponent for every value (rounding.py) distinguishes undefined elements from overflow.

A softmax written as exponentials over their sum is computed with a maximum under them, which an infinite score makes
NaN. So where the program and that stable form differ in whether they have a value, nothing is required.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.numerics.bounded_maxima import bound_maxima
from mirage_formal.codegen.numerics.result_comparison import draw_input as plain
from mirage_formal.codegen.numerics.result_comparison import exact_outputs, output_tolerances, splitmix
from mirage_formal.codegen.numerics.rounding import LARGEST, store_as
from mirage_formal.codegen.numerics.rounding_simulation import overflowed_elements, simulate
from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import SpecialRecord
from mirage_formal.semantics import float64_reference

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SEED: Final = 0
#: The relative difference up to which elements count as equal.
_CLOSE: Final = 1e-6
#: The most sets of inputs whose results for the program are cached for the next candidate.
_KEPT: Final = 64
#: A placeholder for the largest number of an input's element type.
_MOST: Final = "largest"


class _Draw(NamedTuple):
    """The special values of one set of inputs.

    Attributes:
        name: Its name in messages.
        values: The special values.
        one_in: One element in this many is special.
        slices: Whether all elements at one index of an axis are special.
        only: The input that has them; None for all.
        typed: Whether a candidate may not overflow in its element types where the program does not.
    """

    name: str
    values: tuple[float | str, ...]
    one_in: int
    slices: bool = False
    only: int | None = None
    typed: bool = False


_LARGE: Final = (1e2, -1e2, 4e2, -4e2)
#: Special values in all inputs at once.
_EVERYWHERE: Final = (
    _Draw("zeros", (0.0,), 3),
    _Draw("zeros in a slice", (0.0,), 8, slices=True),
    _Draw("NaN", (np.nan,), 64),
    _Draw("NaN, infinities, zeros and large values", (np.nan, np.inf, -np.inf, 0.0, *_LARGE), 32),
    _Draw("values of 100 and 400", _LARGE, 8),
)
#: In one input after the other.
_SOMEWHERE: Final = (
    _Draw("NaN in a slice", (np.nan,), 64, slices=True),
    _Draw("inf", (np.inf,), 64),
    _Draw("-inf in a slice", (-np.inf,), 8, slices=True),
    _Draw("values of 100 and 400 in a slice", _LARGE, 4, slices=True),
    _Draw("values of 10000", (1e4, -1e4, 4e2, 0.0), 8),
    _Draw("the type's largest values", (_MOST, 0.0), 32),
)
#: In one input after the other of a type that has such numbers; their squares are infinite in float32.
_WIDE: Final = 1e25
_SQUARES: Final = _Draw("values of 1e25", (_WIDE, -_WIDE), 8, typed=True)


def special_draws(inputs: Sequence[Input]) -> tuple[_Draw, ...]:
    """Return the special values of every set of inputs."""
    floating = [number for number, item in enumerate(inputs) if item.tensor.dtype.floating]
    wide = [n for n in floating if LARGEST[inputs[n].tensor.dtype] > _WIDE]
    each = [(draw, n) for draw in _SOMEWHERE for n in floating] + [(_SQUARES, n) for n in wide]
    return (*_EVERYWHERE, *(draw._replace(name=f"{inputs[n].name}: {draw.name}", only=n) for draw, n in each))


class SpecialValueFault(NamedTuple):
    """An element at which a candidate differs from its program.

    Attributes:
        draw: The name of the special values of the inputs.
        output: Position of the output.
        at: The element.
        expected: The program's value.
        got: The candidate's value.
    """

    draw: str
    output: int
    at: tuple[int, ...]
    expected: float
    got: float

    def __str__(self) -> str:
        where = f"output {self.output} at {list(self.at)}"
        return f"special values, {self.draw}: {where}: expected {self.expected:.6g}, got {self.got:.6g}"


def check_special_values(
    program: KernelGraph, candidate: KernelGraph, stable: KernelGraph
) -> SpecialRecord | SpecialValueFault:
    """Compare a candidate with its program at special values.

    Sound: a record is returned only if the candidate was finite and within tolerance at every element of every draw at
    which the program is finite, in float64 and in its element types, and its stable form as well; in its element types
    too at those of draws with ``typed``; and finite at none at which the program, its stable form and the exact
    evaluation are not.

    Args:
        program: The program.
        candidate: The µGraph from which the candidate's kernels are generated; it has the program's inputs and outputs.
        stable: The program with maxima under its exponentials, or the program if it has no such form.

    Returns:
        The record of the comparison, or the first element that is wrong.
    """
    candidate, stable = bound_maxima(candidate), bound_maxima(stable)
    elements = undefined = overflows = 0
    every = special_draws(program.inputs)
    for number, draw in enumerate(every):
        arrays = _arrays(program.inputs, number)
        found = float64_reference.run(candidate, arrays)
        typed = simulate(candidate, arrays) if draw.typed else None
        for output, (want, got) in enumerate(zip(_values(program, number), found, strict=True)):
            finite = np.isfinite(got)
            if typed is not None and bool(
                (wrong := _overflowed_elements(program, stable, number, output, typed[output])).any()
            ):
                return _fault(draw, output, wrong, want, typed[output])
            if bool((wrong := _wrong_elements(program, candidate, stable, number, output, got)).any()):
                return _fault(draw, output, wrong, want, got)
            none = ~np.isfinite(want)
            removed = none & finite
            if none.any():
                none &= ~np.isfinite(_exact(program, number)[output])
            if bool((wrong := _where_stable(none & finite, stable, number, output, known=False)).any()):
                return _fault(draw, output, wrong, want, got)
            elements += want.size
            undefined += int(none.sum())
            overflows += int((removed & ~none).sum())
    return SpecialRecord(seed=_SEED, draws=len(every), elements=elements, undefined=undefined, overflows=overflows)


def _wrong_elements(
    program: KernelGraph, candidate: KernelGraph, stable: KernelGraph, number: int, output: int, got: Array
) -> Bools:
    """Return where a candidate lacks a value that the program has, in its element types as well."""
    want = _values(program, number)[output]
    with np.errstate(all="ignore"):
        apart = np.isfinite(want) & ~(np.abs(got - want) <= _CLOSE * np.abs(want))
        if apart.any():
            apart &= np.isfinite(_typed_results(program, number)[output])
        if apart.any():
            own, more = (_tolerances(graph, number)[output] for graph in (program, candidate))
            # Without a tolerance there is nothing to compare with.
            apart &= ~np.isfinite(got) | (np.abs(got - want) > own + more)
    return _where_stable(apart, stable, number, output, known=True)


def _overflowed_elements(program: KernelGraph, stable: KernelGraph, number: int, output: int, got: Array) -> Bools:
    """Return where a candidate overflows in its element types and the program is finite and not near overflow."""
    dtype = kernel_types(program)[program.outputs[output]].dtype
    wrong = overflowed_elements(got, _typed_results(program, number)[output], dtype)
    return _where_stable(wrong & np.isfinite(_values(program, number)[output]), stable, number, output, known=True)


def _where_stable(where: Bools, stable: KernelGraph, number: int, output: int, *, known: bool) -> Bools:
    """Return those elements of ``where`` at which the program's stable form is finite, or is not."""
    return where & (np.isfinite(_values(stable, number)[output]) == known) if where.any() else where


def _fault(draw: _Draw, output: int, where: Bools, want: Array, got: Array) -> SpecialValueFault:
    index = tuple(int(i) for i in np.unravel_index(int(where.argmax()), where.shape))
    return SpecialValueFault(draw.name, output, index, float(want[index]), float(got[index]))


# --- inputs, and what the program makes of them ----------------------------------------------------------------------


@lru_cache(maxsize=_KEPT)
def _arrays(inputs: tuple[Input, ...], number: int) -> list[Array]:
    draw = special_draws(inputs)[number]
    return [_draw_input(draw, item, number, n) for n, item in enumerate(inputs)]


@lru_cache(maxsize=2 * _KEPT)
def _values(graph: KernelGraph, number: int) -> tuple[Array, ...]:
    """Return the float64 results of the program or its stable form."""
    return float64_reference.run(graph, _arrays(graph.inputs, number))


@lru_cache(maxsize=_KEPT)
def _typed_results(graph: KernelGraph, number: int) -> list[Array]:
    """Return the results of the program's own operators in their element types."""
    return simulate(graph, _arrays(graph.inputs, number))


@lru_cache(maxsize=_KEPT)
def _exact(graph: KernelGraph, number: int) -> tuple[Array, ...]:
    return exact_outputs(graph, _arrays(graph.inputs, number))


@lru_cache(maxsize=2 * _KEPT)
def _tolerances(graph: KernelGraph, number: int) -> tuple[Array, ...]:
    return output_tolerances(graph, _arrays(graph.inputs, number))[0]


def _draw_input(draw: _Draw, item: Input, number: int, place: int) -> Array:
    """Return seeded values for one input, with special values at some places; a mask has none."""
    array = np.asarray(plain(item, place, _SEED + number, 1.0))
    dtype = item.tensor.dtype
    if not dtype.floating or draw.only not in (None, place):
        return array
    most = LARGEST[dtype]
    values = np.array([most if value == _MOST else float(value) for value in draw.values])
    if _MOST in draw.values:
        values = np.concatenate([values, -values[values == most]])
    state = 97 * place + number
    random = splitmix((state + 1) * 0x9E3779B97F4A7C15 % 2**64, 0, array.size).reshape(array.shape)
    chosen = random % np.uint64(draw.one_in) == 0
    chosen.reshape(-1)[int(random.reshape(-1)[0] % np.uint64(array.size))] = True
    picked = values[((random >> np.uint64(32)) % np.uint64(len(values))).astype(np.int64)]
    if draw.slices:
        axis = int(random.reshape(-1)[-1] % np.uint64(array.ndim))
        if array.shape[axis] > 1:
            at = (*(slice(None),) * axis, state % array.shape[axis])
            chosen[at], picked[at] = True, values[state % len(values)]
    return np.where(chosen, store_as(picked, dtype, np), array)

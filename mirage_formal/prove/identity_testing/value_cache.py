"""A cache of values that tapes computed at one point of the fields, for tapes with the same steps.

Candidates for one program often have kernels in common, or differ only after a product. At a program's real extents,
products and sums are nearly all of an evaluation's work, so their values are cached. A tape is evaluated from its
outputs backwards: steps that only lead to cached values are not computed again.

Kernels that cut one product over different grids and loops have different steps. Put together as ``batched_product``
and ``summed_product`` do, their operands are the same parts of the same values, by which products are cached as well.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from weakref import ReferenceType, ref

import numpy as np

from mirage_formal.prove.identity_testing.modular_arithmetic import Modulus, Residues, Words
from mirage_formal.semantics.batched_matmul import summed_product
from mirage_formal.semantics.straight_line_trace import (
    Matmul,
    Needs,
    ResiduePart,
    Step,
    SumStep,
    Tape,
    needed_steps,
    read_part,
    rename_operands,
    step_operands,
)

#: Bytes of values that are kept for one point.
KEPT_BYTES: Final = 1 << 28

#: Values by the number of their step in a tape and their part.
Values = dict[tuple[int, ResiduePart], Residues]
#: Field, leading axes and operands of a product of parts of values.
_ProductKey = tuple[object, ...]
#: Names of the values to be computed, by the number of their step in a tape and their part.
Todo = dict[tuple[int, ResiduePart], int]


class ValueCache:
    """A cache of the values of products and sums at one point: fields, omega, keys and inputs.

    A value's name stands for its step and, by their names, for all steps that it depends on, so that equal names have
    equal values at the point. A redraw of an input needs another ``ValueCache``. Values are never written in place.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        """Create a cache of at most ``most_bytes``; the least recently read values are evicted."""
        self._left = most_bytes
        self._names: dict[Step, int] = {}
        self._values: OrderedDict[tuple[int, ResiduePart] | _ProductKey, Residues] = OrderedDict()
        self._arrays: dict[int, tuple[ReferenceType[Residues], int, ResiduePart]] = {}

    def begin(self, tape: Tape, wanted: Needs) -> tuple[Values, Todo]:
        """Return a tape's known values, and the further steps that its outputs need.

        Args:
            tape: The program.
            wanted: The parts that its outputs need (``tape.needs``).
        """
        self._arrays.clear()
        names: list[int] = []
        for step in tape.steps:
            names.append(self._names.setdefault(rename_operands(step, names), len(self._names)))
        known: Values = {}
        todo: Todo = {}
        read = {(number, ResiduePart.P) for number in tape.outputs}
        for number, step, parts in reversed(list(needed_steps(tape, wanted))):
            for part in parts:
                if (number, part) not in read:
                    continue
                found = self._values.get((names[number], part))
                if found is not None:
                    self._values.move_to_end((names[number], part))
                    known[number, part] = found
                    self._recognize(names[number], part, found)
                    continue
                todo[number, part] = names[number]
                read.update((operand, read_part(step, part)) for operand in step_operands(step))
        return known, todo

    def add(self, step: Step, name: int, part: ResiduePart, value: Residues) -> None:
        """Cache the value of a product or sum; other steps are not worth it."""
        self._recognize(name, part, value)
        if isinstance(step, Matmul | SumStep) and (name, part) not in self._values:
            self._keep((name, part), value)

    def matmul(self, field: Modulus, a: Residues, b: Residues, summed: int | None = None) -> Words:
        """Return ``field.matmul``, summed along an axis if one is given; for parts of values, also from the cache."""

        def product(x: Residues, y: Residues) -> Words:
            left, right = self._place(x), self._place(y)
            if left is None or right is None:
                return field.product(x, y)
            key = (field.m, _leading_axes(x, y), left, right)
            found = self._values.get(key)
            if found is None:
                found = field.product(x, y)
                self._keep(key, found)
            else:
                self._values.move_to_end(key)
            lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
            return found.reshape(*lead, x.shape[-2], y.shape[-1])

        def multiply(x: Residues, y: Residues) -> Words:
            return field.matmul(x, y, product)

        if summed is None:
            return multiply(a, b)
        whole = summed_product(a, b, summed, multiply)
        return field.sum(multiply(a, b), summed, 1) if whole is None else whole

    def _recognize(self, name: int, part: ResiduePart, value: Residues) -> None:
        """Note the array of a value, so that its parts are recognized as operands of products.

        An array that several values share, as that of a reshape does, stands for the first of them.
        """
        owner = _owner(value)
        known = self._arrays.get(id(owner))
        if (known is None or known[0]() is not owner) and value.size == owner.size and value.flags.c_contiguous:
            self._arrays[id(owner)] = ref(owner), name, part

    def _place(self, x: Residues) -> tuple[object, ...] | None:
        """Return the value and the part of it that an array's matrices are; None if the array is not known."""
        owner = _owner(x)
        array, *value = self._arrays.get(id(owner), (None,))
        if array is None or array() is not owner:
            return None
        offset = x.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
        return (*value, offset, x.shape[-2:], x.strides[-2:])

    def _keep(self, key: tuple[int, ResiduePart] | _ProductKey, value: Residues) -> None:
        self._values[key] = value
        self._left -= value.nbytes
        while self._left < 0:
            _, oldest = self._values.popitem(last=False)
            self._left += oldest.nbytes


def _owner(array: Residues) -> Residues:
    """Return the array that owns a view's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _leading_axes(a: Residues, b: Residues) -> tuple[tuple[int, int, int, int], ...]:
    """Return extents and strides of the leading axes of two operands, without axes of extent 1."""
    lead = zip(a.shape[:-2], a.strides[:-2], b.shape[:-2], b.strides[:-2], strict=True)
    return tuple((m, s if m > 1 else 0, n, t if n > 1 else 0) for m, s, n, t in lead if m > 1 or n > 1)


__all__ = ["KEPT_BYTES", "Todo", "ValueCache", "Values"]

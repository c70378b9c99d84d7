"""A cache of values that tapes computed at one point of the fields, for tapes with the same steps.

Candidates for one program often have kernels in common, or differ only after a product. At a program's real extents,
products and sums are nearly all of an evaluation's work, so their values are cached. A tape is evaluated from its
outputs backwards: steps that only lead to cached values are not computed again.

Kernels that cut one product of inputs over different grids have different steps. Put together as ``batched_product``
does, their operands are the same parts of the same arrays, by which their products are cached as well.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np

from mirage_formal.prove.identity_testing.modular_arithmetic import Modulus, Residues, Words
from mirage_formal.semantics.straight_line_trace import (
    LoadStep,
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
#: Field, leading axes and operands of a product of parts of inputs.
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
        self._inputs: dict[int, Residues] = {}

    def begin(self, tape: Tape, wanted: Needs) -> tuple[Values, Todo]:
        """Return a tape's known values, and the further steps that its outputs need.

        Args:
            tape: The program.
            wanted: The parts that its outputs need (``tape.needs``).
        """
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
                    continue
                todo[number, part] = names[number]
                read.update((operand, read_part(step, part)) for operand in step_operands(step))
        return known, todo

    def add(self, step: Step, name: int, part: ResiduePart, value: Residues) -> None:
        """Cache the value of a product or sum; other steps are not worth it. Inputs are known by their arrays."""
        if isinstance(step, LoadStep):
            array = _owner(value)
            self._inputs[id(array)] = array
        if isinstance(step, Matmul | SumStep) and (name, part) not in self._values:
            self._keep((name, part), value)

    def matmul(self, field: Modulus, a: Residues, b: Residues) -> Words:
        """Return ``field.matmul``; if both operands are parts of inputs, also from the cache."""

        def product(x: Residues, y: Residues) -> Words:
            if id(_owner(x)) not in self._inputs or id(_owner(y)) not in self._inputs:
                return field.product(x, y)
            key = _product_key(field, x, y)
            found = self._values.get(key)
            if found is None:
                found = field.product(x, y)
                self._keep(key, found)
            else:
                self._values.move_to_end(key)
            lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
            return found.reshape(*lead, x.shape[-2], y.shape[-1])

        return field.matmul(a, b, product)

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


def _product_key(field: Modulus, a: Residues, b: Residues) -> _ProductKey:
    """Return a key that is equal for products of the same parts of arrays; leading axes of extent 1 do not matter."""
    lead = zip(a.shape[:-2], a.strides[:-2], b.shape[:-2], b.strides[:-2], strict=True)
    axes = tuple((m, s if m > 1 else 0, n, t if n > 1 else 0) for m, s, n, t in lead if m > 1 or n > 1)
    inner = tuple((x.ctypes.data, x.shape[-2:], x.strides[-2:]) for x in (a, b))
    return (field.m, axes, *inner)


__all__ = ["KEPT_BYTES", "Todo", "ValueCache", "Values"]

"""A cache of values that tapes computed at one point of the fields, for tapes with the same steps.

Candidates for one program often have kernels in common, or differ only after a product. At a program's real extents,
products and sums are nearly all of an evaluation's work, so their values are cached. A tape is evaluated from its
outputs backwards: steps that only lead to cached values are not computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mirage_formal.prove.identity_testing.modular_arithmetic import Residues
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
        self._values: OrderedDict[tuple[int, ResiduePart], Residues] = OrderedDict()

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
        """Cache the value of a product or sum; other steps are not worth it."""
        if not isinstance(step, Matmul | SumStep) or (name, part) in self._values:
            return
        self._values[name, part] = value
        self._left -= value.nbytes
        while self._left < 0:
            _, oldest = self._values.popitem(last=False)
            self._left += oldest.nbytes


__all__ = ["KEPT_BYTES", "Todo", "ValueCache", "Values"]

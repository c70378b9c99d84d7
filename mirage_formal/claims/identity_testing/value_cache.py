"""Cache of values that traces computed at one point of the fields, for traces with the same steps.

Candidates for one program often have kernels in common, or differ only behind a product. At a program's real extents
products and sums are nearly all of an evaluation's work, so their values are kept, and a tape is evaluated from its
outputs backwards: what leads to nothing but values that are kept is not computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mirage_formal.claims.identity_testing.modular import Residues
from mirage_formal.semantics.straight_line_trace import (
    Matmul,
    Needs,
    Part,
    Step,
    Sum,
    Tape,
    needed,
    operands,
    read_part,
    rename,
)

#: Bytes of values that are kept for one point.
KEPT_BYTES: Final = 1 << 28

#: Values by the number of their step in a tape and their part.
Values = dict[tuple[int, Part], Residues]
#: Names of the values to be computed, by the number of their step in a tape and their part.
Todo = dict[tuple[int, Part], int]


class Kept:
    """Values of products and sums at one point: fields, omega, keys and inputs.

    A value's name stands for its step and, by their names, for all that the step depends on, so that equal names have
    equal values at the point. Whoever draws an input anew needs another ``Kept``. Values are never written in place.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        """Keep ``most_bytes`` at most; values that were not read for longest make room."""
        self._left = most_bytes
        self._names: dict[Step, int] = {}
        self._values: OrderedDict[tuple[int, Part], Residues] = OrderedDict()

    def begin(self, tape: Tape, wanted: Needs) -> tuple[Values, Todo]:
        """Return a trace's known values, and the steps that its outputs need besides.

        Args:
            tape: The program.
            wanted: The parts that its outputs need (``tape.needs``).
        """
        names: list[int] = []
        for step in tape.steps:
            names.append(self._names.setdefault(rename(step, names), len(self._names)))
        known: Values = {}
        todo: Todo = {}
        read = {(number, Part.P) for number in tape.outputs}
        for number, step, parts in reversed(list(needed(tape, wanted))):
            for part in parts:
                if (number, part) not in read:
                    continue
                found = self._values.get((names[number], part))
                if found is not None:
                    self._values.move_to_end((names[number], part))
                    known[number, part] = found
                    continue
                todo[number, part] = names[number]
                read.update((operand, read_part(step, part)) for operand in operands(step))
        return known, todo

    def add(self, step: Step, name: int, part: Part, value: Residues) -> None:
        """Keep the value of a step if it is worth it."""
        if not isinstance(step, Matmul | Sum) or (name, part) in self._values:
            return
        self._values[name, part] = value
        self._left -= value.nbytes
        while self._left < 0:
            _, oldest = self._values.popitem(last=False)
            self._left += oldest.nbytes


__all__ = ["KEPT_BYTES", "Kept", "Todo", "Values"]

"""The writer of random programs: lines of text, each run on NumPy arrays, so that the next may use what is known.

Nothing of the front end is used: shapes, values and signs come from numpy_graph.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np

import mirage_formal as mf
from tests.kit.fuzz.numpy_graph import Array, NumpyGraph, Values

Shape = tuple[int, ...]

#: Extent of a dim.
LONGEST: Final = 300
MOST_OPERATORS: Final = 12
#: A call, a transposition, arithmetic, a slice or a sign.
_OPERATOR: Final = re.compile(r"\.\w+\(|\.mT| (?:[-+*/@]|\*\*) |\w\[|^-")
#: Of one tensor.
MOST_ELEMENTS: Final = 1 << 16
#: Absolute value of an element.
_LARGEST: Final = 1e4


class Misfit(Exception):
    """An operator that cannot be applied here; another one is drawn."""


@dataclass
class Writer:
    """A program that is being written.

    Attributes:
        rng: Draws everything.
        lines: What is written.
        values: Every tensor by name.
        dtypes: Their element types.
        positive: Tensors that are above 0 whatever the inputs are.
        leaves: Results that nothing has read, in order.
        operators: How many operators the lines have.
    """

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    values: dict[str, Values] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    positive: set[str] = field(default_factory=set)
    leaves: list[str] = field(default_factory=list)
    operators: int = 0

    def __post_init__(self) -> None:
        self.graph = NumpyGraph()

    def shape(self, name: str) -> Shape:
        return self.values[name].shape

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def largest(self, name: str) -> float:
        return float(np.abs(self.values[name].array).max())

    def dim(self, name: str) -> int:
        """A dim, also counted from the end."""
        rank = self.rank(name)
        return self.rng.randrange(-rank, rank)

    def is_input(self, name: str) -> bool:
        return not name.startswith("t")

    # --- lines -------------------------------------------------------------------------------------------------

    def fresh(self, shape: Shape, dtype: str, *, mask: bool = False) -> str:
        """A new input."""
        if prod(shape) > MOST_ELEMENTS or max(shape) > LONGEST:
            raise Misfit
        name = f"{'mask' if mask else 'x'}{len(self.arrays)}"
        draws = np.random.default_rng(self.rng.getrandbits(32))
        bits = draws.integers(0, 2, shape).astype(np.float64)
        self.arrays.append(bits if mask else draws.standard_normal(shape))
        line = f'{name} = graph.new_input({shape!r}, mf.{dtype}, name="{name}")'
        self.lines.append(line)
        self.values[name] = Values(self.graph, self.arrays[-1])
        self.dtypes[name] = dtype
        return name

    def result(self, expression: str, *read: str, positive: bool = False, dtype: str = "") -> None:
        """A line whose result is a new tensor, or several."""
        operators = self.operators + len(_OPERATOR.findall(expression))
        if operators > MOST_OPERATORS:
            raise Misfit
        found: Any = eval(expression, {"graph": self.graph, "mf": mf}, dict(self.values))
        parts: list[Values] = found if isinstance(found, list) else [found]
        for part in parts:
            array = part.array
            if array.size > MOST_ELEMENTS or max(array.shape, default=1) > LONGEST or array.ndim > 5:
                raise Misfit
            if not np.isfinite(array).all() or np.abs(array).max() > _LARGEST:
                raise Misfit
        self.operators = operators
        names = [f"t{len(self.values) + i}" for i in range(len(parts))]
        self.lines.append(f"{', '.join(names)} = {expression}")
        for name, part in zip(names, parts, strict=True):
            self.values[name] = part
            self.dtypes[name] = dtype or self.dtypes[read[0]]
            if positive:
                self.positive.add(name)
        self.leaves = [leaf for leaf in self.leaves if leaf not in read] + names

    def call(self, name: str, operand: str, *arguments: str) -> str:
        """A call as a method of the graph or of the tensor."""
        if self.rng.random() < 0.5:
            return f"graph.{name}({', '.join((operand, *arguments))})"
        return f"{operand}.{name}({', '.join(arguments)})"

    # --- operands ----------------------------------------------------------------------------------------------

    def partner(self, name: str) -> str:
        """A tensor that broadcasts with another one: one that is there, or an input."""
        shape = self.shape(name)
        if self.rng.random() < 0.5:
            known = [other for other in self.values if other != name and self._fits(name, other)]
            unread = [other for other in known if other in self.leaves]
            if unread or known:
                return self.rng.choice(unread or known)
        kept = tuple(1 if self.rng.random() < 0.25 else extent for extent in shape)
        dropped = self.rng.randrange(len(kept)) if self.rng.random() < 0.25 else 0
        return self.fresh(kept[dropped:], self.dtypes[name])

    def _fits(self, a: str, b: str) -> bool:
        pairs = zip(reversed(self.shape(a)), reversed(self.shape(b)), strict=False)
        return self.dtypes[a] == self.dtypes[b] and all(x == y or 1 in (x, y) for x, y in pairs)

    def above_zero(self, name: str) -> str:
        """An expression that is positive: the tensor where it is known to be, else one that is made of it."""
        if name in self.positive:
            return name
        forms = [f"(graph.abs({name}) + 0.5)", f"({name} ** 2 + 1)"]
        return self.rng.choice(forms + [f"graph.sigmoid({name})"] * (self.largest(name) < 8))

    def along(self, name: str, dim: int) -> str:
        """A vector along a dim."""
        return self.fresh((self.shape(name)[dim],), self.dtypes[name])

    # --- trying -----------------------------------------------------------------------------------------------

    def attempt(self, write: Callable[[Writer, str], None], name: str) -> None:
        """Let an operator be written; where it does not fit, the inputs that it has made are taken back."""
        lines, arrays, values = len(self.lines), len(self.arrays), dict(self.values)
        try:
            write(self, name)
        except Misfit:
            del self.lines[lines:], self.arrays[arrays:]
            self.values = values

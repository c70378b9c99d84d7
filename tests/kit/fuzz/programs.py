"""Random programs as users write them: the text of a file, and what it computes, with no part of the front end used.

A program is written line by line, and every line is run on NumPy arrays (numpy_graph.py), so that the writer knows the
shapes and values that the next line may use. It draws operators, 2 to 12 of them, extents from 1 to 300, and 1 to 3
outputs. All texts are programs that have a meaning: logarithms and roots are of positive numbers, exponentials of
numbers that are not large, nothing is computed in vain, and every input is read.
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
Maker = Callable[["Writer", str], None]

LONGEST: Final = 300
MOST_OPERATORS: Final = 12
#: A call, a transposition, arithmetic, a slice or a sign.
_OPERATOR: Final = re.compile(r"\.\w+\(|\.mT| (?:[-+*/@]|\*\*) |\w\[|^-")
_MOST_ELEMENTS: Final = 1 << 16
_LARGEST: Final = 1e4
_USUAL: Final = (16, 32, 48, 64, 96, 128, 256)
_ODD: Final = (77, 100, 127, 129, 197, 255, 257, 300)


@dataclass(frozen=True, slots=True)
class Written:
    """A program.

    Attributes:
        text: Its file.
        inputs: Numbers for its inputs, in order.
        outputs: What it computes from them, in float64.
    """

    text: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


class Misfit(Exception):
    """An operator that cannot be applied here; another one is drawn."""


@dataclass
class Writer:
    """A program that is being written.

    Attributes:
        rng: Draws everything.
        dtype: Element type of new inputs, unless a partner has another one.
        lines: What is written.
        values: Every tensor by name.
        dtypes: Their element types.
        positive: Tensors that are above 0 whatever the inputs are.
        leaves: Results that nothing has read, in order.
        operators: How many operators the lines have.
    """

    rng: random.Random
    dtype: str
    lines: list[str] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    values: dict[str, Values] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    positive: set[str] = field(default_factory=set)
    leaves: list[str] = field(default_factory=list)
    operators: int = 0

    def __post_init__(self) -> None:
        self.graph = NumpyGraph(iter(self.arrays))

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
        if prod(shape) > _MOST_ELEMENTS or max(shape) > LONGEST:
            raise Misfit
        name = f"{'mask' if mask else 'x'}{len(self.arrays)}"
        draws = np.random.default_rng(self.rng.getrandbits(32))
        bits = draws.integers(0, 2, shape).astype(np.float64)
        self.arrays.append(bits if mask else draws.standard_normal(shape))
        line = f'{name} = graph.new_input({shape!r}, mf.{dtype}, name="{name}")'
        self.lines.append(line)
        self.values[name] = self.graph.new_input(shape)
        # The iterator over a list goes on where the list has grown.
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
            if array.size > _MOST_ELEMENTS or max(array.shape, default=1) > LONGEST or array.ndim > 5:
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


def extent(rng: random.Random) -> int:
    """From 1 to 300; small ones, odd ones and multiples of 16 more often than by chance."""
    choice = rng.random()
    if choice < 0.25:
        return rng.randint(1, 8)
    if choice < 0.6:
        return rng.randint(1, LONGEST)
    return rng.choice(_USUAL if choice < 0.85 else _ODD)


def first_shape(rng: random.Random) -> Shape:
    """Of the first input."""
    while True:
        shape = tuple(extent(rng) for _ in range(rng.choice((1, 2, 2, 2, 2, 3, 3, 4))))
        if prod(shape) <= _MOST_ELEMENTS:
            return shape


def program(seed: int) -> Written:
    """The program of a seed."""
    from tests.kit.fuzz.program_operators import OPERATORS

    makers, weights = zip(*OPERATORS, strict=True)
    rng = random.Random(seed)
    while True:
        dtype = rng.choice(("float16",) * 6 + ("bfloat16",) * 2)
        writer = Writer(rng, dtype)
        with np.errstate(all="ignore"):
            writer.fresh(first_shape(rng), dtype)
            _grow(writer, rng.randint(2, MOST_OPERATORS), makers, weights)
        if (found := _finished(writer)) is not None:
            return found


def _grow(writer: Writer, count: int, makers: tuple[Maker, ...], weights: tuple[float, ...]) -> None:
    rng = writer.rng
    while writer.operators < count:
        # Mostly what was made last; three outputs are all that may stay unread.
        waiting = writer.leaves or list(writer.values)
        name = waiting[-1] if rng.random() < 0.7 else rng.choice(waiting if len(waiting) > 2 else list(writer.values))
        before = (len(writer.lines), len(writer.arrays), dict(writer.values), list(writer.leaves))
        try:
            (maker,) = rng.choices(makers, weights)
            maker(writer, name)
        except Misfit:
            _undo(writer, *before)


def _undo(writer: Writer, lines: int, arrays: int, values: dict[str, Values], leaves: list[str]) -> None:
    """Take back what an operator that does not fit has written: its new inputs."""
    del writer.lines[lines:]
    if len(writer.arrays) > arrays:
        del writer.arrays[arrays:]
        # An iterator that has come to the end of its list stays there.
        writer.graph._arrays = _from(writer.arrays, arrays)
    writer.values, writer.leaves = values, leaves


def _from(arrays: list[Array], start: int) -> Any:
    while True:
        yield arrays[start]
        start += 1


def _finished(writer: Writer) -> Written | None:
    """The program, if it has 1 to 3 outputs and reads every input."""
    rng = writer.rng
    outputs = list(writer.leaves)
    inner = [name for name in writer.values if not writer.is_input(name) and name not in outputs]
    if inner and len(outputs) < 3 and rng.random() < 0.15:
        outputs.append(rng.choice(inner))
    if not 1 <= len(outputs) <= 3:
        return None
    lines = [*writer.lines, *(f"graph.mark_output({name})" for name in outputs)]
    text = "\n".join(("import mirage_formal as mf", "", "graph = mf.new_kernel_graph()", *lines, ""))
    return Written(text, tuple(writer.arrays), tuple(writer.values[name].array for name in outputs))

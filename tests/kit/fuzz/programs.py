"""Random programs as users write them: the text of a file, and what it computes, with no part of the front end used.

2 to 12 operators, extents from 1 to 300, 1 to 3 outputs. All are programs that have a meaning: logarithms and roots are
of positive numbers, exponentials of numbers that are not large, every result is used, and every input is read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tests.kit.fuzz.numpy_graph import Array
from tests.kit.fuzz.program_operators import OPERATORS
from tests.kit.fuzz.program_writer import LONGEST, MOST_ELEMENTS, MOST_OPERATORS, Shape, Writer

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
        if prod(shape) <= MOST_ELEMENTS:
            return shape


def program(seed: int) -> Written:
    """The program of a seed."""
    rng = random.Random(seed)
    while True:
        dtype = rng.choice(("float16",) * 6 + ("bfloat16",) * 2)
        writer = Writer(rng)
        with np.errstate(all="ignore"):
            writer.fresh(first_shape(rng), dtype)
            _grow(writer, rng.randint(2, MOST_OPERATORS))
        if (found := _finished(writer)) is not None:
            return found


def _grow(writer: Writer, count: int) -> None:
    rng = writer.rng
    makers, weights = zip(*OPERATORS, strict=True)
    while writer.operators < count:
        # Mostly what was made last; three outputs are all that may stay unread.
        waiting = writer.leaves or list(writer.values)
        name = waiting[-1] if rng.random() < 0.7 else rng.choice(waiting if len(waiting) > 2 else list(writer.values))
        writer.attempt(rng.choices(makers, weights)[0], name)


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

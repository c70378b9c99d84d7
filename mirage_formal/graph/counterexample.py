"""An input on which two programs differ, as plain data that JSON takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fill:
    """The default values of one input: ``even`` where the sum of the coordinates is even, ``odd`` elsewhere.

    Both are 0 wherever that leaves the programs defined; norms need elements other than 0, layer norms unequal ones.
    """

    even: int
    odd: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One element of an input that has another value than the default; an integer, or a float where none will do."""

    input: int
    index: tuple[int, ...]
    value: int | float


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Inputs on which a program and a candidate differ, and where.

    Attributes:
        fills: The default values of each input.
        entries: The elements that have other values.
        output: Number of the first output that differs.
        index: Its first element, in row-major order, that differs clearly.
        expected: That element as the program has it, in float64.
        got: That element as the candidate has it.
    """

    fills: tuple[Fill, ...]
    entries: tuple[Entry, ...]
    output: int
    index: tuple[int, ...]
    expected: float
    got: float

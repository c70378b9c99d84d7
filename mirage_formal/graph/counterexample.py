"""Inputs on which two programs differ, as plain data for JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DefaultValues:
    """Default values of one input: ``even`` where the sum of the coordinates is even, ``odd`` elsewhere.

    Both are 0 wherever that leaves the programs defined; norms need elements other than 0, layer norms unequal ones.
    """

    even: int
    odd: int


@dataclass(frozen=True, slots=True)
class CounterexampleEntry:
    """Element of an input whose value differs from the default: an integer, or a float where no integer serves."""

    input: int
    index: tuple[int, ...]
    value: int | float


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Inputs on which a program and a candidate differ, and the first output element that differs.

    Attributes:
        fills: The default values of each input.
        entries: The elements that have other values.
        output: Number of the first output that differs.
        index: Its first element, in row-major order, that differs clearly.
        expected: The program's value of that element, in float64.
        got: The candidate's value of that element.
    """

    fills: tuple[DefaultValues, ...]
    entries: tuple[CounterexampleEntry, ...]
    output: int
    index: tuple[int, ...]
    expected: float
    got: float

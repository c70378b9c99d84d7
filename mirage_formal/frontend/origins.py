"""Where a program's inputs and operators stand in the user's file: kept beside the program, no part of its value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from mirage_formal.graph.graph import GraphDefined, KernelGraph


@dataclass(frozen=True, slots=True)
class Origin:
    """A line of the user's.

    Attributes:
        path: The file, as Python names it.
        line: The line, from 1.
        call: The function of the front end that it calls, as in "add"; an operator of Python is its symbol.
    """

    path: str
    line: int
    call: str

    def __str__(self) -> str:
        """As in ``examples/attn.py:14``; files below the working directory are named from it."""
        path = self.path
        if os.path.isabs(path):
            try:
                near = os.path.relpath(path)
            except (ValueError, OSError):  # another drive; a working directory that is gone
                near = path
            path = path if near.startswith(os.pardir) else near
        return f"{path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Origins:
    """The lines of a program's inputs and operators, in its order; None for one that has no line."""

    inputs: tuple[Origin | None, ...]
    operators: tuple[Origin | None, ...]

    def input(self, program: KernelGraph, number: int) -> str:
        """Where an input stands; its name, if that is not known."""
        return str(self.inputs[number] or f"input {program.inputs[number].name}")

    def operator(self, program: KernelGraph, number: int) -> str:
        """Where an operator stands; its number and kind, if that is not known."""
        op = program.ops[number]
        kind = "customized" if isinstance(op, GraphDefined) else op.kind.value
        return str(self.operators[number] or f"operator {number} ({kind})")

    def part(self, operators: Sequence[int], reads: Sequence[int]) -> Origins:
        """The lines of a part of the program: its operators, and the tensors that it reads as its inputs."""
        every = (*self.inputs, *self.operators)
        return Origins(tuple(every[i] for i in reads), tuple(self.operators[i] for i in operators))


def unknown(program: KernelGraph) -> Origins:
    """Those of a program that was not written with the front end."""
    return Origins((None,) * len(program.inputs), (None,) * len(program.ops))


def origins_of(graph: object, program: KernelGraph) -> Origins:
    """Where a graph of the front end, frozen as ``program``, has its lines; unknown for any other value."""
    origins = getattr(graph, "origins", None)
    found = origins() if callable(origins) else None
    return found if isinstance(found, Origins) else unknown(program)

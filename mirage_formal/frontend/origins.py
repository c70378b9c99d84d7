"""Source locations of a program's inputs and operators in the user's file, kept beside the program's value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from mirage_formal.graph.graph import GraphDefined, KernelGraph


@dataclass(frozen=True, slots=True)
class Origin:
    """Source location of one call of the user.

    Attributes:
        path: The file, as Python names it.
        line: The line, from 1.
        call: The function of the front end that it calls, as in "add"; an operator of Python is its symbol.
    """

    path: str
    line: int
    call: str

    def __str__(self) -> str:
        """Return text such as ``examples/attn.py:14``; files below the working directory are named from it."""
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
    """Source locations of a program's inputs and operators, in its order; None for one that has no line."""

    inputs: tuple[Origin | None, ...]
    operators: tuple[Origin | None, ...]

    def input(self, program: KernelGraph, number: int) -> str:
        """Return the location of an input; its name, if that is not known."""
        return str(self.inputs[number] or f"input {program.inputs[number].name}")

    def operator(self, program: KernelGraph, number: int) -> str:
        """Return the location of an operator; its number and kind, if that is not known."""
        op = program.ops[number]
        kind = "customized" if isinstance(op, GraphDefined) else op.kind.value
        return str(self.operators[number] or f"operator {number} ({kind})")

    def part(self, operators: Sequence[int], reads: Sequence[int]) -> Origins:
        """Return the locations of a part of the program: its operators, and the tensors that are its inputs."""
        every = (*self.inputs, *self.operators)
        return Origins(tuple(every[i] for i in reads), tuple(self.operators[i] for i in operators))


def unknown_origins(program: KernelGraph) -> Origins:
    """Return empty locations, for a program that was not written with the front end."""
    return Origins((None,) * len(program.inputs), (None,) * len(program.ops))


def origins_of(graph: object, program: KernelGraph) -> Origins:
    """Return the locations of a front-end graph, frozen as ``program``; empty ones for any other value."""
    origins = getattr(graph, "origins", None)
    found = origins() if callable(origins) else None
    return found if isinstance(found, Origins) else unknown_origins(program)

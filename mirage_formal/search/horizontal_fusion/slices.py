"""Extraction of subgraphs as programs of their own, and the backward slices of a program's outputs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mirage_formal.graph.edit import number_in_order
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph
from mirage_formal.graph.types import DTensor, row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.support.errors import UnsupportedError


class BackwardSlice(Struct, frozen=True):
    """Backward slice of one output of a program.

    Attributes:
        program: Operators of the given program as a program with one output.
        reads: For each of its inputs, the number of the given program's tensor.
        result: Number of the given program's tensor that it computes.
    """

    program: KernelGraph
    reads: tuple[int, ...]
    result: int


def extract_subgraph(
    program: KernelGraph, types: Sequence[DTensor], operators: Sequence[int], results: Sequence[int]
) -> tuple[KernelGraph, tuple[int, ...]]:
    """Return some operators of a program as a program of their own, with inputs x0, x1, ... in the order of first use.

    Args:
        program: A program of predefined operators.
        types: The types of all its tensors.
        operators: Numbers of operators, ascending.
        results: Tensors of the program that are the outputs; each is the result of one of the operators.

    Returns:
        The program, and for each of its inputs the number of the given program's tensor.
    """
    base = len(program.inputs)
    inside = {base + number for number in operators}
    used = (i for number in operators for i in program.ops[number].operands)
    reads = tuple(dict.fromkeys(i for i in used if i not in inside))
    ops, place = number_in_order(reads, ((program.ops[number], (base + number,)) for number in operators))
    inputs = tuple(_input(program, types, tensor, i) for i, tensor in enumerate(reads))
    return KernelGraph(inputs, ops, tuple(place[tensor] for tensor in results)), reads


def _input(program: KernelGraph, types: Sequence[DTensor], tensor: int, number: int) -> Input:
    given = tensor < len(program.inputs)
    strides = program.inputs[tensor].strides if given else row_major(types[tensor].shape)
    return Input(f"x{number}", types[tensor], strides)


def backward_slices(program: KernelGraph) -> tuple[tuple[BackwardSlice, ...], ...]:
    """Return for each output its backward slices: from the program's inputs, and with other outputs as inputs.

    The second is left out where no other output is needed. An output that reads another one may be too large for one
    kernel from the inputs on, but only one step behind the other output.

    Args:
        program: A program of predefined operators.

    Raises:
        UnsupportedError: An output is an input, or an operator is graph-defined.
    """
    base = len(program.inputs)
    if any(isinstance(op, GraphDefined) for op in program.ops) or any(i < base for i in program.outputs):
        what = "expected outputs that predefined operators compute"
        raise UnsupportedError(what, where="slices", hint="leave outputs that are inputs out")
    types = kernel_types(program)
    found: list[tuple[BackwardSlice, ...]] = []
    for output in program.outputs:
        cones = (_needed_operators(program, output, stop) for stop in ((), program.outputs))
        made = (
            (operators, *extract_subgraph(program, types, operators, (output,))) for operators in dict.fromkeys(cones)
        )
        found.append(tuple(BackwardSlice(graph, reads, output) for _, graph, reads in made))
    return tuple(found)


def _needed_operators(program: KernelGraph, output: int, stop: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers, ascending, of the operators that a tensor needs, without those behind tensors in ``stop``."""
    base = len(program.inputs)
    needed: set[int] = set()
    todo = [output]
    while todo:
        tensor = todo.pop()
        number = tensor - base
        if number < 0 or number in needed or (tensor in stop and tensor != output):
            continue
        needed.add(number)
        todo += program.ops[number].operands
    return tuple(sorted(needed))


__all__ = ["BackwardSlice", "backward_slices", "extract_subgraph"]

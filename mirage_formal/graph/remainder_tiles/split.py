"""Decomposition of a graph into pads of inputs, a core, and slices of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, Op, enumerate_results
from mirage_formal.graph.ops import MOVES, OpKind
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verifier import kernel_types

_AnyOp = TypeVar("_AnyOp", Op, KernelOp)


@dataclass(frozen=True, slots=True)
class BoundaryOperators:
    """Operators around a core graph, over its inputs and over its results: pads and slices, or views and reshapes.

    Attributes:
        front: Operators over the inputs of the whole and each other's results.
        reads: For each input of the core, the number of the tensor that it reads.
        back: Operators over the core's results; their operands are counted from 0, the core's outputs first.
        outputs: The numbers, in the same count, of the outputs of the whole.
    """

    front: tuple[Op, ...]
    reads: tuple[int, ...]
    back: tuple[Op, ...]
    outputs: tuple[int, ...]

    def around(self, inputs: tuple[Input, ...], graph: KernelGraph) -> KernelGraph:
        """Return the whole graph: the operators in front, the core's operators, the operators behind.

        Args:
            inputs: The inputs of the whole.
            graph: The core.
        """
        count = len(inputs) + len(self.front)
        number = list(self.reads)
        for op in graph.ops:
            number += range(count, count + op.results)
            count += op.results
        last = [number[n] for n in graph.outputs]
        last += range(count, count + len(self.back))
        ops = (
            *self.front,
            *(_renumber(op, number) for op in graph.ops),
            *(_renumber(op, last) for op in self.back),
        )
        return KernelGraph(inputs, ops, tuple(last[n] for n in self.outputs))


def split_pads_and_slices(graph: KernelGraph, *, moves: bool = False) -> tuple[BoundaryOperators, KernelGraph] | None:
    """Return the pads and slices around a graph, and the core between them; None if there are none.

    None as well if an input is read both padded and not, or under different pads, unless ``moves`` is set.

    Sound: every operator is a pad over inputs alone, or a slice that only slices and outputs follow, or in between;
    ``BoundaryOperators.around`` puts what is in between back where it was, with each operator on the tensors that it
    had.

    Args:
        graph: The whole.
        moves: Whether all operators that move elements count like pads and slices, and an input may be read in several
            ways, each of which is an input of the core.
    """
    ahead, after = (MOVES - {OpKind.CONCAT}, MOVES) if moves else (frozenset({OpKind.PAD}), frozenset({OpKind.SLICE}))
    if not any(isinstance(op, Op) and op.kind in ahead | after for op in graph.ops):
        return None
    count, types = len(graph.inputs), kernel_types(graph)
    makers = dict(enumerate_results(count, graph.ops))
    source = {n: n for n in range(count)}  # of inputs and padded ones
    for first, op in makers.items():
        if isinstance(op, Op) and op.kind in ahead and op.operands[0] in source:
            source[first] = source[op.operands[0]]
    behind: set[int] = set()
    for first, op in reversed(makers.items()):
        readers = {reader for reader, other in makers.items() if first in other.operands}
        read = first in graph.outputs or bool(readers)
        inside = first not in source and not any(n in source for n in op.operands)
        if isinstance(op, Op) and op.kind in after and read and readers <= behind and inside:
            behind.add(first)
    core = [op for first, op in makers.items() if first not in source and first not in behind]
    if len(core) == len(makers) or not core:
        return None
    entries = {n for op in core for n in op.operands if n in source}
    ends = [n for n in graph.outputs if n not in behind]
    ends += [n for first in sorted(behind) for n in makers[first].operands if n not in behind]
    ends = list(dict.fromkeys(ends))
    reads = [next((n for n in sorted(entries) if source[n] == i), i) for i in range(count)]
    if (len(entries) > len({source[n] for n in entries}) and not moves) or any(n in source for n in ends):
        return None
    reads = sorted(entries) if moves else reads
    strides = {n: graph.inputs[n].strides if n < count else row_major(types[n].shape) for n in reads}
    inputs = [Input(f"x{i}" if moves else graph.inputs[i].name, types[n], strides[n]) for i, n in enumerate(reads)]
    front, back = sorted(n for n in source if n >= count), sorted(behind)
    return split_at(graph, (front, reads), (ends, back), inputs)


def split_at(
    graph: KernelGraph,
    front: tuple[Sequence[int], Sequence[int]],
    back: tuple[Sequence[int], Sequence[int]],
    inputs: Sequence[Input],
) -> tuple[BoundaryOperators, KernelGraph]:
    """Split a program into operators on inputs, a core, and operators on results.

    Args:
        graph: The whole.
        front: Results of the operators over inputs; and the tensors that the core reads, inputs or such results.
        back: The core's results; and results of the operators over these. Results are ascending, here as in front.
        inputs: For each tensor that the core reads, the core's input.
    """
    (ahead, reads), (ends, behind), count = front, back, len(graph.inputs)
    makers = dict(enumerate_results(count, graph.ops))
    before = {n: i for i, n in enumerate((*range(count), *ahead))}
    after = {n: i for i, n in enumerate((*ends, *behind))}
    wrapping = BoundaryOperators(
        tuple(op for n in ahead if isinstance(op := _renumber(makers[n], before), Op)),
        tuple(before[n] for n in reads),
        tuple(op for n in behind if isinstance(op := _renumber(makers[n], after), Op)),
        tuple(after[n] for n in graph.outputs),
    )
    number = {n: i for i, n in enumerate(reads)}
    ops: list[KernelOp] = []
    for first, op in makers.items():
        if first not in ahead and first not in behind:
            ops.append(_renumber(op, number))
            for r in range(op.results):
                number[first + r] = len(number)
    return wrapping, KernelGraph(tuple(inputs), tuple(ops), tuple(number[n] for n in ends))


def _renumber(op: _AnyOp, number: Mapping[int, int] | Sequence[int]) -> _AnyOp:
    return replace(op, operands=tuple(number[n] for n in op.operands))


__all__ = ["BoundaryOperators", "split_at", "split_pads_and_slices"]

"""Stitching of the replacements of a program's subgraphs to one graph."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.edit import renumber
from mirage_formal.graph.graph import KernelGraph, KernelOp, enumerate_results
from mirage_formal.partition.partition import Part


def stitch(program: KernelGraph, pieces: Sequence[tuple[Part, KernelGraph]]) -> KernelGraph:
    """Concatenate the graphs of all subgraphs over the program's inputs.

    Args:
        program: The program.
        pieces: Its subgraphs in topological order, each with a graph over the subgraph's inputs.

    Sound: every graph reads what stands for the tensors that its part reads, and its outputs stand for the part's
    results. If each graph computes what its part does, every tensor that a part hands on is the program's, part by
    part, and so are the outputs.

    Raises:
        GraphError: The graphs do not fit together.
    """
    stands = {number: number for number in range(len(program.inputs))}
    count = len(program.inputs)
    ops: list[KernelOp] = []
    for part, graph in pieces:
        place = [stands[tensor] for tensor in part.reads]
        for first, op in enumerate_results(len(graph.inputs), graph.ops):
            assert first == len(place)
            ops.append(renumber(op, place))
            place += range(count, count + op.results)
            count += op.results
        stands |= {tensor: place[number] for tensor, number in zip(part.results, graph.outputs, strict=True)}
    whole = KernelGraph(program.inputs, tuple(ops), tuple(stands[tensor] for tensor in program.outputs))
    kernel_types(whole)
    return whole

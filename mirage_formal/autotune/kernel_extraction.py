"""Extraction of each kernel of a µGraph as a µGraph of its own that is launched and timed by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_formal.check.partitioning.subgraphs import extract_operators
from mirage_formal.graph.graph import GraphDefined, KernelGraph, enumerate_results
from mirage_formal.graph.storage_views import StorageLocation, launched_operators, storage_locations


@dataclass(frozen=True, slots=True)
class KernelPiece:
    """One launched operator with the views of its inputs and outputs.

    Attributes:
        graph: The extracted µGraph; its inputs are the tensors in memory that the kernel reads, and its band masks.
        position: Position of the launched operator in ``graph``.
        operator: Position of the launched operator in the original µGraph.
        warm: For each input, whether an earlier kernel writes it.
    """

    graph: KernelGraph
    position: int
    operator: int
    warm: tuple[bool, ...]


def extract_kernels(graph: KernelGraph) -> list[KernelPiece]:
    """Return the launched operators of a well-formed µGraph as µGraphs of their own, in order."""
    known = storage_locations(graph)
    return [_extract_kernel(graph, position, known) for position in launched_operators(graph)]


def _extract_kernel(graph: KernelGraph, position: int, known: Sequence[StorageLocation]) -> KernelPiece:
    count = len(graph.inputs)
    firsts = [first for first, _ in enumerate_results(count, graph.ops)]
    makers = {n: at for at, op in enumerate(graph.ops) for n in range(firsts[at], firsts[at] + op.results)}
    op = graph.ops[position]
    inside = {position}
    waiting = list(op.operands)
    while waiting:  # views that it reads, up to the tensors in whose memory they lie
        tensor = waiting.pop()
        if tensor >= count and known[tensor].base != tensor and makers[tensor] not in inside:
            inside.add(makers[tensor])
            waiting += graph.ops[makers[tensor]].operands
    results = list(range(firsts[position], firsts[position] + op.results))
    ends = [_owner_of_memory(graph, tensor, known, makers, inside) for tensor in results]
    operators = sorted(inside)
    piece = extract_operators(graph, operators)
    number = {tensor: i for i, tensor in enumerate(piece.reads)}
    made = (n for at in operators for n in range(firsts[at], firsts[at] + graph.ops[at].results))
    number |= {tensor: len(piece.reads) + i for i, tensor in enumerate(made)}
    outputs = tuple(dict.fromkeys(number[tensor] for tensor in ends))
    warm = tuple(tensor >= count for tensor in piece.reads)
    # The kernel computes its band masks, as that of the whole µGraph does.
    read = zip(piece.program.inputs, piece.reads, strict=True)
    inputs = tuple(replace(item, band=graph.inputs[n].band) if n < count else item for item, n in read)
    program = replace(piece.program, inputs=inputs, outputs=outputs)
    return KernelPiece(program, operators.index(position), position, warm)


def _owner_of_memory(
    graph: KernelGraph, tensor: int, known: Sequence[StorageLocation], makers: dict[int, int], inside: set[int]
) -> int:
    """Return the tensor whose memory holds a result, and add the operators of the views between them to ``inside``.

    A result of a fused kernel may be a slice or reshape of that tensor.
    """
    end = known[tensor].base
    if end == tensor or not isinstance(graph.ops[makers[tensor]], GraphDefined):
        return tensor
    at = end
    while at != tensor:
        inside.add(makers[at])
        at = graph.ops[makers[at]].operands[0]
    return end


__all__ = ["KernelPiece", "extract_kernels"]

"""Programs at other extents, and what a candidate with tails computes at the padded ones.

A candidate whose tiles overhang its tensors computes slices(kernels(pads(x))). It computes a program P if its kernels
compute P', the program's own operators on inputs of the padded extents, and if slices(P'(pads(x))) is P(x). The first
has no pads in it, the second no grids and loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, Op, numbered
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.rules import device_results
from mirage_formal.graph.tails.apart import apart
from mirage_formal.graph.types import DTensor, Shape, row_major


@dataclass(frozen=True, slots=True)
class Tails:
    """A candidate taken apart.

    Attributes:
        program: The program's operators on inputs of the padded extents.
        candidate: The candidate's operators between its pads and its slices, on the same inputs.
        padded: The program's operators between the candidate's pads and slices, on the program's inputs.
    """

    program: KernelGraph
    candidate: KernelGraph
    padded: KernelGraph


def tails(program: KernelGraph, candidate: KernelGraph) -> Tails | None:
    """A candidate taken apart; None if it has neither pads in front nor slices behind, or the program does not fit.

    Args:
        program: A well-formed program.
        candidate: A well-formed graph with its inputs.
    """
    found = apart(candidate)
    if found is None or len(program.inputs) != len(candidate.inputs):
        return None
    wrapping, inner = found
    own = resized(program, [item.tensor.shape for item in inner.inputs])
    if own is None or _outputs(own) != _outputs(inner):
        return None
    return Tails(own, inner, wrapping.around(program.inputs, own))


def matched(program: KernelGraph, candidate: KernelGraph) -> tuple[KernelGraph, KernelGraph]:
    """The program and the candidate at the padded extents, where the candidate can be taken apart; else they are."""
    found = tails(program, candidate)
    return (program, candidate) if found is None else (found.program, found.candidate)


def _outputs(graph: KernelGraph) -> list[DTensor]:
    types = kernel_types(graph)
    return [types[n] for n in graph.outputs]


def _of(item: Input, tensor: DTensor) -> Input:
    """An input at other extents; row-major unless nothing changes."""
    if tensor.shape == item.tensor.shape:
        return item
    return Input(item.name, tensor, row_major(tensor.shape))


def resized(program: KernelGraph, shapes: Sequence[Shape]) -> KernelGraph | None:
    """A program's operators on inputs of other shapes; None where they do not fit, or are not predefined.

    What it computes is another function where an operator's meaning depends on the extents, as a mean's does.
    """
    inputs = tuple(
        _of(item, DTensor(shape, item.tensor.dtype)) for item, shape in zip(program.inputs, shapes, strict=True)
    )
    before, types = kernel_types(program), [item.tensor for item in inputs]
    ops: list[KernelOp] = []
    for first, op in numbered(len(inputs), program.ops):
        if not isinstance(op, Op):
            return None
        given = tuple(types[n] for n in op.operands)
        if op.kind is OpKind.RESHAPE:
            shape = _reshaped(before[op.operands[0]].shape, given[0].shape, before[first].shape)
            op = replace(op, attrs=replace(op.attrs, shape=shape))
        found = device_results(op.kind, op.attrs, given)
        if isinstance(found, str):
            return None
        ops.append(op)
        types += found
    return KernelGraph(inputs, tuple(ops), program.outputs)


def _reshaped(before: Shape, given: Shape, target: Shape) -> Shape:
    """The target of a reshape of other extents: dims that stay one dim have the new ones."""
    out = list(target)
    for old, new in same_dims(before, target):
        out[new] = given[old]
    return tuple(out)


def same_dims(before: Shape, target: Shape) -> list[tuple[int, int]]:
    """Pairs of dims of a tensor and of its reshape that hold the same index: as much is in front of both as behind."""
    found: list[tuple[int, int]] = []
    for old, extent in enumerate(before):
        for new, other in enumerate(target):
            if extent == other > 1 and prod(before[:old]) == prod(target[:new]):
                found.append((old, new))
    return found


__all__ = ["Tails", "matched", "resized", "same_dims", "tails"]

"""Programs at padded extents, for candidates whose remainder tiles overhang their tensors.

A candidate whose tiles overhang its tensors computes slices(kernels(pads(x))). It computes a program P if its kernels
compute P', the program's own operators on inputs of the padded extents, and if slices(P'(pads(x))) is P(x). The first
condition contains no pads, the second no grids and loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, Op, enumerate_results
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.remainder_tiles.split import BoundaryOperators, split_pads_and_slices
from mirage_formal.graph.type_rules import device_results
from mirage_formal.graph.types import DTensor, Shape, row_major
from mirage_formal.graph.verifier import kernel_types, output_types


@dataclass(frozen=True, slots=True)
class RemainderTiles:
    """Decomposition of a candidate with remainder tiles.

    Attributes:
        program: The program's operators on inputs of the padded extents.
        candidate: The candidate's operators between its pads and its slices, on the same inputs.
        padded: The program's operators between the candidate's pads and slices, on the program's inputs.
    """

    program: KernelGraph
    candidate: KernelGraph
    padded: KernelGraph


def decompose_remainder_tiles(program: KernelGraph, candidate: KernelGraph) -> RemainderTiles | None:
    """Decompose a candidate; return None if it has neither pads nor slices around it, or the program does not fit.

    Args:
        program: A well-formed program.
        candidate: A well-formed graph with its inputs.
    """
    found = split_pads_and_slices(candidate)
    if found is None or len(program.inputs) != len(candidate.inputs):
        return None
    wrapping, inner = found
    own = resize(program, [item.tensor.shape for item in inner.inputs])
    if own is None or (ends := _output_of_result(wrapping, len(inner.outputs))) is None:
        return None
    own = replace(own, outputs=tuple(own.outputs[n] for n in ends))
    if output_types(own) != output_types(inner):
        return None
    return RemainderTiles(own, inner, wrapping.around(program.inputs, own))


def _output_of_result(wrapping: BoundaryOperators, count: int) -> list[int] | None:
    """Return for each result of the core an output of the whole that is this result, or a slice of it.

    Kernels may give their results in another order than the program has its outputs. None if a result is none of them.
    """
    source = list(range(count))
    for op in wrapping.back:
        source.append(source[op.operands[0]])
    reached = [source[n] for n in wrapping.outputs]
    return [reached.index(n) for n in range(count)] if set(reached) == set(range(count)) else None


def with_shape(item: Input, shape: Shape) -> Input:
    """Return an input at other extents; row-major unless nothing changes."""
    if shape == item.tensor.shape:
        return item
    return Input(item.name, DTensor(shape, item.tensor.dtype), row_major(shape))


def resize(program: KernelGraph, shapes: Sequence[Shape]) -> KernelGraph | None:
    """Return a program's operators on inputs of other shapes; None where they do not fit, or are not predefined.

    A mean keeps its divisor, so that zeros behind the end of the reduced dim change nothing: where that dim has another
    extent, it is written as a sum and a product with a constant, and so is the mean in an RMS norm. The results of
    other operators may depend on the extents, as a softmax does.
    """
    inputs = tuple(with_shape(item, shape) for item, shape in zip(program.inputs, shapes, strict=True))
    before, types = kernel_types(program), [item.tensor for item in inputs]
    number, ops = list(range(len(inputs))), list[KernelOp]()
    for first, op in enumerate_results(len(inputs), program.ops):
        if not isinstance(op, Op):
            return None
        old, new = before[op.operands[0]].shape, types[number[op.operands[0]]].shape
        if op.kind is OpKind.RESHAPE:
            op = replace(op, attrs=replace(op.attrs, shape=reshape_target(old, new, before[first].shape)))
        for step in _operators_at_extent(op, old, new):
            # An operand below 0 is a step of this operator, counted from the last one.
            given = tuple(len(types) + n if n < 0 else number[n] for n in step.operands)
            found = device_results(step.kind, step.attrs, tuple(types[n] for n in given))
            if isinstance(found, str):
                return None
            ops.append(replace(step, operands=given))
            types += found
        number.append(len(types) - 1)
    return KernelGraph(inputs, tuple(ops), tuple(number[n] for n in program.outputs))


def _operators_at_extent(op: Op, old: Shape, new: Shape) -> list[Op]:
    """Return an operator at another extent of its first operand, as one operator or several."""
    dim = op.attrs.dim
    if op.kind not in (OpKind.MEAN, OpKind.RMS_NORM) or dim is None or old[dim] == new[dim]:
        return [op]
    x, *weight = op.operands
    along, divisor = Attrs(dim=dim), Attrs(factor=Fraction(1, old[dim]))
    if op.kind is OpKind.MEAN:
        return [Op(OpKind.SUM, (x,), along), Op(OpKind.SCALE, (-1,), divisor)]
    found = [Op(OpKind.SQUARE, (x,)), Op(OpKind.SUM, (-1,), along), Op(OpKind.SCALE, (-1,), divisor)]
    if op.attrs.eps is not None:
        found.append(Op(OpKind.SHIFT, (-1,), Attrs(shift=op.attrs.eps)))
    found += [Op(OpKind.SQRT, (-1,)), Op(OpKind.DIV, (x, -1))]
    return [*found, Op(OpKind.MUL, (-1, weight[0]))] if weight else found


def reshape_target(before: Shape, given: Shape, target: Shape) -> Shape:
    """Return the target of a reshape at other extents: dims that stay one dim have the new ones."""
    out = list(target)
    for old, new in equal_index_dims(before, target):
        out[new] = given[old]
    return tuple(out)


def equal_index_dims(before: Shape, target: Shape) -> list[tuple[int, int]]:
    """Return pairs of dims of a tensor and of its reshape with the same index: the dims before have equal products."""
    found: list[tuple[int, int]] = []
    for old, extent in enumerate(before):
        for new, other in enumerate(target):
            if extent == other > 1 and prod(before[:old]) == prod(target[:new]):
                found.append((old, new))
    return found


__all__ = ["RemainderTiles", "decompose_remainder_tiles", "equal_index_dims", "reshape_target", "resize", "with_shape"]

"""Type rules of single operators: result types of an operator, input iterator, thread graph or output saver.

Each rule returns the result types, or a text with the expected and the given. They are shared by the check of whole
graphs (graph/verifier.py), which collects every fault, and by the front end (frontend/kernel_builder.py), which stops
at the user's line.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from math import prod
from typing import Final

from mirage_formal.graph.graph import InputIterator, OutputSaver
from mirage_formal.graph.ops import EXTREMES, SPECS, TAKES_MASKS, Attrs, BlockContext, Family, Level, OpKind
from mirage_formal.graph.types import (
    MAX_ELEMENTS,
    MAX_EXTENT,
    MAX_RANK,
    Dim3,
    DTensor,
    DType,
    RTensor,
    Shape,
    STensor,
)

_ATTRIBUTES: Final = tuple(field.name for field in fields(Attrs))
_AXES: Final = "xyz"


def shape_fault(shape: Shape) -> str | None:
    """Return the fault of a shape: its rank, an extent, or the number of elements; None if it has none."""
    if not 1 <= len(shape) <= MAX_RANK:
        return f"expected a rank in 1..{MAX_RANK}, got {len(shape)}"
    for extent in shape:
        if not 1 <= extent <= MAX_EXTENT:
            return f"expected extents in 1..{MAX_EXTENT}, got {extent}"
    if prod(shape) > MAX_ELEMENTS:
        return f"expected at most 2^{MAX_ELEMENTS.bit_length() - 1} elements, got {prod(shape)} in {list(shape)}"
    return None


def signature_fault(kind: OpKind, attrs: Attrs, arity: int, level: Level) -> str | None:
    """Return the fault of an operator that needs no types: level, number of operands, attributes.

    None if it has none.
    """
    spec = SPECS[kind]
    if level not in spec.levels:
        return f"expected an operator of the {level.value} level, got {kind.value}"
    if not spec.min_arity <= arity <= spec.max_arity:
        wanted = str(spec.min_arity) if spec.min_arity == spec.max_arity else f"{spec.min_arity}..{spec.max_arity}"
        return f"expected {wanted} operands, got {arity}"
    for name in _ATTRIBUTES:
        present = getattr(attrs, name) is not None
        if present and name not in spec.required and name not in spec.optional:
            return f"expected no attribute {name}, got {getattr(attrs, name)}"
        if not present and name in spec.required:
            return f"expected an attribute {name}, got none"
    if (attrs.value is not None) != (arity < spec.max_arity) and "value" in spec.optional:
        return f"expected {spec.max_arity} operands, or a value in place of the last, got {arity} operands"
    if attrs.eps is not None and attrs.eps <= 0:
        return f"expected a positive eps, got {attrs.eps}"
    return None


def result_dtype(kind: OpKind, attrs: Attrs, dtypes: tuple[DType, ...]) -> DType | str:
    """Return the element type of an operator's results, or a text with the fault."""
    spec = SPECS[kind]
    if spec.family is Family.SELECTION:
        if dtypes[0].floating:
            return f"expected a mask of booleans as first operand, got {dtypes[0].value}"
        dtypes = dtypes[1:]
    if any(dtype is not dtypes[0] for dtype in dtypes):
        return f"expected operands of one element type, got {', '.join(d.value for d in dtypes)}"
    if spec.family is Family.SELECTION and dtypes[0].floating:
        return dtypes[0]
    if not dtypes[0].floating and kind not in TAKES_MASKS:
        return "expected floating-point operands, got a mask of booleans; cast it first"
    if not dtypes[0].floating and attrs.value is not None and kind in EXTREMES:
        return f"expected floating-point operands beside the number {attrs.value}, got a mask of booleans"
    if kind is OpKind.LOGICAL_NOT and dtypes[0].floating:
        return f"expected a mask of booleans, got {dtypes[0].value}"
    if kind is OpKind.CAST and attrs.dtype is DType.BOOL and dtypes[0].floating:
        return "expected a floating-point element type, got bool; compare with 0 to make a mask"
    return DType.BOOL if spec.family is Family.COMPARISON else attrs.dtype or dtypes[0]


def _shapes_and_dtype(
    kind: OpKind, attrs: Attrs, operands: tuple[DTensor | STensor | RTensor, ...], context: BlockContext | None = None
) -> tuple[tuple[Shape, ...], DType] | str:
    dtype = result_dtype(kind, attrs, tuple(t.dtype for t in operands))
    if not isinstance(dtype, DType):
        return dtype
    found = SPECS[kind].shape(attrs, tuple(t.shape for t in operands), context)
    if isinstance(found, str):
        return found
    for shape in found:
        if (fault := shape_fault(shape)) is not None:
            return fault
    return found, dtype


def device_results(kind: OpKind, attrs: Attrs, operands: tuple[DTensor, ...]) -> tuple[DTensor, ...] | str:
    """Return the types of the results of a predefined kernel operator, or a text with the fault."""
    if (fault := signature_fault(kind, attrs, len(operands), Level.KERNEL)) is not None:
        return fault
    found = _shapes_and_dtype(kind, attrs, operands)
    if isinstance(found, str):
        return found
    return tuple(DTensor(shape, found[1]) for shape in found[0])


def stage_fault(kind: OpKind, after: tuple[bool, ...]) -> str | None:
    """Return the fault in the stages of the operands: behind an accumulator (True) or inside the loop (False).

    Sound: with one stage per tensor, accumulators leading from the loop to behind it, and output savers reading only
    behind it, every path from an input iterator to an output saver crosses exactly one accumulator (paper, section 2).
    """
    if (SPECS[kind].accumulator or kind is OpKind.RUNNING_MAX) and any(after):
        return "expected operands inside the loop, got one behind an accumulator"
    if any(stage != after[0] for stage in after):
        return "expected operands on one side of the accumulators, got one inside the loop and one behind it"
    return None


@lru_cache(maxsize=1 << 12)  # candidates of one program consist of the same operators on the same tiles
def shared_results(
    kind: OpKind, attrs: Attrs, operands: tuple[STensor, ...], context: BlockContext
) -> tuple[STensor, ...] | str:
    """Return the types of the results of a predefined block operator or accumulator, or a text with the fault."""
    fault = signature_fault(kind, attrs, len(operands), Level.BLOCK) or stage_fault(
        kind, tuple(t.after_loop for t in operands)
    )
    if fault is not None:
        return fault
    found = _shapes_and_dtype(kind, attrs, operands, context)
    if isinstance(found, str):
        return found
    after = SPECS[kind].accumulator or operands[0].after_loop
    return tuple(STensor(shape, found[1], after) for shape in found[0])


def register_result(kind: OpKind, attrs: Attrs, operands: tuple[RTensor, ...]) -> RTensor | str:
    """Return the type of the result of a thread operator, or a text with the fault."""
    if (fault := signature_fault(kind, attrs, len(operands), Level.THREAD)) is not None:
        return fault
    found = _shapes_and_dtype(kind, attrs, operands)
    if isinstance(found, str):
        return found
    return RTensor(found[0][0], found[1])


def iterator_type(grid: Dim3, forloop_range: int, iterator: InputIterator, tensor: DTensor) -> STensor | str:
    """Return the type of the tile that one block reads in one loop iteration, or a text with the fault.

    The block's slab is cut first (axes x, y, z in order), then the loop chunk inside it; both must divide exactly.
    """
    shape = list(tensor.shape)
    for axis, (extent, dim) in enumerate(zip(grid, iterator.imap, strict=True)):
        if dim is None:
            continue
        if not 0 <= dim < len(shape):
            return f"imap {_AXES[axis]}: expected a dim in 0..{len(shape) - 1}, got {dim}"
        if shape[dim] % extent:
            return f"imap {_AXES[axis]}: expected dim {dim} of extent {shape[dim]} to be a multiple of grid {extent}"
        shape[dim] //= extent
    dim = iterator.fmap
    if dim is not None:
        if not 0 <= dim < len(shape):
            return f"fmap: expected a dim in 0..{len(shape) - 1}, got {dim}"
        if shape[dim] % forloop_range:
            return f"fmap: expected dim {dim} of extent {shape[dim]} per block to be a multiple of {forloop_range}"
        shape[dim] //= forloop_range
    return STensor(tuple(shape), tensor.dtype, after_loop=False)


def saver_type(grid: Dim3, saver: OutputSaver, tensor: STensor) -> DTensor | str:
    """Return the type of the device tensor that the blocks' results form, or a text with the fault."""
    if not tensor.after_loop:
        return "expected a tensor behind an accumulator, got one inside the loop"
    shape = list(tensor.shape)
    for axis, (extent, dim) in enumerate(zip(grid, saver.omap, strict=True)):
        if dim is None:
            if extent > 1:
                return f"omap {_AXES[axis]}: expected a dim, because grid {_AXES[axis]} is {extent}, got none"
            continue
        if not 0 <= dim < len(shape):
            return f"omap {_AXES[axis]}: expected a dim in 0..{len(shape) - 1}, got {dim}"
        shape[dim] *= extent
    found = tuple(shape)
    return shape_fault(found) or DTensor(found, tensor.dtype)

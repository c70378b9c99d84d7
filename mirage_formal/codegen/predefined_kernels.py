"""Predefined kernel operators as Programs: all but matmul, which cuBLAS computes.

A reduction or norm becomes a block graph of one operator, or of the few that it consists of, and is planned and lowered
like any other kernel. Rows are split over blocks; columns or long rows are split by the loop where the operator allows
it. Forms are enumerated and tried in the order of the cost model. Tiles may overhang the operand, as in kernels with
remainder tiles. An operator that no form fits is computed fibre by fibre (``lowering.long_axis_reductions``); operators
that map or move elements are elementwise kernels (``lowering.pointwise``). Arithmetic is float32 for every element
type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Final

from mirage_formal.codegen.cost import OperandLayouts, block_cost
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.lowering.long_axis_reductions import reduce_fibres
from mirage_formal.codegen.lowering.pointwise import Tensors, pointwise_program
from mirage_formal.codegen.lowering.strided_regions import Operand, Operation
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.access import list_accesses
from mirage_formal.codegen.program.program import Param, Program
from mirage_formal.codegen.program.register_layout import vector_layout
from mirage_formal.codegen.program.step import GenericOperation
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import BlockGraph, GraphDefined, Input, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import SPECS, Attrs, Family, Level, OpKind
from mirage_formal.graph.storage_views import StorageLocation
from mirage_formal.graph.types import DimMap, DTensor, Shape, row_major
from mirage_formal.support.errors import UnsupportedError

_MAX_INDEX: Final = 2**31 - 1
_WARP: Final = 32
#: Most threads that are planned for.
_MOST_THREADS: Final = 512
#: Elements of a thread: as many as make two vectors of 16 bits, while there are threads; and the most.
_ELEMENTS: Final = 16
_MOST_ELEMENTS: Final = 64
#: Elements of a run, the columns that a thread takes together.
_RUN: Final = 8
#: Sizes that are tried: rows of a tile whose columns are reduced, columns of one whose rows are, runs of an iteration.
_ROWS: Final = tuple(1 << i for i in range(8))
_COLUMNS: Final = tuple(1 << i for i in range(4, 9))
_CHUNKS: Final = tuple(1 << i for i in range(7, 11))
#: Forms that are planned before an operator is taken fibre by fibre.
_TRIED: Final = 3

#: Operators that ``operator_program`` can write.
SUPPORTED: Final = frozenset(
    kind for kind, row in SPECS.items() if Level.KERNEL in row.levels and row.family is not Family.PRODUCT
)


def operator_program(
    name: str, operation: Operation, operands: tuple[Operand, ...], result: DTensor, target: Target, tile: int = 0
) -> Program:
    """Return the kernel of a predefined operator; its parameters are the operands, then the row-major result.

    Args:
        name: Its name.
        operation: The operator.
        operands: The tensors that it reads.
        result: The type of the tensor that it writes.
        target: The GPU that it is for.
        tile: The number of the tile in which transposed operands are read; 0 is the usual one.

    Raises:
        UnsupportedError: The operator has no kernel or no such tile, or a tensor has 2^31 elements or more.
    """
    op = operation.op
    if op.kind not in SUPPORTED:
        raise UnsupportedError(f"expected a kernel-level operator, got {op.kind}", where=name)
    params = (
        *(
            Param(f"In{i}", tensor.dtype, StorageLocation(i, strides, offset).span(tensor.shape), False)
            for i, (tensor, strides, offset) in enumerate(operands)
        ),
        Param("Out", result.dtype, result.elements, True),
    )
    if any(param.elements > _MAX_INDEX for param in params):
        raise UnsupportedError("expected tensors of fewer than 2^31 elements, got more", where=name)
    family = SPECS[op.kind].family
    if tile and family in (Family.REDUCTION, Family.NORM):
        raise UnsupportedError(f"expected the usual tile of {op.kind.value}, got another", where=name)
    if family is Family.REDUCTION and operands[0][0].shape == result.shape:
        operation = Operation(Op(OpKind.RESHAPE, (0,), Attrs(shape=result.shape)))  # of a single element each
    elif family in (Family.REDUCTION, Family.NORM):
        planned = _plan_program(name, op, operands, result, target)
        return _align_params(reduce_fibres(name, op, operands, result, params) if planned is None else planned)
    return _align_params(pointwise_program(name, operation, Tensors(operands, result, params), target, tile))


def copy_program(name: str, operand: Operand, target: Target) -> Program:
    """Return the kernel that copies a tensor to a row-major one."""
    tensor, _, _ = operand
    copy = Operation(Op(OpKind.RESHAPE, (0,), Attrs(shape=tensor.shape)))
    return operator_program(name, copy, (operand,), tensor, target)


def _align_params(program: Program) -> Program:
    """Return the Program with each parameter aligned to its widest access, and not more."""
    widest = {param.name: param.dtype.bytes for param in program.params}
    for access in list_accesses(program).accesses:
        if isinstance(access.target, Param):
            widest[access.target.name] = max(widest[access.target.name], access.bytes)
    return replace(program, params=tuple(replace(param, align=widest[param.name]) for param in program.params))


# --- block graphs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dim of all tensors, or several dims that merge into one in each tensor.

    Attributes:
        extent: Its extent.
        steps: Its stride in each operand and the result; None where the extent is 1.
        reduced: Whether the operator runs along it.
    """

    extent: int
    steps: tuple[int | None, ...]
    reduced: bool

    def behind(self, inner: _Dim) -> bool:
        """Return whether this dim and an inner one merge into one dim in every tensor."""
        if self.reduced or inner.reduced:
            return False
        pairs = zip(self.steps, inner.steps, strict=True)
        return all(a is b if a is None or b is None else a == b * inner.extent for a, b in pairs)


@dataclass(frozen=True, slots=True)
class KernelForm:
    """A kernel graph of one graph-defined operator, with the memory layouts of its tensors and its estimate.

    Attributes:
        graph: The kernel graph.
        known: The memory layout of each tensor.
        us: The estimated microseconds.
    """

    graph: KernelGraph
    known: tuple[StorageLocation, ...]
    us: float


def _plan_program(name: str, op: Op, operands: tuple[Operand, ...], result: DTensor, target: Target) -> Program | None:
    """Return the Program of the best form that can be planned in registers throughout; None if there is none."""
    for form in block_forms(op, operands, result, target)[:_TRIED]:
        try:
            plan = make_plan(form.graph, 0, target, known=form.known)
        except UnsupportedError:
            continue
        steps = (*plan.before, *plan.loop, *plan.after)
        if not any(isinstance(step, GenericOperation) for step in steps):
            return replace(lower(plan), name=name)
    return None


def block_forms(op: Op, operands: tuple[Operand, ...], result: DTensor, target: Target) -> list[KernelForm]:
    """Return block graphs that compute a reduction or norm, the best by the cost model first.

    Args:
        op: The operator; the reduced dim has more than one element.
        operands: The tensors that it reads.
        result: The type of its row-major result.
        target: The GPU that estimates are for.
    """
    return sorted(_kernel_forms(op, operands, result, target), key=lambda form: form.us)


def _dims(op: Op, operands: tuple[Operand, ...], result: DTensor) -> tuple[_Dim, ...]:
    """Return the merged dims of an operator, the contiguous one last: that of the operand, or of a norm's result."""
    shapes = [*(tensor.shape for tensor, _, _ in operands), result.shape]
    strides = [*(steps for _, steps, _ in operands), row_major(result.shape)]
    joined: list[_Dim] = []
    for d, extent in enumerate(shapes[0]):
        steps = tuple(s[d] if n[d] > 1 else None for n, s in zip(shapes, strides, strict=True))
        dim = _Dim(extent, steps, d == op.attrs.dim)
        if joined and joined[-1].behind(dim):
            joined[-1] = replace(dim, extent=joined[-1].extent * extent)
        elif dim.reduced or extent > 1:
            joined.append(dim)
    leading = 0 if SPECS[op.kind].family is Family.REDUCTION else -1
    last = min(joined, key=lambda dim: (dim.steps[leading] != 1, not dim.reduced))
    others = [dim for dim in joined if dim is not last]
    return (*(dim for dim in others if not dim.reduced), *(dim for dim in others if dim.reduced), last)


def _kernel_forms(op: Op, operands: tuple[Operand, ...], result: DTensor, target: Target) -> Iterator[KernelForm]:
    """Yield block graphs that compute an operator, for all tile sizes tried, with their estimates."""
    dims = _dims(op, operands, result)
    last = len(dims) - 1
    reduced = next(i for i, dim in enumerate(dims) if dim.reduced)
    whole = dims[reduced].extent
    cut = last - 1 if reduced == last else last  # the dim of which a tile may have more than one element
    if cut == last and dims[last].steps[-1] != 1:
        return  # columns would be written one by one, far from each other
    tried = dict.fromkeys(min(n, _power(dims[cut].extent)) for n in (_ROWS if reduced == last else _COLUMNS))
    for extent in tried if cut >= 0 else (1,):
        across = extent if reduced == last else max(1, extent // _RUN)
        for chunk in (whole, *_chunks(op.kind, whole, across, along=reduced == last)):
            tile = [1] * len(dims)
            tile[reduced] = chunk
            if cut >= 0:
                tile[cut] = extent
            form = _form(op, operands, result, target, dims, tuple(tile))
            if form is not None:
                yield form


def _chunks(kind: OpKind, whole: int, across: int, *, along: bool) -> Iterator[int]:
    """Yield the tile extents of an iteration along the reduced dim, if there is a loop.

    Zeros beyond the end add nothing to a sum, but may exceed the maximum of the elements.



    Args:
        kind: The operator.
        whole: Extent of the dim.
        across: Rows of a tile whose columns are reduced, else runs of its columns.
        along: Whether its columns are reduced.
    """
    if SPECS[kind].family is Family.REDUCTION:
        for runs in _CHUNKS:
            chunk = max(1, runs // across) * (_RUN if along else 1)
            if chunk < whole and (kind is not OpKind.MAX or whole % chunk == 0):
                yield chunk


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _form(
    op: Op, operands: tuple[Operand, ...], result: DTensor, target: Target, dims: tuple[_Dim, ...], tile: Shape
) -> KernelForm | None:
    """Return the block graph with tiles of these extents; None if a block or the grid would be too large."""
    counts = tuple(-(-dim.extent // n) for dim, n in zip(dims, tile, strict=True))
    reduced = next(i for i, dim in enumerate(dims) if dim.reduced)
    axes = sorted((i for i, n in enumerate(counts) if n > 1 and i != reduced), key=lambda i: -counts[i])
    if len(axes) > 3:
        return None
    x, y, z = [*(counts[i] for i in axes), 1, 1, 1][:3]
    if any(n > most for n, most in zip((x, y, z), target.limits.grid, strict=True)):
        return None
    rows, cols = prod(tile[:-1]), tile[-1]
    threads = min(_MOST_THREADS, max(_WARP, _power(-(-rows * cols // _ELEMENTS))))
    width = next(n for n in (_RUN, 4, 2, 1) if cols % n == 0)
    if vector_layout(threads, rows, cols, width).count > _MOST_ELEMENTS:
        return None
    inputs: list[Input] = []
    known: list[StorageLocation] = []
    for i, (dtype, offset) in enumerate([*((t.dtype, first) for t, _, first in operands), (result.dtype, 0)]):
        steps = [dim.steps[i] for dim in dims]
        inside = tuple(1 if s is None else dim.extent for s, dim in zip(steps, dims, strict=True))
        shape = tuple(1 if s is None else n * m for s, n, m in zip(steps, tile, counts, strict=True))
        strides = tuple(s or 0 for s in steps)
        inputs.append(Input(f"x{i}", DTensor(shape, dtype), strides))
        known.append(StorageLocation(i, strides, offset, None if inside == shape else inside))
    split = [_dim_map(dims, i, axes) for i in range(len(inputs))]
    loop = reduced if counts[reduced] > 1 else None
    block = BlockGraph(
        grid=(x, y, z),
        block=(threads, 1, 1),
        forloop_range=counts[reduced],
        reduction_dimx=1,
        inputs=tuple(InputIterator(imap, loop) for imap in split[:-1]),
        ops=(ops := _operators(op, len(operands), reduced, dims[reduced].extent)),
        outputs=(OutputSaver(len(operands) + len(ops) - 1, split[-1]),),
    )
    kernel = GraphDefined(tuple(range(len(operands))), block)
    graph = KernelGraph(tuple(inputs[:-1]), (kernel,), (len(operands),))
    shares = [place.share(item.tensor.shape) for place, item in zip(known, inputs, strict=True)]
    cost, _ = block_cost(block, [item.tensor for item in inputs[:-1]], target, lying=OperandLayouts(shares))
    return KernelForm(graph, tuple(known), cost.us)


def _dim_map(dims: tuple[_Dim, ...], tensor: int, axes: Sequence[int]) -> DimMap:
    """Return the dim of a tensor that each grid axis splits."""
    split = [d if dims[d].steps[tensor] is not None else None for d in axes]
    x, y, z = [*split, None, None, None][:3]
    return x, y, z


def _operators(op: Op, count: int, dim: int, extent: int) -> tuple[Op, ...]:
    """Return the block operators of a predefined operator over ``count`` operands, along one dim of this extent."""
    along, number = Attrs(dim=dim), count
    match op.kind:
        case OpKind.SUM:
            return Op(OpKind.SUM, (0,), along), Op(OpKind.ACCUM_SUM, (number,))
        case OpKind.MEAN:
            scale = Op(OpKind.SCALE, (number + 1,), Attrs(factor=Fraction(1, extent)))
            return Op(OpKind.SUM, (0,), along), Op(OpKind.ACCUM_SUM, (number,)), scale
        case OpKind.MAX:
            return Op(OpKind.MAX, (0,), along), Op(OpKind.ACCUM_MAX, (number,))
        case OpKind.SOFTMAX:
            return (
                Op(OpKind.MAX, (0,), along),
                Op(OpKind.SUB, (0, number)),
                Op(OpKind.EXP, (number + 1,)),
                Op(OpKind.SUM, (number + 2,), along),
                Op(OpKind.DIV, (number + 2, number + 3)),
                Op(OpKind.ACCUM_SUM, (number + 4,)),
            )
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            norm = Op(op.kind, tuple(range(count)), replace(op.attrs, dim=dim))
            return norm, Op(OpKind.ACCUM_SUM, (number,))
        case _:
            raise AssertionError(op.kind)

"""Elementwise and data-movement kernels: functions, arithmetic, concatenations, pads, slices, copies.

A result is cut into vectors of contiguous elements, as wide as its innermost run allows. A thread has several of them,
and issues all its loads before its first store. A transposed operand goes in tiles through shared memory
(``lowering.smem_transpose``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from mirage_formal.codegen.lowering.context import TID, make_conditional, make_loop
from mirage_formal.codegen.lowering.smem_transpose import transpose_in_shared_memory
from mirage_formal.codegen.lowering.strided_regions import (
    VECTOR_BYTES,
    Box,
    ElementRun,
    Operand,
    Operation,
    RegionLayout,
    layout_of,
    load_width,
    locate,
    read_region,
)
from mirage_formal.codegen.program.index import IndexBuilder
from mirage_formal.codegen.program.integers import ZERO
from mirage_formal.codegen.program.program import (
    GlobalWrite,
    Int,
    IntExpr,
    Param,
    Program,
    Reg,
    Registers,
    Stmt,
    Var,
)
from mirage_formal.codegen.target import Target
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.support.errors import UnsupportedError

_THREADS: Final = 128
#: Vectors that a thread has in flight, while there are this many blocks for each multiprocessor.
_IN_FLIGHT: Final = 4
#: Elements of an operand that a thread has in flight at most.
_HELD: Final = 32
_BLOCKS_PER_SM: Final = 4
_WARP: Final = 32


class Tensors(NamedTuple):
    """The tensors of a kernel.

    Attributes:
        operands: The tensors that it reads.
        result: The type of its row-major result.
        params: All of them, as parameters.
    """

    operands: tuple[Operand, ...]
    result: DTensor
    params: tuple[Param, ...]


def pointwise_program(name: str, operation: Operation, tensors: Tensors, target: Target, tile: int = 0) -> Program:
    """Return the kernel of an operator that moves or maps elements.

    Args:
        name: Its name.
        operation: Any operator but a product, a reduction or a norm.
        tensors: The tensors that it reads and writes.
        target: The GPU that it is for.
        tile: The number of the tile in which transposed operands are read.

    Raises:
        UnsupportedError: There are fewer tiles.
    """
    op = operation.op
    operands, result, params = tensors
    layout = layout_of(op, operands, result).joined()
    found = transpose_in_shared_memory(name, operation, layout, target, params, tile)
    if found is not None:
        return found
    if tile:
        raise UnsupportedError(f"expected another tile of {op.kind.value}, of which there are fewer", where=name)
    # A mask is read in shorter vectors beside wider elements, of which there would be too many in registers.
    sizes = {param.dtype.bytes for param in params if param.dtype.floating}
    width = VECTOR_BYTES // min(sizes, default=DType.BOOL.bytes)
    ends = [end for b in layout.boxes for end in (b.low, b.high)] if layout.split == len(layout.shape) - 1 else []
    runs = [layout.shape[-1] if layout.shape else 1, *ends]
    while any(run % width for run in runs):
        width //= 2
    if layout.shape:
        layout = layout.cut(len(layout.shape) - 1, width)
    else:
        layout = RegionLayout((1,), (1,), None, tuple(replace(b, strides=(0,)) for b in layout.boxes))
    return _Writer(operation, operands, result, target, width, layout).program(name, params)


class _Writer:
    """A writer of one kernel; the last dim of its layout runs within a vector."""

    def __init__(
        self,
        operation: Operation,
        operands: tuple[Operand, ...],
        result: DTensor,
        target: Target,
        width: int,
        layout: RegionLayout,
    ) -> None:
        self.operation, self.operands, self.result, self.width, self.layout = operation, operands, result, width, layout
        self.count = result.elements // width
        wanted = self.count // (_THREADS * _BLOCKS_PER_SM * target.sms)
        self.each = next(n for n in (_IN_FLIGHT, 2, 1) if n <= max(1, wanted) and n * width <= _HELD)
        self.threads = min(_THREADS, -(-self.count // _WARP) * _WARP)
        self.blocks = -(-self.count // (self.threads * self.each))
        self.ix = IndexBuilder({"bx": self.blocks, "tid": self.threads})

    def program(self, name: str, params: tuple[Param, ...]) -> Program:
        """Return the kernel."""
        boxes = self.layout.boxes
        # What is repeated along a vector is read once, unless another operand has other vectors of the same registers.
        spread = {b.slot for b in boxes if b.strides[-1] != 0}
        lanes = {b.slot: self.width if b.slot in spread else 1 for b in boxes}
        body: list[Stmt] = [
            Registers(f"v{slot}", self.each * n, initial=0.0 if self.operation.op.kind is OpKind.PAD else None)
            for slot, n in lanes.items()
        ]
        u, _, inside, at = self._vector()
        loads = [stmt for box in boxes for stmt in self._load(box, u, at, lanes[box.slot])]
        body += make_loop(u, self.each, make_conditional(inside, loads), unroll=True)
        u, first, inside, _ = self._vector()
        body += make_loop(u, self.each, make_conditional(inside, tuple(self._store(u, first, lanes))), unroll=True)
        return Program(name, params, (), (self.blocks, 1, 1), self.threads, tuple(body))

    def _vector(self) -> tuple[IntExpr, IntExpr, IntExpr, tuple[IntExpr, ...]]:
        """Return (number of a thread's vector, its first position, condition that it exists, its coordinates)."""
        ix, shape, block = self.ix, self.layout.shape[:-1], Var("bx") if self.blocks > 1 else ZERO
        u = ZERO if self.each == 1 else ix.variable(self.each, "u")
        vector = ix.add(ix.mul(block, self.threads * self.each), ix.mul(u, self.threads), TID)
        return u, ix.mul(vector, self.width), ix.less(vector, self.count), ix.unravel(vector, shape)

    def _load(self, box: Box, u: IntExpr, at: tuple[IntExpr, ...], lanes: int) -> tuple[Stmt, ...]:
        """Load the elements of an operand for one vector."""
        condition, first = locate(self.ix, self.layout, box, (*at, ZERO))
        most = VECTOR_BYTES // self.operands[box.operand][0].dtype.bytes
        wide = load_width(self.layout, box, len(box.strides) - 1, min(self.width, most))
        run = ElementRun(lanes, box.strides[-1], wide)
        return make_conditional(condition, read_region(self.ix, box, self.ix.mul(u, lanes), first, run))

    def _store(self, u: IntExpr, first: IntExpr, lanes: dict[int, int]) -> Iterator[Stmt]:
        """Compute and write one vector of the result."""
        ix, most = self.ix, VECTOR_BYTES // self.result.dtype.bytes
        for part in range(0, self.width, most):
            values = tuple(
                self.operation([Reg(f"v{s}", ix.add(ix.mul(u, n), Int(k if n > 1 else 0))) for s, n in lanes.items()])
                for k in range(part, min(part + most, self.width))
            )
            yield GlobalWrite("Out", ix.add(first, Int(part)), values)

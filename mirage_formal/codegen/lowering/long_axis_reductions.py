"""Reductions and norms along fibres of any length: one block for each fibre, which it reads once in every pass.

This handles operators for which no block graph can be planned, because a fibre is longer than the registers of a block
or its dims are not those of a matrix. Longer fibres need no more registers or shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from mirage_formal.codegen.lowering.context import LOWEST, TID, combine, make_conditional, make_loop
from mirage_formal.codegen.lowering.strided_regions import Operand
from mirage_formal.codegen.program.index import IndexBuilder
from mirage_formal.codegen.program.integers import ZERO
from mirage_formal.codegen.program.program import (
    Apply,
    Barrier,
    BinaryFn,
    Combine,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    Int,
    IntExpr,
    KernelFn,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Value,
    Var,
)
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType, row_major

_WARP: Final = 32
_MOST_THREADS: Final = 1024
#: Vectors that a thread has before there are more threads; it reads at most _AT_ONCE before it uses them, and has no
#: more than _REGISTERS elements in registers.
_VECTORS: Final = 4
_AT_ONCE: Final = 8
_REGISTERS: Final = 32
_VECTOR_BYTES: Final = 16


def reduce_fibres(
    name: str, op: Op, operands: tuple[Operand, ...], result: DTensor, params: tuple[Param, ...]
) -> Program:
    """Return the kernel of a reduction or norm.

    Args:
        name: Its name.
        op: The operator.
        operands: The tensors that it reads.
        result: The type of its row-major result.
        params: The operands and the result.
    """
    writer = _FibreWriter(op, operands, result)
    body = writer.body()
    warps = writer.threads // _WARP
    shared = tuple(
        SharedBuffer(f"s_{array}", DType.FLOAT32, warps, 4 * warps * i)
        for i, array in enumerate(writer.folds)
        if warps > 1
    )
    return Program(name, params, shared, (writer.blocks, 1, 1), writer.threads, tuple(body))


class _FibreWriter:
    """A builder of statements over the elements of one fibre of the operand."""

    def __init__(self, op: Op, operands: tuple[Operand, ...], result: DTensor) -> None:
        assert op.attrs.dim is not None
        self.op, self.operands, self.dim = op, operands, op.attrs.dim
        shape = operands[0][0].shape
        self.extent = shape[self.dim]
        outer = tuple(1 if i == self.dim else n for i, n in enumerate(shape))
        self.blocks = prod(outer)
        self.steps = row_major(result.shape)
        self.width = self._wide(operands[0], _VECTOR_BYTES // operands[0][0].dtype.bytes)
        vectors = self.extent // self.width
        self.threads = min(_MOST_THREADS, -(-vectors // (_VECTORS * _WARP)) * _WARP)
        self.rounds = -(-vectors // self.threads)
        self.each = min(self.rounds, _AT_ONCE, max(1, _REGISTERS // (self.width * len(operands))))
        self.ix = IndexBuilder({"bx": self.blocks, "tid": self.threads})
        self.at = self.ix.unravel(Var("bx"), outer) if shape else ()
        self.folds: list[str] = []

    def _wide(self, operand: Operand, most: int) -> int:
        """Return the elements of a fibre that one vector access takes."""
        tensor, strides, offset = operand
        wide = min(most, _VECTOR_BYTES // tensor.dtype.bytes) if strides[self.dim] == 1 else 1
        others = [s for i, (s, n) in enumerate(zip(strides, tensor.shape, strict=True)) if n > 1 and i != self.dim]
        while any(step % wide for step in (self.extent, tensor.shape[self.dim], offset, *others)):
            wide //= 2
        return wide

    # --- elements

    def _operand_index(self, number: int, along: IntExpr) -> IntExpr:
        """Return the position of an element of an operand; a broadcast weight has extent 1 along the other dims."""
        tensor, strides, offset = self.operands[number]
        terms = [
            self.ix.mul(along if i == self.dim else c, s)
            for i, (c, n, s) in enumerate(zip(self.at, tensor.shape, strides, strict=True))
            if n > 1
        ]
        return self.ix.add(*terms, Int(offset))

    def _load(self, number: int, array: str, to: IntExpr, along: IntExpr) -> tuple[Stmt, ...]:
        """Load one vector of an operand from an element on."""
        wide, param = self._wide(self.operands[number], self.width), f"In{number}"
        if wide == 1:
            k = ZERO if self.width == 1 else self.ix.variable(self.width, "k")
            item = SetReg(
                array, self.ix.add(to, k), GlobalRead(param, self._operand_index(number, self.ix.add(along, k)))
            )
            return make_loop(k, self.width, (item,), unroll=True)
        return tuple(
            GlobalVector(
                array,
                self.ix.add(to, Int(part)),
                param,
                self._operand_index(number, self.ix.add(along, Int(part))),
                wide,
            )
            for part in range(0, self.width, wide)
        )

    def _each(
        self, stem: str, numbers: Sequence[int], use: Callable[[list[str], IntExpr, IntExpr], Sequence[Stmt]]
    ) -> tuple[Stmt, ...]:
        """Return a pass over the fibre: load several vectors of each operand, then call ``use`` on each."""
        ix, chunks = self.ix, -(-self.rounds // self.each)
        arrays = [f"{stem}_{n}" for n in numbers]
        step = ZERO if chunks == 1 else ix.variable(chunks, "i")

        def over(body: Callable[[IntExpr, IntExpr], Sequence[Stmt]]) -> tuple[Stmt, ...]:
            u = ZERO if self.each == 1 else ix.variable(self.each, "u")
            vector = ix.add(ix.mul(step, self.each * self.threads), ix.mul(u, self.threads), TID)
            inside = ix.less(vector, self.extent // self.width)
            return make_loop(
                u,
                self.each,
                make_conditional(inside, body(ix.mul(u, self.width), ix.mul(vector, self.width))),
                unroll=True,
            )

        loads = over(
            lambda to, along: [s for n, a in zip(numbers, arrays, strict=True) for s in self._load(n, a, to, along)]
        )
        registers = [Registers(array, self.each * self.width) for array in arrays]
        return make_loop(step, chunks, (*registers, *loads, *over(lambda to, along: use(arrays, to, along))))

    def fold(self, array: str, fn: BinaryFn, of: Callable[[Value], Value], initial: float) -> list[Stmt]:
        """Return statements that reduce ``of(element)`` over all elements with fn into array[0] of every thread."""
        own, zero = Reg(array, ZERO), ZERO

        def add(arrays: list[str], to: IntExpr, along: IntExpr) -> tuple[Stmt, ...]:
            k = ZERO if self.width == 1 else self.ix.variable(self.width, "k")
            term = of(Reg(arrays[0], self.ix.add(to, k)))
            return make_loop(k, self.width, (SetReg(array, zero, Combine(fn, own, term)),), unroll=True)

        self.folds.append(array)
        out: list[Stmt] = [Registers(array, 1, initial=initial), *self._each(f"x_{array}", (0,), add)]
        out += [ShuffleReduce(array, zero, fn, mask) for mask in (16, 8, 4, 2, 1)]
        warps = self.threads // _WARP
        if warps > 1:
            first = self.ix.equal(self.ix.mod(TID, _WARP), 0)
            out += make_conditional(first, (SharedWrite(f"s_{array}", self.ix.div(TID, _WARP), (own,)),))
            out += [
                Barrier(),
                SetReg(array, zero, combine(fn, [SharedRead(f"s_{array}", Int(w)) for w in range(warps)])),
            ]
        return out

    def store_each(self, value: Callable[[Value], Value]) -> tuple[Stmt, ...]:
        """Write the fibre of the result, with the weights applied."""
        numbers = range(len(self.operands))
        wide = self.width if self.steps[self.dim] == 1 else 1

        def item(arrays: list[str], k: IntExpr) -> Value:
            out = value(Reg(arrays[0], k))
            for array, fn in zip(arrays[1:], (BinaryFn.MUL, BinaryFn.ADD), strict=False):
                out = Combine(fn, out, Reg(array, k))
            return out

        def write(arrays: list[str], to: IntExpr, along: IntExpr) -> list[Stmt]:
            found: list[Stmt] = []
            for part in range(0, self.width, wide):
                here = ZERO if self.extent == 1 else self.ix.add(along, Int(part))
                at = [*self.at[: self.dim], here, *self.at[self.dim + 1 :]]
                values = tuple(item(arrays, self.ix.add(to, Int(part + k))) for k in range(wide))
                found.append(GlobalWrite("Out", self.ix.ravel(at, self.steps), values))
            return found

        return self._each("y", numbers, write)

    def store_one(self, value: Value) -> tuple[Stmt, ...]:
        """Write the single element of the result's fibre."""
        return make_conditional(
            self.ix.equal(TID, 0), (GlobalWrite("Out", Var("bx") if self.blocks > 1 else ZERO, (value,)),)
        )

    # --- operators

    def body(self) -> list[Stmt]:
        """Return the statements of the kernel."""
        eps = self.op.attrs.eps
        total, squares, largest = (Reg(array, ZERO) for array in ("total", "squares", "largest"))

        def mean(of: Value) -> Value:
            return Combine(BinaryFn.MUL, of, Real(1.0 / self.extent))

        def inverse_root() -> SetReg:
            square = mean(squares)
            under = square if eps is None else Combine(BinaryFn.ADD, square, Real(float(eps)))
            return SetReg("squares", ZERO, Apply(KernelFn.RSQRT, under))

        match self.op.kind:
            case OpKind.SUM | OpKind.MEAN:
                out = self.fold("total", BinaryFn.ADD, lambda x: x, 0.0)
                return [*out, *self.store_one(total if self.op.kind is OpKind.SUM else mean(total))]
            case OpKind.MAX:
                return [*self.fold("largest", BinaryFn.MAX, lambda x: x, float("-inf")), *self.store_one(largest)]
            case OpKind.SOFTMAX:

                def weight(x: Value) -> Value:
                    return Apply(OpKind.EXP, Combine(BinaryFn.SUB, x, largest))

                out = self.fold("largest", BinaryFn.MAX, lambda x: x, LOWEST)
                out += self.fold("total", BinaryFn.ADD, weight, 0.0)
                return [*out, *self.store_each(lambda x: Combine(BinaryFn.DIV, weight(x), total))]
            case OpKind.RMS_NORM:
                out = self.fold("squares", BinaryFn.ADD, lambda x: Apply(OpKind.SQUARE, x), 0.0)
                out.append(inverse_root())
                return [*out, *self.store_each(lambda x: Combine(BinaryFn.MUL, x, squares))]
            case OpKind.LAYER_NORM:

                def centred(x: Value) -> Value:
                    return Combine(BinaryFn.SUB, x, total)

                out = self.fold("total", BinaryFn.ADD, lambda x: x, 0.0)
                out.append(SetReg("total", ZERO, mean(total)))
                out += self.fold("squares", BinaryFn.ADD, lambda x: Apply(OpKind.SQUARE, centred(x)), 0.0)
                out.append(inverse_root())
                return [*out, *self.store_each(lambda x: Combine(BinaryFn.MUL, centred(x), squares))]
            case _:
                raise AssertionError(self.op.kind)

"""Predefined kernel operators as Programs: all but matmul, which cuBLAS computes.

Elementwise operators and copies (reshape, transpose, concat, repeat, cast) take one thread per element; reductions and
norms one block per fibre along the reduced dim. Arithmetic is float32, whatever the element type.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from mirage_formal.errors import UnsupportedError
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import ARITHMETIC, FUNCTIONS, SPECS, Attrs, Family, Level, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.kernels.program.program import (
    Apply,
    Barrier,
    BinaryFn,
    Combine,
    For,
    GlobalRead,
    GlobalWrite,
    If,
    Int,
    IntBin,
    IntExpr,
    IntOp,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    UnaryFn,
    Value,
    Var,
    binary_fn,
)

_THREADS: Final = 128
_WARP: Final = 32
_MAX_INDEX: Final = 2**31 - 1

#: Operators that ``operator_program`` can write.
SUPPORTED: Final = frozenset(
    kind for kind, row in SPECS.items() if Level.KERNEL in row.levels and row.family is not Family.PRODUCT
)

#: An operand: its type, its strides and where its first element lies, both in elements.
Operand = tuple[DTensor, tuple[int, ...], int]


def operator_program(name: str, op: Op, operands: tuple[Operand, ...], result: DTensor) -> Program:
    """The kernel of a predefined operator; its parameters are the operands, then the row-major result.

    Raises:
        UnsupportedError: The operator has no kernel, or a tensor has 2^31 elements or more.
    """
    if op.kind not in SUPPORTED:
        raise UnsupportedError(f"expected a kernel-level operator, got {op.kind}", where=name)
    params = [
        Param(f"In{i}", tensor.dtype, offset + _span(tensor.shape, strides), False, tensor.dtype.bytes)
        for i, (tensor, strides, offset) in enumerate(operands)
    ]
    params.append(Param("Out", result.dtype, result.elements, True, result.dtype.bytes))
    if any(param.elements > _MAX_INDEX for param in params):
        raise UnsupportedError("expected tensors of fewer than 2^31 elements, got more", where=name)
    if SPECS[op.kind].family in (Family.REDUCTION, Family.NORM):
        return _fibres(name, op, operands, result, tuple(params))
    return _elementwise(name, op, operands, result, tuple(params))


def copy_program(name: str, operand: Operand) -> Program:
    """The kernel that copies a tensor to a row-major one."""
    tensor, _, _ = operand
    op = Op(OpKind.RESHAPE, (0,), Attrs(shape=tensor.shape))
    return operator_program(name, op, (operand,), tensor)


# --- index expressions -----------------------------------------------------------------------------------------------


def _span(shape: Shape, strides: tuple[int, ...]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _bin(op: IntOp, a: IntExpr, b: int | IntExpr) -> IntExpr:
    right = Int(b) if isinstance(b, int) else b
    if isinstance(right, Int):
        if op in (IntOp.MUL, IntOp.DIV) and right.value == 1:
            return a
        if op is IntOp.MOD and right.value == 1:
            return Int(0)
        if op is IntOp.ADD and right.value == 0:
            return a
    return right if op is IntOp.ADD and a == Int(0) else IntBin(op, a, right)


def _coordinates(linear: IntExpr, shape: Shape) -> list[IntExpr]:
    """The coordinates of the element of this row-major number."""
    coordinates: list[IntExpr] = []
    outermost = True
    for extent, step in zip(shape, row_major(shape), strict=True):
        if extent == 1:
            coordinates.append(Int(0))
            continue
        quotient = _bin(IntOp.DIV, linear, step)
        coordinates.append(quotient if outermost else _bin(IntOp.MOD, quotient, extent))
        outermost = False
    return coordinates


def _offset(coordinates: list[IntExpr], shape: Shape, strides: tuple[int, ...]) -> IntExpr:
    """Where an element lies; along a dim of extent 1 every coordinate means the only element."""
    total: IntExpr = Int(0)
    for coordinate, extent, stride in zip(coordinates, shape, strides, strict=True):
        if extent > 1 and coordinate != Int(0):
            total = _bin(IntOp.ADD, total, _bin(IntOp.MUL, coordinate, stride))
    return total


def _read(number: int, operand: Operand, coordinates: list[IntExpr]) -> Value:
    """An element of an operand."""
    tensor, strides, first = operand
    return GlobalRead(f"In{number}", _bin(IntOp.ADD, _offset(coordinates, tensor.shape, strides), first))


# --- one thread per element ------------------------------------------------------------------------------------------


def _elementwise(
    name: str, op: Op, operands: tuple[Operand, ...], result: DTensor, params: tuple[Param, ...]
) -> Program:
    count = result.elements
    threads = min(_THREADS, -(-count // _WARP) * _WARP)
    blocks = -(-count // threads)
    linear = _bin(IntOp.ADD, _bin(IntOp.MUL, Var("bx"), threads), Var("tid")) if blocks > 1 else Var("tid")
    write: Stmt = GlobalWrite("Out", linear, (_element(op, operands, result, linear),))
    if count % threads:
        write = If(IntBin(IntOp.LT, linear, Int(count)), (write,))
    return Program(name, params, (), (blocks, 1, 1), threads, (write,))


def _element(op: Op, operands: tuple[Operand, ...], result: DTensor, linear: IntExpr) -> Value:
    """The value of the result's element of this number."""
    attrs = op.attrs
    at = _coordinates(linear, result.shape)

    def read(i: int, coordinates: list[IntExpr]) -> Value:
        return _read(i, operands[i], coordinates)

    if op.kind in FUNCTIONS:
        return Apply(UnaryFn(op.kind.value), read(0, at))
    if op.kind in ARITHMETIC:
        return Combine(binary_fn(op.kind), read(0, at), read(1, at))
    match op.kind:
        case OpKind.SCALE:
            assert attrs.factor is not None
            return Combine(BinaryFn.MUL, read(0, at), Real(float(attrs.factor)))
        case OpKind.SHIFT:
            assert attrs.shift is not None
            return Combine(BinaryFn.ADD, read(0, at), Real(float(attrs.shift)))
        case OpKind.CAST | OpKind.REPEAT:
            return read(0, at)
        case OpKind.RESHAPE:
            return read(0, _coordinates(linear, operands[0][0].shape))
        case OpKind.TRANSPOSE:
            assert attrs.perm is not None
            return read(0, [at[attrs.perm.index(i)] for i in range(len(at))])
        case OpKind.SLICE:
            assert attrs.dim is not None
            assert attrs.start is not None
            return read(0, [_bin(IntOp.ADD, c, attrs.start) if i == attrs.dim else c for i, c in enumerate(at)])
        case OpKind.PAD:
            assert attrs.dim is not None
            assert attrs.before is not None
            extent, along = operands[0][0].shape[attrs.dim], at[attrs.dim]
            # The index stays in bounds where nothing is read, too.
            inside = _bin(IntOp.MOD, _bin(IntOp.ADD, along, -attrs.before % extent), extent)
            value = read(0, [*at[: attrs.dim], inside, *at[attrs.dim + 1 :]])
            if attrs.after:
                value = Select(IntBin(IntOp.LT, along, Int(attrs.before + extent)), value, Real(0.0))
            return Select(IntBin(IntOp.LT, along, Int(attrs.before)), Real(0.0), value) if attrs.before else value
        case OpKind.CONCAT:
            assert attrs.dim is not None
            first, second = operands[0][0].shape[attrs.dim], operands[1][0].shape[attrs.dim]
            along = at[attrs.dim]
            # Both indices stay in bounds whichever operand is read.
            beyond = _bin(IntOp.MOD, _bin(IntOp.MOD, _bin(IntOp.ADD, along, second), first + second), second)
            inside = _bin(IntOp.MOD, along, first)
            a = read(0, [*at[: attrs.dim], inside, *at[attrs.dim + 1 :]])
            b = read(1, [*at[: attrs.dim], beyond, *at[attrs.dim + 1 :]])
            return Select(IntBin(IntOp.LT, along, Int(first)), a, b)
        case _:
            raise AssertionError(op.kind)


# --- one block per fibre ---------------------------------------------------------------------------------------------


class _Fibre:
    """Statements over the elements of one fibre of the operand, numbered 0 .. extent-1."""

    def __init__(self, op: Op, operands: tuple[Operand, ...], result: DTensor) -> None:
        assert op.attrs.dim is not None
        self.op = op
        self.operands = operands
        self.dim = op.attrs.dim
        shape = operands[0][0].shape
        self.extent = shape[self.dim]
        self.result = result
        self.shape = shape
        self.outer = tuple(1 if i == self.dim else n for i, n in enumerate(shape))
        self.fibre: list[IntExpr] = [Int(0)] * len(shape)
        if prod(self.outer) > 1:
            self.fibre = _coordinates(Var("bx"), self.outer)
        self.threads = min(_THREADS, -(-self.extent // _WARP) * _WARP)

    def element(self, operand: int, along: IntExpr) -> Value:
        at = [*self.fibre[: self.dim], along, *self.fibre[self.dim + 1 :]]
        return _read(operand, self.operands[operand], at)

    def each(self, var: str, body: Callable[[IntExpr], Stmt]) -> Stmt:
        """A statement for every element, dealt out to the threads."""
        steps = -(-self.extent // self.threads)
        along = _bin(IntOp.ADD, _bin(IntOp.MUL, Var(var), self.threads), Var("tid")) if steps > 1 else Var("tid")
        inner = body(along)
        if self.extent % self.threads:
            inner = If(IntBin(IntOp.LT, along, Int(self.extent)), (inner,))
        return For(var, steps, (inner,)) if steps > 1 else inner

    def fold(self, array: str, fn: BinaryFn, of: Callable[[Value], Value], initial: float) -> list[Stmt]:
        """array[0] = fn over all elements of ``of(element)``, the same in every thread."""

        def step(along: IntExpr) -> Stmt:
            term = of(self.element(0, along))
            return SetReg(array, Int(0), Combine(fn, Reg(array, Int(0)), term))

        statements: list[Stmt] = [Registers(array, 1, initial=initial), self.each(f"i_{array}", step)]
        mask = _WARP // 2
        while mask:
            statements.append(ShuffleReduce(array, Int(0), fn, mask))
            mask //= 2
        warps = self.threads // _WARP
        if warps > 1:
            lane = IntBin(IntOp.EQ, IntBin(IntOp.MOD, Var("tid"), Int(_WARP)), Int(0))
            warp = IntBin(IntOp.DIV, Var("tid"), Int(_WARP))
            statements += [
                If(lane, (SharedWrite(f"s_{array}", warp, (Reg(array, Int(0)),)),)),
                Barrier(),
                SetReg(array, Int(0), SharedRead(f"s_{array}", Int(0))),
                *(
                    SetReg(array, Int(0), Combine(fn, Reg(array, Int(0)), SharedRead(f"s_{array}", Int(i))))
                    for i in range(1, warps)
                ),
            ]
        return statements

    def store_each(self, value: Callable[[Value, IntExpr], Value]) -> Stmt:
        """Writes the fibre of the result, element by element."""

        def step(along: IntExpr) -> Stmt:
            at = [*self.fibre[: self.dim], along, *self.fibre[self.dim + 1 :]]
            index = _offset(at, self.shape, row_major(self.shape))
            return GlobalWrite("Out", index, (value(self.element(0, along), along),))

        return self.each("o", step)

    def store_one(self, value: Value) -> Stmt:
        """Writes the one element of the fibre of the result."""
        index = _offset(self.fibre, self.outer, row_major(self.result.shape))
        return If(IntBin(IntOp.EQ, Var("tid"), Int(0)), (GlobalWrite("Out", index, (value,)),))


def _fibres(name: str, op: Op, operands: tuple[Operand, ...], result: DTensor, params: tuple[Param, ...]) -> Program:
    fibre = _Fibre(op, operands, result)
    body, folds = _fibre_body(fibre, op)
    warps = fibre.threads // _WARP
    shared = tuple(
        SharedBuffer(f"s_{array}", DType.FLOAT32, warps, 4 * warps * i) for i, array in enumerate(folds) if warps > 1
    )
    return Program(name, params, shared, (prod(fibre.outer), 1, 1), fibre.threads, tuple(body))


def _fibre_body(fibre: _Fibre, op: Op) -> tuple[list[Stmt], list[str]]:
    """The statements, and the names of the folds among them."""
    zero = Int(0)
    inverse = Real(1.0 / fibre.extent)
    eps = Real(float(op.attrs.eps)) if op.attrs.eps is not None else None

    def mean(array: str) -> Value:
        return Combine(BinaryFn.MUL, Reg(array, zero), inverse)

    def inverse_root(square: Value) -> Value:
        radicand = square if eps is None else Combine(BinaryFn.ADD, square, eps)
        return Apply(UnaryFn.RSQRT, radicand)

    def weighted(value: Value, along: IntExpr, first: int) -> Value:
        for operand, fn in zip(range(first, len(fibre.operands)), (BinaryFn.MUL, BinaryFn.ADD), strict=False):
            value = Combine(fn, value, fibre.element(operand, along))
        return value

    match op.kind:
        case OpKind.SUM | OpKind.MEAN:
            body = fibre.fold("total", BinaryFn.ADD, lambda x: x, 0.0)
            value = Reg("total", zero) if op.kind is OpKind.SUM else mean("total")
            return [*body, fibre.store_one(value)], ["total"]
        case OpKind.MAX:
            body = fibre.fold("largest", BinaryFn.MAX, lambda x: x, float("-inf"))
            return [*body, fibre.store_one(Reg("largest", zero))], ["largest"]
        case OpKind.SOFTMAX:

            def weight(x: Value) -> Value:
                return Apply(UnaryFn.EXP, Combine(BinaryFn.SUB, x, Reg("largest", zero)))

            body = fibre.fold("largest", BinaryFn.MAX, lambda x: x, float("-inf"))
            body += fibre.fold("total", BinaryFn.ADD, weight, 0.0)
            out = fibre.store_each(lambda x, _: Combine(BinaryFn.DIV, weight(x), Reg("total", zero)))
            return [*body, out], ["largest", "total"]
        case OpKind.RMS_NORM:
            body = fibre.fold("squares", BinaryFn.ADD, lambda x: Apply(UnaryFn.SQUARE, x), 0.0)
            body.append(SetReg("squares", zero, inverse_root(mean("squares"))))
            out = fibre.store_each(lambda x, along: weighted(Combine(BinaryFn.MUL, x, Reg("squares", zero)), along, 1))
            return [*body, out], ["squares"]
        case OpKind.LAYER_NORM:

            def centred(x: Value) -> Value:
                return Combine(BinaryFn.SUB, x, Reg("total", zero))

            body = fibre.fold("total", BinaryFn.ADD, lambda x: x, 0.0)
            body.append(SetReg("total", zero, mean("total")))
            body += fibre.fold("squares", BinaryFn.ADD, lambda x: Apply(UnaryFn.SQUARE, centred(x)), 0.0)
            body.append(SetReg("squares", zero, inverse_root(mean("squares"))))
            out = fibre.store_each(
                lambda x, along: weighted(Combine(BinaryFn.MUL, centred(x), Reg("squares", zero)), along, 1)
            )
            return [*body, out], ["total", "squares"]
        case _:
            raise AssertionError(op.kind)

"""Axis classes of a program: which dims of its tensors run through the same index.

Union-find over digit strings: a dim is a list of axes, most significant first (several after a reshape, none for
extent 1). Contractions, elementwise operators and norms unify dims; a reshape splits axes where its cuts require it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from mirage_formal.errors import UnsupportedError
from mirage_formal.ir.graph import GraphDefined, KernelGraph, Op, numbered
from mirage_formal.ir.ops import OpKind
from mirage_formal.semantics.index.algebra import Algebra
from mirage_formal.semantics.index.parts import full_mask

AxisDims = tuple[tuple[int, ...], ...]

FUNCTIONS = frozenset({OpKind.EXP, OpKind.SQRT, OpKind.SILU, OpKind.GELU, OpKind.RELU, OpKind.SIGMOID})
_BINARY = frozenset({OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV})
MINUS_ONE = Fraction(-1)


class _Indices:
    """Union-find over indices, each an alias of another or a string of two finer ones."""

    def __init__(self) -> None:
        self.extent: list[int] = []
        self._finer: dict[int, tuple[int, ...]] = {}

    def new(self, extent: int) -> list[int]:
        if extent == 1:
            return []
        self.extent.append(extent)
        return [len(self.extent) - 1]

    def resolve(self, string: Sequence[int]) -> list[int]:
        out: list[int] = []
        for index in string:
            finer = self._finer.get(index)
            out.extend([index] if finer is None else self.resolve(finer))
        return out

    def unify(self, a: Sequence[int], b: Sequence[int]) -> None:
        left, right = self.resolve(a), self.resolve(b)
        while left and right:
            left, right = self.resolve(left), self.resolve(right)
            x, y = left.pop(), right.pop()
            if x == y:
                continue
            if self.extent[x] == self.extent[y]:
                self._finer[max(x, y)] = (min(x, y),)
                continue
            if self.extent[x] < self.extent[y]:
                left, right, x, y = right, left, y, x
            rest, remainder = divmod(self.extent[x], self.extent[y])
            if remainder:
                raise UnsupportedError(
                    f"a reshape cuts an index of extent {self.extent[x]} at {self.extent[y]}, which does not divide it",
                    where="guided search",
                    hint="use --engine exhaustive",
                )
            high = self.new(rest)
            self._finer[x] = (*high, y)
            left.extend(high)


class ProgramAxes:
    """A program as dims over axes, with the normal form of its output for any split of the axes.

    Attributes:
        program: The program.
        extents: Extent of each axis.
        dims: Dims of each program tensor as strings of axes.
        output: Dims of the program's output.
        functions: Opaque elementwise functions that occur.
        constants: Rational factors that occur, including 1/n of means.
        norms: (kind, eps) of the norms that occur.
        kinds: All operator kinds that occur, macro operators expanded.
        bound: Axes that some operator reduces.

    Raises:
        UnsupportedError: The program has a graph-defined kernel, several outputs, an operator outside this engine, or
            a tensor in which one axis occurs twice.
    """

    def __init__(self, program: KernelGraph) -> None:
        self.program = program
        if len(program.outputs) != 1:
            raise _unsupported(f"expected one output, got {len(program.outputs)}")
        if len({i.tensor.dtype for i in program.inputs}) != 1:
            raise _unsupported("expected inputs of one element type")
        self._indices = _Indices()
        self.functions: set[OpKind] = set()
        self.constants: set[Fraction] = set()
        self.norms: set[tuple[OpKind, Fraction | None]] = set()
        self.kinds: set[OpKind] = set()
        self.permutations: set[tuple[int, ...]] = set()
        self.reshapes: set[tuple[int, ...]] = set()
        reduced: list[list[int]] = []
        strings = [[self._indices.new(n) for n in i.tensor.shape] for i in program.inputs]
        for _, op in numbered(len(program.inputs), program.ops):
            if isinstance(op, GraphDefined):
                raise _unsupported("expected predefined operators only, got a graph-defined kernel")
            strings.append(self._apply(op, [strings[i] for i in op.operands], reduced))
        self._name_axes(strings, reduced)

    def _apply(self, op: Op, operands: list[list[list[int]]], reduced: list[list[int]]) -> list[list[int]]:
        unify, a = self._indices.unify, operands[0]
        self.kinds.add(op.kind)
        match op.kind:
            case OpKind.MATMUL:
                b = operands[1]
                unify(a[-1], b[-2])
                for x, y in zip(a[:-2], b[:-2], strict=True):
                    unify(x, y)
                reduced.append(a[-1])
                return [*a[:-1], b[-1]]
            case kind if kind in _BINARY:
                return self._broadcast(a, operands[1])
            case kind if kind in FUNCTIONS:
                self.functions.add(kind)
                return a
            case OpKind.SQUARE:
                return a
            case OpKind.SCALE:
                assert op.attrs.factor is not None
                self.constants.add(op.attrs.factor)
                return a
            case OpKind.SUM | OpKind.MEAN | OpKind.SOFTMAX | OpKind.RMS_NORM | OpKind.LAYER_NORM:
                return self._reduce(op, operands, reduced)
            case OpKind.TRANSPOSE:
                assert op.attrs.perm is not None
                self.permutations.add(op.attrs.perm)
                return [a[i] for i in op.attrs.perm]
            case OpKind.RESHAPE:
                assert op.attrs.shape is not None
                self.reshapes.add(op.attrs.shape)
                fresh = [self._indices.new(n) for n in op.attrs.shape]
                unify([i for dim in fresh for i in dim], [i for dim in a for i in dim])
                return fresh
            case _:
                raise _unsupported(f"the operator {op.kind.value} is not searched")

    def _broadcast(self, a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
        for x, y in zip(a, b, strict=True):
            if x and y:
                self._indices.unify(x, y)
        return [x or y for x, y in zip(a, b, strict=True)]

    def _reduce(self, op: Op, operands: list[list[list[int]]], reduced: list[list[int]]) -> list[list[int]]:
        a, dim = operands[0], op.attrs.dim
        assert dim is not None
        reduced.append(a[dim])
        keepdim = [*a[:dim], [], *a[dim + 1 :]]
        if op.kind is OpKind.SUM:
            return keepdim
        if op.kind is OpKind.MEAN:
            self.kinds.add(OpKind.SUM)
            extent = 1
            for index in self._indices.resolve(a[dim]):
                extent *= self._indices.extent[index]
            self.constants.add(Fraction(1, extent))
            return keepdim
        if op.kind is OpKind.SOFTMAX:
            self.kinds |= {OpKind.EXP, OpKind.SUM, OpKind.DIV}
            self.functions.add(OpKind.EXP)
            return a
        self.norms.add((op.kind, op.attrs.eps))
        for extra in operands[1:]:
            self._broadcast(a, extra)
        if len(operands) > 1:
            self.kinds.add(OpKind.MUL)
        if len(operands) > 2:
            self.kinds.add(OpKind.ADD)
        return a

    def _name_axes(self, strings: list[list[list[int]]], reduced: list[list[int]]) -> None:
        names: dict[int, int] = {}
        dims: list[AxisDims] = []
        for tensor in strings:
            dims.append(tuple(tuple(names.setdefault(i, len(names)) for i in self._indices.resolve(d)) for d in tensor))
        self.dims = tuple(dims)
        self.extents = tuple(self._indices.extent[i] for i in names)
        self.bound = frozenset(names[i] for d in reduced for i in self._indices.resolve(d) if i in names)
        self.output = self.dims[self.program.outputs[0]]
        self.free = frozenset(axis for dim in self.output for axis in dim)
        for number, tensor_dims in enumerate(self.dims):
            flat = [axis for dim in tensor_dims for axis in dim]
            if len(set(flat)) != len(flat):
                raise _unsupported(f"one index runs through two dims of tensor {number} (such as X times X transposed)")

    def variable(self, algebra: Algebra, number: int) -> int:
        """Normal form of program input ``number``."""
        free = 0
        for dim in self.dims[number]:
            for axis in dim:
                free |= full_mask(axis)
        return algebra.variable(self.program.inputs[number].name, free)

    def target(self, algebra: Algebra, frame: tuple[int, ...]) -> int:
        """Normal form of the output where axis a is made of the parts in ``frame[a]``."""
        values: list[int] = [self.variable(algebra, i) for i in range(len(self.program.inputs))]
        for number, op in numbered(len(values), self.program.ops):
            assert isinstance(op, Op)
            values.append(self._value(algebra, frame, op, values, number))
        return values[self.program.outputs[0]]

    def _value(self, algebra: Algebra, frame: tuple[int, ...], op: Op, values: list[int], number: int) -> int:
        x = values[op.operands[0]]
        y = values[op.operands[1]] if len(op.operands) > 1 else None
        dims = self.dims[op.operands[0]]
        out: int | None
        match op.kind:
            case OpKind.MATMUL:
                assert y is not None
                out = algebra.sum(parts_of(frame, dims[-1]), algebra.mul(x, y))
            case OpKind.ADD | OpKind.SUB | OpKind.MUL | OpKind.DIV:
                assert y is not None
                out = binary(algebra, op.kind, x, y)
            case OpKind.SQUARE:
                out = algebra.mul(x, x)
            case OpKind.SCALE:
                assert op.attrs.factor is not None
                out = algebra.mul(algebra.constant(op.attrs.factor), x)
            case OpKind.SUM | OpKind.MEAN | OpKind.SOFTMAX | OpKind.RMS_NORM | OpKind.LAYER_NORM:
                assert op.attrs.dim is not None
                operands = [values[i] for i in op.operands]
                out = self._reduction(algebra, op, parts_of(frame, dims[op.attrs.dim]), operands)
            case OpKind.TRANSPOSE | OpKind.RESHAPE:
                out = x
            case _:
                out = algebra.apply(op.kind.value, x)
        if out is None:
            raise _unsupported(f"tensor {number} reduces or divides over an index that it does not depend on")
        return out

    def _reduction(self, algebra: Algebra, op: Op, parts: int, values: list[int]) -> int | None:
        x = values[0]
        assert op.attrs.dim is not None
        match op.kind:
            case OpKind.SUM:
                return algebra.sum(parts, x)
            case OpKind.MEAN:
                total = algebra.sum(parts, x)
                extent = 1
                for axis in self.dims[op.operands[0]][op.attrs.dim]:
                    extent *= self.extents[axis]
                return None if total is None else algebra.mul(algebra.constant(Fraction(1, extent)), total)
            case OpKind.SOFTMAX:
                e = algebra.apply(OpKind.EXP.value, x)
                total = algebra.sum(parts, e)
                return None if total is None else algebra.div(e, total)
            case OpKind.RMS_NORM:
                out = rms_norm(algebra, parts, x, op.attrs.eps)
            case _:
                out = algebra.layer_norm(parts, x, op.attrs.eps)
        if out is not None and len(values) > 1:
            out = algebra.mul(out, values[1])
        if out is not None and len(values) > 2:
            out = algebra.add(out, values[2])
        return out


def parts_of(frame: tuple[int, ...], dim: tuple[int, ...]) -> int:
    """Mask of all parts of the axes of a dim."""
    out = 0
    for axis in dim:
        out |= frame[axis]
    return out


def binary(algebra: Algebra, kind: OpKind, a: int, b: int) -> int | None:
    """Normal form of an elementwise operator of two operands."""
    if kind is OpKind.ADD:
        return algebra.add(a, b)
    if kind is OpKind.SUB:
        return algebra.add(a, algebra.mul(algebra.constant(MINUS_ONE), b))
    return algebra.mul(a, b) if kind is OpKind.MUL else algebra.div(a, b)


def rms_norm(algebra: Algebra, parts: int, a: int, eps: Fraction | None) -> int | None:
    """Normal form of rms_norm over ``parts``: the norm stays an opaque factor."""
    norm = algebra.root_mean_square(parts, a, eps)
    return None if norm is None else algebra.div(a, norm)


def layer_norm(algebra: Algebra, parts: int, a: int, eps: Fraction | None) -> int | None:
    """Normal form of layer_norm over ``parts``, opaque."""
    return algebra.layer_norm(parts, a, eps)


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(what, where="guided search", hint="use --engine exhaustive, or rewrite the program")

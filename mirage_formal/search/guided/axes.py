"""Assignment of index variables ("axes") to the dims of a program's tensors.

Two dims have the same axis if the program's operators require one index for both, as the letters of an einsum do.
Each dim is a list of axes, most significant first: several after a reshape, none for extent 1. Union-find computes
the lists. Contractions, elementwise operators and norms unify dims; a reshape splits an axis where its new dims cut it.

One axis may index two dims of one tensor, as in X X or (A B)(A X). Such an axis has several copies, and each dim of
a tensor has a copy of its own (index_renaming.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import reduce
from itertools import combinations, product
from typing import NewType, cast

from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import ARITHMETIC, COMPARISONS, OpKind
from mirage_formal.graph.ops import FUNCTIONS as ELEMENT_FUNCTIONS
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.search.bounds import IN_PARTS
from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.operator_normal_forms import (
    binary_form,
    function_form,
    rms_norm,
    selection_form,
    shift_form,
    valued_form,
)
from mirage_formal.search.guided.algebra.part_masks import Frame, mask, unsplit_frame
from mirage_formal.search.guided.algebra.part_numbering import Axis, Part, Parts, part_axis, unsplit_part
from mirage_formal.search.guided.index_renaming import Dims, IndexRenaming
from mirage_formal.support.errors import UnsupportedError

#: Number of a tensor at kernel level: the program's inputs, then the results in the order of computation.
TensorId = NewType("TensorId", int)
#: Number of an index that dims are unified over; it may turn out to be an alias, or a string of finer ones.
_Index = NewType("_Index", int)
#: A dim as its indices, most significant first; empty for extent 1.
_String = list[_Index]

#: The dims of a tensor, each as a list of axes, most significant first.
AxisDims = tuple[tuple[Axis, ...], ...]

#: Elementwise functions of one operand that stay uninterpreted here; a square is a product instead.
FUNCTIONS = ELEMENT_FUNCTIONS - {OpKind.SQUARE}
#: Elementwise operators of two tensors; of some, one may be a number.
_PAIRS = ARITHMETIC | COMPARISONS
#: Elementwise functions of one boolean mask.
OF_MASKS = frozenset({OpKind.LOGICAL_NOT, OpKind.CAST})


class _Indices:
    """Union-find over indices; an index is a representative, an alias of another one, or a string of two finer ones."""

    def __init__(self) -> None:
        self.extent: list[int] = []
        self._finer: dict[_Index, tuple[_Index, ...]] = {}

    def new(self, extent: int) -> _String:
        if extent == 1:
            return []
        self.extent.append(extent)
        return [_Index(len(self.extent) - 1)]

    def resolve(self, string: Sequence[_Index]) -> _String:
        out: _String = []
        for index in string:
            finer = self._finer.get(index)
            out.extend([index] if finer is None else self.resolve(finer))
        return out

    def unify(self, a: Sequence[_Index], b: Sequence[_Index]) -> None:
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
                cut = f"{self.extent[x]} at {self.extent[y]}"
                raise _unsupported_error(f"a reshape cuts an index of extent {cut}, which does not divide it")
            high = self.new(rest)
            self._finer[x] = (*high, y)
            left.extend(high)


class ProgramAxes:
    """A program whose tensor dims are expressed by axes, with the normal form of its output.

    Attributes:
        program: The program.
        dtype: The element type of its tensors other than boolean masks.
        extents: Extent of each axis.
        dims: Dims of each program tensor as strings of axes.
        output: Dims of the program's output.
        functions: Uninterpreted elementwise functions that the program uses.
        constants: Rational factors that the program uses, including 1/n of means.
        shifts: Rational summands that the program uses.
        norms: (kind, eps) of the norms that the program uses.
        comparisons: (kind, number) of the comparisons that the program uses; no number where two tensors are compared.
        numbers: (kind, number) of the comparisons, maxima and minima of a tensor and a number.
        selections: Numbers in the program's selections; None for a selection from two tensors.
        casts: Element types that boolean masks are cast to.
        kinds: All operator kinds of the program, macro operators expanded.
        bound: Axes that some operator reduces.
        free: Axes of the program's output.

    Raises:
        UnsupportedError: The program has a graph-defined kernel, several outputs, or an operator outside this engine.
    """

    def __init__(self, program: KernelGraph) -> None:
        self.program = program
        if len(program.outputs) != 1:
            raise _unsupported_error(
                f"expected one output, got {len(program.outputs)}", f"{_EXHAUSTIVE}; or {IN_PARTS}"
            )
        if len({i.tensor.dtype for i in program.inputs if i.tensor.dtype.floating}) > 1:
            raise _unsupported_error("expected inputs of one element type, beside masks", _EXHAUSTIVE)
        self._types = kernel_types(program)
        self.dtype = next((t.dtype for t in self._types if t.dtype.floating), DType.BOOL)
        self._indices = _Indices()
        self.functions: set[OpKind] = set()
        self.constants: set[Fraction] = set()
        self.shifts: set[Fraction] = set()
        self.norms: set[tuple[OpKind, Fraction | None]] = set()
        self.comparisons: set[tuple[OpKind, Fraction | None]] = set()
        self.numbers: set[tuple[OpKind, Fraction]] = set()
        self.selections: set[Fraction | None] = set()
        self.casts: set[DType] = set()
        self.kinds: set[OpKind] = set()
        self.permutations: set[tuple[int, ...]] = set()
        self.reshapes: set[tuple[int, ...]] = set()
        reduced: list[_String] = []
        strings = [[self._indices.new(n) for n in i.tensor.shape] for i in program.inputs]
        for number, op in enumerate(program.ops):
            if isinstance(op, GraphDefined):
                raise _unsupported_error("expected predefined operators only, got a graph-defined kernel")
            with _locate_errors(number):
                strings.append(self._apply(op, [strings[i] for i in op.operands], reduced))
                if (found := self._types[len(strings) - 1].dtype) not in (self.dtype, DType.BOOL):
                    raise _unsupported_error(
                        f"expected results of one element type, {self.dtype.value}, got {found.value}"
                    )
        self._name_axes(strings, reduced)
        if self.kinds & {OpKind.ADD, OpKind.SUB} and self._merge_summed(strings):
            self._name_axes(strings, reduced)

    def _apply(self, op: Op, operands: list[list[_String]], reduced: list[_String]) -> list[_String]:
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
            case kind if kind in _PAIRS:
                return self._pair(op, operands)
            case OpKind.SELECT:
                self.selections.add(op.attrs.value)
                return reduce(self._broadcast, operands)
            case OpKind.CAST if self._of_mask(op):
                assert op.attrs.dtype is not None
                self.casts.add(op.attrs.dtype)
                return a
            case kind if kind in FUNCTIONS or kind is OpKind.LOGICAL_NOT:
                self.functions.add(kind)
                return a
            case OpKind.SQUARE:
                return a
            case OpKind.SCALE:
                assert op.attrs.factor is not None
                self.constants.add(op.attrs.factor)
                return a
            case OpKind.SHIFT:
                assert op.attrs.shift is not None
                self.shifts.add(op.attrs.shift)
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
                raise _unsupported_error(f"the operator {op.kind.value} is not searched")

    def _of_mask(self, op: Op) -> bool:
        """Return whether a cast converts a boolean mask to numbers."""
        return bool(op.attrs.dtype and op.attrs.dtype.floating) and not self._types[op.operands[0]].dtype.floating

    def _broadcast(self, a: list[_String], b: list[_String]) -> list[_String]:
        for x, y in zip(a, b, strict=True):
            if x and y:
                self._indices.unify(x, y)
        return [x or y for x, y in zip(a, b, strict=True)]

    def _pair(self, op: Op, operands: list[list[_String]]) -> list[_String]:
        """Return the dims of an elementwise operator of two tensors, or of a tensor and a number."""
        if op.kind in COMPARISONS:
            self.comparisons.add((op.kind, op.attrs.value))
        if op.attrs.value is not None:
            self.numbers.add((op.kind, op.attrs.value))
        return reduce(self._broadcast, operands)

    def _reduce(self, op: Op, operands: list[list[_String]], reduced: list[_String]) -> list[_String]:
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

    def _merge_summed(self, strings: list[list[_String]]) -> bool:
        """Unify axes of equal extent that are only summed over, in different tensors: sum x + sum y = sum (x + y).

        Returns:
            True if it unified any axes.
        """
        held = [{i for dim in tensor for i in self._indices.resolve(dim)} for tensor in strings]
        merged = False
        for a, b in combinations(sorted(set().union(*held)), 2):
            (x,), (y,) = self._indices.resolve([a]), self._indices.resolve([b])
            summed = {x, y}.isdisjoint(self._output_indices) and {x, y} <= self._reduced_indices
            if x == y or not summed or self._indices.extent[x] != self._indices.extent[y]:
                continue
            if not any({x, y} <= {r for i in some for r in self._indices.resolve([i])} for some in held):
                self._indices.unify([x], [y])
                merged = True
        return merged

    def _name_axes(self, strings: list[list[_String]], reduced: list[_String]) -> None:
        names: dict[_Index, Axis] = {}
        dims: list[AxisDims] = []
        self._reduced_indices = {i for d in reduced for i in self._indices.resolve(d)}
        self._output_indices = {i for d in strings[self.program.outputs[0]] for i in self._indices.resolve(d)}
        for tensor in strings:
            dims.append(
                tuple(tuple(names.setdefault(i, Axis(len(names))) for i in self._indices.resolve(d)) for d in tensor)
            )
        self.dims = tuple(dims)
        self.extents = tuple(self._indices.extent[i] for i in names)
        self.bound = frozenset(names[i] for d in reduced for i in self._indices.resolve(d) if i in names)
        self.output = self.dims[self.program.outputs[0]]
        self.free = frozenset(axis for dim in self.output for axis in dim)

    def repeats(self, algebra: Algebra, target: Form) -> int:
        """Return an upper bound on the dims of one tensor that one axis can index.

        It counts tensors of the program and products of them. It is 1 for most programs, which then need no copies of
        axes. A tensor that is part of the target has an axis twice only if some term of the target has two copies of
        that axis. (Two indices that meet only in a product of denominators, x / y / z as x / (y * z), are bound in y or
        z before.)
        """
        twice = {Axis(axis) for axis, copies in enumerate(algebra.copies(target, products=False)) if copies > 1}
        return _max_axis_repeats(set(self.dims), self.bound, twice) if twice else 1

    def tensor(self, algebra: Algebra, number: TensorId) -> tuple[Form, Dims]:
        """Return the normal form and dims of a program input; copies of an axis are numbered in the order of its dims.

        Args:
            algebra: The algebra that interns the normal forms.
            number: Number of the input.

        Returns:
            Its form and dims.
        """
        seen: dict[Axis, int] = {}
        dims = []
        for dim in self.dims[number]:
            parts: list[Part] = []
            for axis in dim:
                copy = seen[axis] = seen.get(axis, -1) + 1
                parts.append(unsplit_part(Axis(axis + copy * algebra.width)))
            dims.append(tuple(parts))
        axes = tuple(part_axis(part) for dim in dims for part in dim)
        source = self.program.inputs[number]
        return algebra.variable(source.name, axes, mask=not source.tensor.dtype.floating), tuple(dims)

    def target(self, algebra: Algebra) -> tuple[Form, Dims]:
        """Return the normal form and dims of the program's output, with unsplit axes.

        Copies of an axis are numbered in the order of the output's dims. A sum over a whole axis has one normal form
        however a kernel splits the axis, so this is the target in every frame.
        """
        inputs = len(self.program.inputs)
        values = [self.tensor(algebra, TensorId(i)) for i in range(inputs)]
        count = algebra.width * (1 + max(len(dims) for dims in self.dims) * 3)
        walk = _FormInterpreter(self, algebra, unsplit_frame(count))
        for number, op in enumerate_results(inputs, self.program.ops):
            assert isinstance(op, Op)
            with _locate_errors(number - inputs):
                values.append(walk.value(op, [values[i] for i in op.operands]))
        return values[self.program.outputs[0]]


def require_normal_form(program: KernelGraph) -> None:
    """Raise an UnsupportedError for a program whose output has no normal form: guided search does not take it."""
    axes = ProgramAxes(program)
    axes.target(Algebra(len(axes.extents)))


def _max_axis_repeats(held: set[AxisDims], bound: frozenset[Axis], twice: set[Axis]) -> int:
    """Return an upper bound on the dims of one tensor that one of the axes in ``twice`` can index.

    It closes the dims in ``held`` under products, broadcasts and sums over reduced axes, whatever the values are. This
    covers more tensors than any candidate holds, so an axis that never occurs twice needs no copies.
    """
    for _ in range(8):  # paths of products get no longer: each adds a pair of dims, and the bound is only on time
        fresh: set[AxisDims] = set()
        for a in held:
            fresh |= {(*a[:i], (), *a[i + 1 :]) for i, dim in enumerate(a) if dim and bound.issuperset(dim)}
        for a, b in product(held, held):
            if len(a) != len(b):
                continue
            if all(not x or not y or x == y for x, y in zip(a, b, strict=True)):
                fresh.add(tuple(x or y for x, y in zip(a, b, strict=True)))
            if len(a) > 1 and a[-1] == b[-2]:
                fresh.add((*(x or y for x, y in zip(a[:-2], b[:-2], strict=True)), a[-2], b[-1]))
        if fresh <= held:
            break
        held = held | fresh
    return max(1, *(sum(dims, ()).count(axis) for dims in held for axis in twice))


class _FormInterpreter:
    """Evaluation of a program over normal forms."""

    def __init__(self, axes: ProgramAxes, algebra: Algebra, frame: Frame) -> None:
        self._axes = axes
        self._algebra = algebra
        self._frame = frame
        self._views = IndexRenaming(
            algebra, lambda axis: cast(Sequence[Axis], range(axis % algebra.width, len(frame), algebra.width))
        )

    def value(self, op: Op, operands: list[tuple[Form, Dims]]) -> tuple[Form, Dims]:
        """Return the normal form and dims of the result of ``op``."""
        form, dims = self._value(op, operands)
        if form is None:
            raise _unsupported_error(f"the result of {op.kind.value} has no normal form")
        return self._views.canonical(form, dims)

    def _value(self, op: Op, operands: list[tuple[Form, Dims]]) -> tuple[Form | None, Dims]:
        algebra = self._algebra
        x, dims = operands[0]
        match op.kind:
            case OpKind.MATMUL:
                y, dims2 = self._views.contracted(dims, *operands[1])
                product = algebra.mul(x, y)
                total = None if product is None else algebra.sum(mask(dims[-1]), product, self._frame)
                return total, (*dims[:-1], dims2[-1])
            case kind if len(operands) == 2 and kind in _PAIRS:
                y, joined = self._views.joined(dims, *operands[1])
                return binary_form(algebra, op.kind, x, y), joined
            case kind if kind in _PAIRS:
                assert op.attrs.value is not None
                return valued_form(algebra, kind, x, op.attrs.value), dims
            case OpKind.SELECT:
                values: list[Form] = []
                for operand in operands[1:]:
                    y, dims = self._views.joined(dims, *operand)
                    values.append(y)
                return selection_form(algebra, x, values, op.attrs.value), dims
            case OpKind.SQUARE:
                return algebra.mul(x, x), dims
            case OpKind.SCALE:
                assert op.attrs.factor is not None
                return algebra.mul(algebra.constant(op.attrs.factor), x), dims
            case OpKind.SHIFT:
                assert op.attrs.shift is not None
                return shift_form(algebra, x, op.attrs.shift), dims
            case OpKind.SUM | OpKind.MEAN | OpKind.SOFTMAX | OpKind.RMS_NORM | OpKind.LAYER_NORM:
                return self._reduction(op, operands)
            case OpKind.TRANSPOSE:
                assert op.attrs.perm is not None
                return x, tuple(dims[i] for i in op.attrs.perm)
            case OpKind.RESHAPE:
                return x, self._reshaped(op, dims)
            case kind if kind in FUNCTIONS or kind in OF_MASKS:
                return function_form(algebra, kind, x), dims
            case kind:
                raise AssertionError(f"{kind}: see ProgramAxes")

    def _reshaped(self, op: Op, dims: Dims) -> Dims:
        """Return the dims of a reshape's result: the operand's indices, grouped by the new extents."""
        assert op.attrs.shape is not None
        flat = [part for dim in dims for part in dim]
        extents = self._axes.extents
        out: list[Parts] = []
        for extent in op.attrs.shape:
            dim: list[Part] = []
            length = 1
            while length < extent:
                dim.append(flat.pop(0))
                length *= extents[part_axis(dim[-1]) % self._algebra.width]
            out.append(tuple(dim))
        return tuple(out)

    def _reduction(self, op: Op, operands: list[tuple[Form, Dims]]) -> tuple[Form | None, Dims]:
        algebra, frame = self._algebra, self._frame
        x, dims = operands[0]
        dim = op.attrs.dim
        assert dim is not None
        parts = mask(dims[dim])
        without = (*dims[:dim], (), *dims[dim + 1 :])
        if not parts and op.kind not in (OpKind.SUM, OpKind.MEAN):
            return None, dims
        match op.kind:
            case OpKind.SUM:
                return algebra.sum(parts, x, frame), without
            case OpKind.MEAN:
                total = algebra.sum(parts, x, frame)
                extent = 1
                for part in dims[dim]:
                    extent *= self._axes.extents[part_axis(part) % algebra.width]
                return (None if total is None else algebra.mul(algebra.constant(Fraction(1, extent)), total)), without
            case OpKind.SOFTMAX:
                e = algebra.apply(OpKind.EXP.value, x)
                total = algebra.sum(parts, e, frame)
                return (None if total is None else algebra.div(e, total)), dims
            case OpKind.RMS_NORM:
                out = rms_norm(algebra, parts, x, op.attrs.eps, frame)
            case OpKind.LAYER_NORM:
                out = algebra.layer_norm(parts, x, op.attrs.eps, frame)
            case _:
                raise AssertionError(op.kind)
        for kind, operand in zip((OpKind.MUL, OpKind.ADD), operands[1:], strict=False):
            if out is not None:
                y, _ = self._views.joined(dims, *operand)
                out = binary_form(algebra, kind, out, y)
        return out, dims


_EXHAUSTIVE = "use --engine exhaustive (engine='exhaustive')"


def _unsupported_error(what: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError(what, where="guided search", hint=hint or "write the program without it")


@contextmanager
def _locate_errors(number: int) -> Iterator[None]:
    """Add the operator's number and a hint to an UnsupportedError that the body raises."""
    try:
        yield
    except UnsupportedError as error:
        error.operator = number
        error.hint = IN_PARTS
        raise

"""The checker's own interpreter of a µGraph in Z_p x Z_q, as a GPU would run it: blocks, iterations, accumulators.

Nothing is shared with semantics/ or with the prover's arithmetic: values are arrays of galois. Blocks are computed
together along three leading axes, on which a tensor that all blocks of an axis share has extent 1. The for-loop is a
loop, and an accumulator is a state that each iteration changes. An input iterator or output saver maps every element of
a tile to an element of the device tensor.

An element has a part in Z_p and one in Z_q. exp maps the part in Z_q to omega^x in Z_p and leaves none in Z_q, so a
second exp on a path has no meaning in the field. Only the parts that an output's value in Z_p needs are computed.
Elements of masks are 0 and 1 in both fields. The result of a comparison is a random bit of the values in Z_p.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.check.check_steps import UndefinedValueError as UndefinedValueError
from mirage_formal.check.fingerprint.prime_field import (
    Elements,
    FieldClass,
    element_of,
    matmul,
    powers_of,
    prime_field,
    total,
)
from mirage_formal.check.inlining import carried_maxima, inline_threads
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import COMPARISONS, EXTREMES, OPAQUE, SPECS, ZERO_AT_ZERO, Attrs, Lax, OpKind
from mirage_formal.graph.types import DimMap, DTensor, Shape
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.support.errors import FormatError

P, Q = 0, 1
#: A tensor's parts in Z_p and Z_q; None where no output needs it.
Value = list[Elements | None]
#: Residues, or words of 64 bits.
RandomWords = NDArray[np.uint64]
_LEAD = 3  # grid axes x, y, z before the data dims of a tile
_AT_ONCE = 1 << 22  # elements of the largest tile tensor that are computed side by side

#: Function that reads one part of one input.
Source = Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RandomPoint:
    """A random point: two primes, an element of order q in Z_p, and the keys of the random functions."""

    p: int
    q: int
    omega: int
    keys: dict[OpKind, tuple[int, int]]

    def field(self, part: int) -> FieldClass:
        """Return the class of arrays of one part."""
        return prime_field(self.q if part else self.p)


def parts_to_evaluate(graph: KernelGraph) -> tuple[list[set[int]], dict[int, list[set[int]]]]:
    """Return the parts that the outputs need: of each kernel tensor, and of each tensor of the inlined block graphs.

    Raises:
        FormatError: The graph has no picture in the field (not LAX).
    """
    kernel: list[set[int]] = [set() for _ in kernel_types(graph)]
    blocks: dict[int, list[set[int]]] = {}
    for output in graph.outputs:
        kernel[output].add(P)
    first = len(kernel)
    for index in reversed(range(len(graph.ops))):
        op = graph.ops[index]
        first -= op.results
        if isinstance(op, GraphDefined):
            plain, ops, _ = inline_threads(op.graph)
            same = carried_maxima(plain, ops)
            inner: list[set[int]] = [set() for _ in range(len(plain.inputs) + sum(o.results for o in ops))]
            for saver, wanted in zip(plain.outputs, kernel[first : first + op.results], strict=True):
                inner[saver.operand] |= wanted
            number = len(inner)
            for below in reversed(ops):
                number -= below.results
                _add_needed_parts(
                    below, set[int]().union(*inner[number : number + below.results]), inner, same=number in same
                )
            for operand, wanted in zip(op.operands, inner, strict=False):
                kernel[operand] |= wanted
            blocks[index] = inner
        else:
            _add_needed_parts(op, kernel[first], kernel)
    return kernel, blocks


def _add_needed_parts(op: Op, wanted: set[int], tensors: list[set[int]], *, same: bool = False) -> None:
    """Add to the operands of an operator the parts that its result needs; ``same``: the result is the operand."""
    parts = set(wanted)
    if wanted and SPECS[op.kind].lax is Lax.NONE and not same:
        raise FormatError(f"operator {op.kind.value} has no picture in a finite field: the graph is not LAX")
    if wanted and op.kind in (OpKind.EXP, OpKind.SOFTMAX, OpKind.SILU):
        if Q in wanted:
            raise FormatError("a second exponential on one path: the graph is not LAX")
        parts = {P, Q} if op.kind is OpKind.SILU else {Q}
    if wanted and op.kind in COMPARISONS:
        parts = {P}
    for operand in op.operands:
        tensors[operand] |= parts


def evaluate_steps(graph: KernelGraph, point: RandomPoint, source: Source) -> list[NDArray[Any]]:
    """Return the outputs' residues in Z_p.

    Args:
        graph: A well-formed graph.
        point: The random point.
        source: Function that returns the inputs' residues, of the inputs' shapes.

    Raises:
        UndefinedValueError: The graph has no value at these inputs.
        FormatError: The graph has no picture in the field.
    """
    types = kernel_types(graph)
    wanted, inside = parts_to_evaluate(graph)
    values: list[Value] = [
        [_enter_field(point.field(part), source(number, part)) if part in parts else None for part in (P, Q)]
        for number, parts in enumerate(wanted[: len(graph.inputs)])
    ]
    last = {i: n for n, op in enumerate(graph.ops) for i in op.operands}
    for index, op in enumerate(graph.ops):
        given = [values[i] for i in op.operands]
        if isinstance(op, GraphDefined):
            values += _Block(op.graph, [types[i] for i in op.operands], point, inside[index]).run(given)
        else:
            parts = wanted[len(values)]
            values.append([_apply(op, given, part, point, 0, 1) if part in parts else None for part in (P, Q)])
        for operand in op.operands:  # free values after their last reader
            if last[operand] == index and operand not in graph.outputs:
                values[operand] = [None, None]
    return [np.asarray(_require_part(values[i][P])) for i in graph.outputs]


def _enter_field(field: FieldClass, residues: NDArray[Any]) -> Elements:
    """Return residues as elements, without a copy of 32-bit words; galois refuses what is not below the prime."""
    return field(np.asarray(residues, dtype=np.uint32), copy=False)


def _require_part(value: Elements | None) -> Elements:
    assert value is not None, "a part was read that needs() did not ask for"
    return value


# --- operators, on values with ``lead`` leading axes ---------------------------------------------------------------


def _apply(op: Op, xs: Sequence[Value], part: int, point: RandomPoint, lead: int, dimx: int) -> Elements:
    """Return one part of an operator's result.

    Sound: a result that has left the field, so that its sums would be those of machine words, is refused.
    """
    field = point.field(part)
    found = _apply_in_field(op, xs, part, point, lead, dimx)
    if not isinstance(found, field):
        raise TypeError(f"operator {op.kind.value} has left the field")
    return found


def _apply_in_field(op: Op, xs: Sequence[Value], part: int, point: RandomPoint, lead: int, dimx: int) -> Elements:
    field, attrs, kind = point.field(part), op.attrs, op.kind
    if kind is OpKind.EXP:
        return _exp(xs[0], point)
    if kind in (OpKind.SILU, OpKind.SOFTMAX):
        return _apply_silu_or_softmax(kind, xs[0], point, lead + (attrs.dim or 0))
    if kind in COMPARISONS:
        return field(_compare(kind, attrs, [_require_part(value[P]) for value in xs], point))
    x = [_require_part(value[part]) for value in xs]
    if kind in EXTREMES and attrs.value is not None:
        x.append(_constant(attrs.value, field).reshape(1))
    axis = lead + (x[0].ndim - lead - 1 if attrs.dim is None else attrs.dim)
    if SPECS[kind].elementwise and kind is not OpKind.CAST:
        return _elementwise(kind, attrs, x, point, field)
    match kind:
        case OpKind.MATMUL:
            return matmul(x[0], x[1])
        case OpKind.SUM | OpKind.MEAN | OpKind.SUM_TO_DIMX:
            out = _sum_in_steps(x[0], axis, dimx if kind is OpKind.SUM_TO_DIMX else 1)
            return out * _constant(Fraction(1, x[0].shape[axis]), field) if kind is OpKind.MEAN else out
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return _norm(kind, attrs, x, axis, field)
    return _move_elements(kind, attrs, x, axis, lead)


def _elementwise(kind: OpKind, attrs: Attrs, x: list[Elements], point: RandomPoint, field: FieldClass) -> Elements:
    """Return the result of an elementwise operator, which acts on each part by itself."""
    match kind:
        case OpKind.ADD | OpKind.SUB:
            return x[0] + x[1] if kind is OpKind.ADD else x[0] - x[1]
        case OpKind.MUL | OpKind.SQUARE:
            return x[0] * x[-1]
        case OpKind.DIV | OpKind.DIV_NO_NAN:
            return _divide(x[0], x[1]) if kind is OpKind.DIV else _divide_or_zero(x[0], x[1], field)
        case OpKind.SELECT | OpKind.LOGICAL_NOT:
            return _select(attrs, x, field)
        case OpKind.SQRT | OpKind.ABS:
            return _root(x[0] if kind is OpKind.SQRT else x[0] * x[0], field)
        case OpKind.RECIPROCAL:
            return _divide(field(1), x[0])
        case OpKind.SCALE if attrs.factor is not None:
            return x[0] * _constant(attrs.factor, field)
        case OpKind.SHIFT if attrs.shift is not None:
            return x[0] + _constant(attrs.shift, field)
        case _ if kind in OPAQUE:
            return _apply_random_function(x, *point.keys[kind], field, zero=kind in ZERO_AT_ZERO)
    raise FormatError(f"operator {kind.value} has no meaning here")


def _move_elements(kind: OpKind, attrs: Attrs, x: list[Elements], axis: int, lead: int) -> Elements:
    """Return the result of an operator that only moves elements."""
    head = x[0].shape[:lead]
    match kind:
        case OpKind.CAST | OpKind.ACCUM_MAX:  # a tensor that the loop does not change: others have no picture
            return x[0]
        case OpKind.TRANSPOSE if attrs.perm is not None:
            return x[0].transpose([*range(lead), *(lead + i for i in attrs.perm)])
        case OpKind.RESHAPE if attrs.shape is not None:
            return x[0].reshape(*head, *attrs.shape)
        case OpKind.SLICE if attrs.start is not None:
            return x[0].take(range(attrs.start, attrs.stop or 0), axis=axis)
        case OpKind.PAD if attrs.before is not None:
            around = [(attrs.before, attrs.after or 0) if i == axis else (0, 0) for i in range(x[0].ndim)]
            return type(x[0])(np.pad(np.asarray(x[0]), around))
        case OpKind.REPEAT if attrs.times is not None:
            return np.repeat(x[0], attrs.times, axis=axis)
        case OpKind.CONCAT:
            shared = np.broadcast_shapes(head, x[1].shape[:lead])
            return np.concatenate([np.broadcast_to(a, (*shared, *a.shape[lead:])) for a in x], axis=axis)
    raise FormatError(f"operator {kind.value} has no meaning here")


def _constant(value: Fraction, field: FieldClass) -> Elements:
    try:
        found = element_of(value, field)
    except ZeroDivisionError as error:
        raise UndefinedValueError(str(error)) from None
    if found == 0 and value != 0:
        raise UndefinedValueError(f"the constant {value} is 0 modulo {field.order}")
    return found


def _exp(x: Value, point: RandomPoint) -> Elements:
    return powers_of(point.omega, _require_part(x[Q]), point.field(P), point.q)


def _apply_silu_or_softmax(kind: OpKind, x: Value, point: RandomPoint, axis: int) -> Elements:
    """Return silu(x) = x / (1 + exp(-x)), or softmax(x) = exp(x) / sum of exp(x)."""
    if kind is OpKind.SOFTMAX:
        e = _exp(x, point)
        return _divide(e, _sum_in_steps(e, axis, 1))
    return _divide(_require_part(x[P]), _exp([None, -_require_part(x[Q])], point) + point.field(P)(1))


def _divide(a: Elements, b: Elements) -> Elements:
    if not np.asarray(b).all():
        raise UndefinedValueError("a denominator is 0")
    return a / b


def _root(a: Elements, field: FieldClass) -> Elements:
    """Return the principal root, itself a residue because m = 3 mod 4 for the field's order m."""
    root = a ** ((field.order + 1) // 4)
    if (root * root != a).any():
        raise UndefinedValueError("a radicand is no residue")
    return root


def _divide_or_zero(a: Elements, b: Elements, field: FieldClass) -> Elements:
    """Return the quotient, and 0 where the divisor is 0."""
    there = np.asarray(b) != 0
    quotient = _divide(a, field(np.where(there, np.asarray(b), 1)))
    return field(np.where(there, np.asarray(quotient), 0))


def _select(attrs: Attrs, x: Sequence[Elements], field: FieldClass) -> Elements:
    """Return a selection: the first value times the mask, plus the second value or a number times its negation.

    With a mask alone, return its negation.
    """
    rest = field(1) - x[0]
    if len(x) == 1:
        return rest
    return x[0] * x[1] + rest * (x[2] if attrs.value is None else _constant(attrs.value, field))


def _compare(kind: OpKind, attrs: Attrs, x: Sequence[Elements], point: RandomPoint) -> RandomWords:
    """Return the random bits of a comparison of values in Z_p.

    a = b is b = a and holds where both are equal; a < b does not hold there; a <= b is the negation of b < a.
    """
    a, b = x[0], x[1] if attrs.value is None else _constant(attrs.value, point.field(P))
    if kind in (OpKind.GT, OpKind.LE):
        a, b = b, a
    one, key = np.uint64(1), function_key(kind)
    there = _words(a - b)
    if kind is OpKind.EQ:
        there = np.where(there > point.p // 2, np.uint64(point.p) - there, there)
    bits = _random_word(there, *point.keys[key]) & one
    holds = np.where(there == 0, np.uint64(key is OpKind.EQ), bits)
    return one - holds if kind in (OpKind.LE, OpKind.GE) else holds


def function_key(kind: OpKind) -> OpKind:
    """Return the function whose key a comparison uses: every inequality is a < b, reversed or negated."""
    return OpKind.LT if kind in (OpKind.LE, OpKind.GT, OpKind.GE) else kind


def _apply_random_function(
    x: Sequence[Elements], first: int, second: int, field: FieldClass, *, zero: bool
) -> Elements:
    """Return a random function of one value, or a symmetric one of two values.

    For two values it is the function of the sum of the function's values. With ``zero`` it is 0 at 0.
    """

    def function(a: Elements) -> Elements:
        words = _words(a)
        found = _random_word(words, first, second) % np.uint64(field.order)
        return field(np.where(words == 0, np.uint64(0), found) if zero else found)

    found = [function(a) for a in x]
    return found[0] if len(found) == 1 else function(found[0] + found[1])


def _words(x: Elements) -> RandomWords:
    return np.asarray(x).astype(np.uint64)


def _random_word(x: RandomWords, first: int, second: int) -> RandomWords:
    def mix(z: RandomWords) -> RandomWords:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))

    with np.errstate(over="ignore"):
        z = mix((x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(first))
        return mix(z ^ np.uint64(second))


def _sum_in_steps(x: Elements, axis: int, kept: int) -> Elements:
    """Return the sum along an axis in steps of ``kept``: result j is the sum of elements j, j + kept, ..."""
    n = x.shape[axis]
    return total(x.reshape(*x.shape[:axis], n // kept, kept, *x.shape[axis + 1 :]), axis)


def _norm(kind: OpKind, attrs: Attrs, x: list[Elements], axis: int, field: FieldClass) -> Elements:
    share = _constant(Fraction(1, x[0].shape[axis]), field)
    a = x[0]
    if kind is OpKind.LAYER_NORM:
        a = a - _sum_in_steps(a, axis, 1) * share
    below = _sum_in_steps(a * a, axis, 1) * share
    if attrs.eps is not None:
        below = below + _constant(attrs.eps, field)
    out = _divide(a, _root(below, field))
    out = out * x[1] if len(x) > 1 else out
    return out + x[2] if len(x) > 2 else out


# --- block graphs --------------------------------------------------------------------------------------------------

_AxisValues = NDArray[np.int64]


def _reshape_along(values: _AxisValues, axis: int, rank: int) -> _AxisValues:
    """Return a vector reshaped to lie along one of ``rank`` axes."""
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


class _Block:
    """Interpreter of one graph-defined kernel."""

    def __init__(self, block: BlockGraph, operands: list[DTensor], point: RandomPoint, wanted: list[set[int]]) -> None:
        self.block, self.ops, _ = inline_threads(block)
        self.operands = operands
        self.point = point
        self.wanted = wanted
        self.tiles = block_types(self.block, tuple(operands))
        self.inputs = len(block.inputs)

    def run(self, given: Sequence[Value]) -> list[Value]:
        """Return the device tensors that all blocks together write."""
        block = self.block
        outputs: list[Value] = []
        for saver in block.outputs:
            shape = [
                n * prod(g for g, d in zip(block.grid, saver.omap, strict=True) if d == dim)
                for dim, n in enumerate(self.tiles[saver.operand].shape)
            ]
            parts = self.wanted[saver.operand]
            outputs.append([self.point.field(part).Zeros(shape) if part in parts else None for part in (P, Q)])
        for coordinates in self._chunks():
            values = self._blocks(given, coordinates)
            for saver, output in zip(block.outputs, outputs, strict=True):
                parts = self.wanted[saver.operand]
                for part in parts:
                    where = self._positions(_require_part(output[part]).shape, saver.omap, None, coordinates, 0)
                    _require_part(output[part])[where] = _require_part(values[saver.operand][part])
        return outputs

    def _chunks(self) -> Iterator[list[_AxisValues]]:
        """Yield block coordinates along x, y and z, in chunks along the longest axis that bound the memory."""
        grid = self.block.grid
        axis = grid.index(max(grid))
        largest = max(prod(tile.shape) for tile in self.tiles) * (prod(grid) // grid[axis])
        step = max(1, _AT_ONCE // largest)
        for start in range(0, grid[axis], step):
            coordinates = [np.arange(n, dtype=np.int64) for n in grid]
            coordinates[axis] = coordinates[axis][start : start + step]
            yield coordinates

    def _blocks(self, given: Sequence[Value], coordinates: list[_AxisValues]) -> list[Value]:
        """Return all tensors of some blocks after their loop; those inside the loop are of the last iteration."""
        block = self.block
        values: list[Value] = [[None, None] for _ in self.tiles]
        constant = {i for i, iterator in enumerate(block.inputs) if iterator.fmap is None}
        states: dict[tuple[int, int], list[Elements]] = {}
        for iteration in range(block.forloop_range):
            for number, (iterator, tensor) in enumerate(zip(block.inputs, self.operands, strict=True)):
                if iteration == 0 or number not in constant:
                    where = self._positions(tensor.shape, iterator.imap, iterator.fmap, coordinates, iteration)
                    for part in self.wanted[number]:
                        values[number][part] = _require_part(given[number][part])[where]
            for number, op in enumerate(self.ops, self.inputs):
                if op.kind is not OpKind.ACCUM_MAX and SPECS[op.kind].accumulator:
                    self._accumulate(op, number, values, states)
                elif not self.tiles[number].after_loop and not (iteration and number in constant):
                    self._compute(op, number, values)
                    if constant.issuperset(op.operands):
                        constant.add(number)
        for number, op in enumerate(self.ops, self.inputs):
            if SPECS[op.kind].accumulator and op.kind is not OpKind.ACCUM_MAX:
                self._finish(op, number, values, states)
            elif self.tiles[number].after_loop:
                self._compute(op, number, values)
        return values

    def _positions(
        self, shape: Shape, maps: DimMap, loop: int | None, coordinates: list[_AxisValues], iteration: int
    ) -> tuple[_AxisValues, ...]:
        """Return, for every element of the tiles [x, y, z, tile...], its index in a device tensor of this shape.

        A dim is split to block tiles by the grid axes mapped to it (x outermost), then to loop tiles.
        """
        found: list[_AxisValues] = []
        for dim, extent in enumerate(shape):
            index: _AxisValues = np.zeros((1,) * (_LEAD + len(shape)), dtype=np.int64)
            for axis in range(_LEAD):
                if maps[axis] == dim:
                    extent //= self.block.grid[axis]
                    index = index + _reshape_along(coordinates[axis] * extent, axis, index.ndim)
            if loop == dim:
                extent //= self.block.forloop_range
                index = index + iteration * extent
            found.append(index + _reshape_along(np.arange(extent, dtype=np.int64), _LEAD + dim, index.ndim))
        return tuple(found)

    def _compute(self, op: Op, number: int, values: list[Value]) -> None:
        xs = [values[i] for i in op.operands]
        for part in self.wanted[number]:
            values[number][part] = _apply(op, xs, part, self.point, _LEAD, self.block.reduction_dimx)

    def _accumulate(
        self, op: Op, number: int, values: list[Value], states: dict[tuple[int, int], list[Elements]]
    ) -> None:
        """Add the value of one iteration to the states of an accumulator."""
        for part in self.wanted[number]:
            x = _require_part(values[op.operands[0]][part])
            if op.kind is OpKind.ACCUM_RMS_LAST:
                x = x * x
            if op.kind in (OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST):
                x = _sum_in_steps(x, x.ndim - 1, 1)
            elif op.kind is OpKind.ACCUM_SUM_TO_DIMX:
                dim = x.ndim - _LEAD - 1 if op.attrs.dim is None else op.attrs.dim
                x = _sum_in_steps(x, _LEAD + dim, self.block.reduction_dimx)
            elif op.kind not in (OpKind.ACCUM_SUM, OpKind.ACCUM_CONCAT):
                raise FormatError(f"accumulator {op.kind.value} has no meaning here")
            state = states.setdefault((number, part), [])
            if op.kind is OpKind.ACCUM_CONCAT or not state:
                state.append(x)
            else:
                state[0] = state[0] + x

    def _finish(self, op: Op, number: int, values: list[Value], states: dict[tuple[int, int], list[Elements]]) -> None:
        """Set the value of an accumulator after the loop."""
        for part in self.wanted[number]:
            field, state = self.point.field(part), states[number, part]
            out = state[0]
            if op.kind is OpKind.ACCUM_CONCAT:
                out = np.concatenate(state, axis=_LEAD + (op.attrs.dim or 0))
            elif op.kind in (OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST):
                count = self.tiles[op.operands[0]].shape[-1] * self.block.forloop_range
                out = out * _constant(Fraction(1, count), field)
                out = _root(out, field) if op.kind is OpKind.ACCUM_RMS_LAST else out
            values[number][part] = out

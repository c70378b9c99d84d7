"""The checker's own interpretation of a µGraph as abstract expressions (paper, section 4.3).

It is written from the rules, not from semantics/: it shares only the terms of logic/terms and the types of graph/ with
the code that makes certificates. An abstract expression has no shapes and indices, but keeps the number of elements of
each sum. A concatenation has one expression per part as long as its parts lie along one dim, so that a product over
that dim is the sum of the parts' products. After that, and wherever a single expression is needed, it is the sum of its
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from fractions import Fraction
from functools import partial, reduce
from math import prod
from typing import Final

from mirage_formal.check.inlining import carried_maxima, inline_threads
from mirage_formal.check.proof.operator_terms import UNINTERPRETED
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph
from mirage_formal.graph.ops import MOVES, Attrs, OpKind
from mirage_formal.graph.types import DTensor, Shape
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.logic.terms import Expr, Unary, add, const, div, mul, sum_, unary, var
from mirage_formal.support.errors import FormatError

#: A tensor's meaning: the dim along which its parts lie (ignored for one part), extent and term of each part.
Parts = tuple[int, tuple[tuple[int, Expr], ...]]

#: Function applied to a + b, in expressions for counting, where an element is one of a or one of b.
EITHER: Final = "either"
#: Operation that combines two parts that are no longer separate: addition.
_TOGETHER: Final[ContextVar[Callable[[Expr, Expr], Expr]]] = ContextVar("_TOGETHER", default=add)

#: Elementwise functions without known equations.
_OPAQUE = (
    *(OpKind.EXP, OpKind.SQRT, OpKind.SILU, OpKind.GELU, OpKind.SIGMOID, OpKind.TANH),
    *map(OpKind, UNINTERPRETED),
)
_FUNCTIONS: dict[OpKind, Callable[[Expr], Expr]] = {
    **{kind: partial(unary, kind.value) for kind in _OPAQUE},
    OpKind.SQUARE: lambda a: mul(a, a),
    OpKind.RECIPROCAL: lambda a: div(const(1), a),
    OpKind.ABS: lambda a: unary("sqrt", mul(a, a)),
    OpKind.LOGICAL_NOT: lambda a: add(mul(const(-1), a), const(1)),
}
_BINARY: dict[OpKind, Callable[[Expr, Expr], Expr]] = {
    OpKind.ADD: add,
    OpKind.SUB: lambda a, b: add(a, mul(const(-1), b)),
    OpKind.MUL: mul,
    OpKind.DIV: div,
    OpKind.DIV_NO_NAN: div,
    OpKind.MAXIMUM: lambda a, b: unary("maximum", add(a, b)),
    OpKind.MINIMUM: lambda a, b: unary("minimum", add(a, b)),
    OpKind.EQ: lambda a, b: unary("eq", add(a, b)),
    OpKind.LT: lambda a, b: unary("lt", add(a, b)),
    OpKind.LE: lambda a, b: unary("le", add(a, b)),
    OpKind.GT: lambda a, b: unary("lt", add(b, a)),
    OpKind.GE: lambda a, b: unary("le", add(b, a)),
    # The first where the mask is 1, and 0 elsewhere.
    OpKind.SELECT: lambda mask, a: unary("select", add(mask, a)),
}


def tensor_expressions(graph: KernelGraph) -> dict[str, tuple[Expr, ...]]:
    """Return the abstract expressions of the parts of every tensor; only concatenations have several parts.

    They are named as in proof.jsonl: ``k<i>`` and ``b<j>.<i>``.

    Raises:
        GraphError: The graph is not well-formed.
        FormatError: An operator has no abstract expression.
    """
    terms, named = _interpret(graph)
    both = {f"k{i}": value for i, value in enumerate(terms)} | named
    return {name: tuple(term for _, term in value[1]) for name, value in both.items()}


def output_parts(graph: KernelGraph) -> list[Expr]:
    """Return the abstract expressions of the parts of a program's outputs.

    A tensor has one part, unless it is a concatenation. Parts that are no longer separate are combined to EITHER of
    their sum, not to the sum, because an element is that of one of them.
    """
    token = _TOGETHER.set(lambda a, b: unary(EITHER, add(a, b)))
    try:
        terms, _ = _interpret(graph)
    finally:
        _TOGETHER.reset(token)
    return [term for i in graph.outputs for _, term in terms[i][1]]


def _interpret(graph: KernelGraph) -> tuple[list[Parts], dict[str, Parts]]:
    """Return the terms of the tensors of a kernel graph, and of those of its block graphs."""
    types = kernel_types(graph)
    terms = [_single_part(var(given.name)) for given in graph.inputs]
    named: dict[str, Parts] = {}
    for index, op in enumerate(graph.ops):
        given = [terms[i] for i in op.operands]
        if isinstance(op, GraphDefined):
            inner, saved = _interpret_block(op.graph, given, tuple(types[i] for i in op.operands))
            named |= {f"b{index}.{i}": value for i, value in enumerate(inner)}
            terms += saved
        else:
            terms += _results(op.kind, op.attrs, given, [types[i].shape for i in op.operands], 1, 1)
    return terms, named


def output_expressions(graph: KernelGraph) -> list[Expr]:
    """Return the abstract expressions of a program's outputs, in order."""
    terms, _ = _interpret(graph)
    return [_combine_parts(terms[i]) for i in graph.outputs]


def _interpret_block(
    block: BlockGraph, given: list[Parts], operands: tuple[DTensor, ...]
) -> tuple[list[Parts], list[Parts]]:
    """Return the terms of a block graph's tensors, and of its outputs."""
    plain, ops, numbers = inline_threads(block)
    shapes = [tensor.shape for tensor in block_types(plain, operands)]
    ways = (*block.grid, block.forloop_range)
    terms = [
        _combine_split_parts(term, [d for d, n in zip((*iterator.imap, iterator.fmap), ways, strict=True) if n > 1])
        for term, iterator in zip(given, block.inputs, strict=True)
    ]
    same = carried_maxima(plain, ops)
    for op in ops:
        args, sizes = [terms[i] for i in op.operands], [shapes[i] for i in op.operands]
        made = _results(op.kind, op.attrs, args, sizes, block.forloop_range, block.reduction_dimx)
        terms += args if len(terms) in same else made
    saved = [
        _combine_split_parts(terms[saver.operand], [d for d, n in zip(saver.omap, block.grid, strict=True) if n > 1])
        for saver in plain.outputs
    ]
    return [terms[i] for i in numbers], saved


def _single_part(term: Expr) -> Parts:
    return 0, ((1, term),)


def _combine_parts(value: Parts) -> Expr:
    """Return the term of a tensor, combined from those of its parts."""
    return reduce(_TOGETHER.get(), (term for _, term in value[1]))


def _combine_split_parts(value: Parts, dims: Sequence[int | None]) -> Parts:
    """Return a tensor's parts after dims were split or joined; parts along such a dim are combined to one."""
    return _single_part(_combine_parts(value)) if value[0] in dims else value


def _join(dim: int, parts: Sequence[tuple[int, Expr]]) -> Parts:
    return _single_part(parts[0][1]) if len({term for _, term in parts}) == 1 else (dim, tuple(parts))


def _map_parts(value: Parts, function: Callable[[Expr], Expr]) -> Parts:
    return _join(value[0], [(n, function(term)) for n, term in value[1]])


def _parts_along(value: Parts, dim: int, extent: int) -> tuple[tuple[int, Expr], ...]:
    """Return the parts along a dim: those of the tensor if they lie along it, else the whole tensor."""
    return value[1] if len(value[1]) > 1 and value[0] == dim else ((extent, _combine_parts(value)),)


def _refine_parts(a: tuple[tuple[int, Expr], ...], b: tuple[tuple[int, Expr], ...]) -> list[tuple[int, Expr, Expr]]:
    """Refine two lists of parts at the bounds of both."""
    out: list[tuple[int, Expr, Expr]] = []
    i = j = 0
    left, right = a[0][0], b[0][0]
    while i < len(a) and j < len(b):
        step = min(left, right)
        out.append((step, a[i][1], b[j][1]))
        left, right = left - step, right - step
        if left == 0:
            i += 1
            left = a[i][0] if i < len(a) else 0
        if right == 0:
            j += 1
            right = b[j][0] if j < len(b) else 0
    return out


def _broadcast(sizes: Sequence[Shape]) -> Shape:
    return tuple(max(extents) for extents in zip(*sizes, strict=True))


def _combine_pairs(kind: OpKind, a: Parts, b: Parts, shape: Shape) -> Parts:
    if len(a[1]) > 1 and len(b[1]) > 1 and a[0] != b[0]:
        a = _single_part(_combine_parts(a))
    dim = a[0] if len(a[1]) > 1 else b[0]
    both = _refine_parts(_parts_along(a, dim, shape[dim]), _parts_along(b, dim, shape[dim]))
    return _join(dim, [(n, _BINARY[kind](x, y)) for n, x, y in both])


def _matmul(a: Parts, b: Parts, sizes: list[Shape]) -> Parts:
    rank, depth = len(sizes[0]), sizes[0][-1]

    def product(left: tuple[tuple[int, Expr], ...], right: tuple[tuple[int, Expr], ...]) -> Expr:
        return reduce(add, (sum_(n, mul(x, y)) for n, x, y in _refine_parts(left, right)))

    if len(a[1]) > 1 and a[0] != rank - 1:  # parts among the rows
        return _join(a[0], [(n, product(((depth, x),), _parts_along(b, rank - 2, depth))) for n, x in a[1]])
    if len(b[1]) > 1 and b[0] != rank - 2:  # parts among the columns
        return _join(b[0], [(n, product(_parts_along(a, rank - 1, depth), ((depth, y),))) for n, y in b[1]])
    return _single_part(product(_parts_along(a, rank - 1, depth), _parts_along(b, rank - 2, depth)))


def _sum(value: Parts, dim: int, extent: int, kept: int = 1) -> Parts:
    """Return the sum along a dim, in groups that leave ``kept`` elements."""
    if len(value[1]) == 1 or value[0] != dim:
        return _map_parts(value, lambda term: sum_(extent // kept, term))
    if any(n % kept for n, _ in value[1]):
        return _single_part(sum_(extent // kept, _combine_parts(value)))
    return _single_part(reduce(add, (sum_(n // kept, term) for n, term in value[1])))


def _times(value: Parts, factor: Fraction) -> Parts:
    return _map_parts(value, lambda term: mul(const(factor), term))


def _over_rms(x: Parts, dim: int, shape: Shape, attrs: Attrs) -> Parts:
    below = _times(_sum(_map_parts(x, _FUNCTIONS[OpKind.SQUARE]), dim, shape[dim]), Fraction(1, shape[dim]))
    if (eps := attrs.eps) is not None:
        below = _map_parts(below, lambda term: add(term, const(eps)))
    return _combine_pairs(OpKind.DIV, x, _map_parts(below, lambda term: unary("sqrt", term)), shape)


def _reshape_parts(value: Parts, before: Shape, after: Shape) -> Parts:
    """Return the parts after a reshape, which are kept if their dim is.

    The dim is kept if its extent and the number of elements before it are the same.
    """
    if len(value[1]) == 1:
        return value
    for dim, n in enumerate(after):
        if n == before[value[0]] and prod(after[:dim]) == prod(before[: value[0]]):
            return dim, value[1]
    return _single_part(_combine_parts(value))


def _maximum_of_parts(value: Parts, dim: int | None) -> Parts:
    """Return the maximum along a dim, or (None) over the loop: an opaque function; a maximum of maxima is one."""
    value = _single_part(_combine_parts(value)) if value[0] == dim else value
    return _map_parts(
        value, lambda term: term if isinstance(term, Unary) and term.function == "max" else unary("max", term)
    )


def _results(kind: OpKind, attrs: Attrs, x: list[Parts], sizes: list[Shape], loop: int, dimx: int) -> list[Parts]:
    """Return the meanings of an operator's results; a rescaling factor is exp(m - m), for any iterations."""
    shape = sizes[0]
    last = len(shape) - 1
    dim = last if attrs.dim is None else attrs.dim
    match kind:
        case OpKind.MAX | OpKind.ACCUM_MAX:
            return [_maximum_of_parts(x[0], dim if kind is OpKind.MAX else None)]
        case OpKind.RUNNING_MAX:
            largest = _maximum_of_parts(x[0], dim)
            change = _combine_pairs(OpKind.SUB, largest, largest, (*shape[:dim], 1, *shape[dim + 1 :]))
            return [largest, _map_parts(change, lambda term: unary("exp", term))]
        case OpKind.ACCUM_RESCALED_SUM | OpKind.ACCUM_RESCALED_SUM_LAST:
            first = _sum(x[0], last, shape[last]) if kind is OpKind.ACCUM_RESCALED_SUM_LAST else x[0]
            rescaled = _combine_pairs(OpKind.MUL, first, x[1], _broadcast(sizes))
            return [_map_parts(rescaled, lambda term: sum_(loop, term))]
    return [_meaning_of_operator(kind, attrs, x, sizes, loop, dimx)]


def _meaning_of_operator(kind: OpKind, attrs: Attrs, x: list[Parts], sizes: list[Shape], loop: int, dimx: int) -> Parts:
    """Return the meaning of an operator's result; ``loop`` is the number of iterations that an accumulator sums."""
    shape = sizes[0]
    last = len(shape) - 1
    dim = last if attrs.dim is None else attrs.dim
    if kind in _FUNCTIONS:
        return _map_parts(x[0], _FUNCTIONS[kind])
    if kind is OpKind.SELECT:
        return _meaning_of_select(attrs, x, sizes)
    if kind in _BINARY:
        other = x[1] if attrs.value is None else _number(attrs.value, x[0])
        return _combine_pairs(kind, x[0], other, _broadcast(sizes))
    match kind:
        case OpKind.MATMUL:
            return _matmul(x[0], x[1], sizes)
        case OpKind.SCALE if attrs.factor is not None:
            return _times(x[0], attrs.factor)
        case OpKind.SHIFT if attrs.shift is not None:
            constant = const(attrs.shift)
            return _map_parts(x[0], lambda term: add(term, constant))
        case OpKind.SUM | OpKind.SUM_TO_DIMX:
            return _sum(x[0], dim, shape[dim], 1 if kind is OpKind.SUM else dimx)
        case OpKind.MEAN:
            return _times(_sum(x[0], dim, shape[dim]), Fraction(1, shape[dim]))
        case OpKind.SOFTMAX:
            power = _map_parts(x[0], lambda term: unary("exp", term))
            return _combine_pairs(OpKind.DIV, power, _sum(power, dim, shape[dim]), shape)
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return _norm(kind, attrs, x, dim, shape)
    if kind in MOVES or kind is OpKind.CAST:
        return _meaning_of_move(kind, attrs, x, sizes, dim)
    return _meaning_of_accumulator(kind, x, dim, shape, loop, dimx)


def _number(value: Fraction, like: Parts) -> Parts:
    """Return the parts of a constant operand."""
    return _map_parts(like, lambda term: add(mul(const(0), term), const(value)))


def _meaning_of_select(attrs: Attrs, x: list[Parts], sizes: list[Shape]) -> Parts:
    """Return the meaning of a selection: mask times the first value, plus negated mask times the second."""
    first = _combine_pairs(OpKind.SELECT, x[0], x[1], _broadcast(sizes[:2]))
    if attrs.value == 0:
        return first
    other, size = (x[2], sizes[2]) if attrs.value is None else (_number(attrs.value, x[0]), sizes[0])
    rest = _combine_pairs(
        OpKind.SELECT, _map_parts(x[0], _FUNCTIONS[OpKind.LOGICAL_NOT]), other, _broadcast([sizes[0], size])
    )
    return _combine_pairs(OpKind.ADD, first, rest, _broadcast(sizes))


def _meaning_of_move(kind: OpKind, attrs: Attrs, x: list[Parts], sizes: list[Shape], dim: int) -> Parts:
    """Return the meaning of an operator that only moves elements, or pads with zeros."""
    shape = sizes[0]
    match kind:
        case OpKind.CAST | OpKind.REPEAT:
            return x[0]
        case OpKind.SLICE if attrs.start is not None and attrs.stop is not None:
            return _slice_parts(x[0], dim, attrs.start, attrs.stop)
        case OpKind.PAD:
            # Zeros count as elements beside them: what holds of the tensor's elements holds of its parts.
            parts = _parts_along(x[0], dim, shape[dim])
            longer = [attrs.before or 0, *(0 for _ in parts[1:])]
            longer[-1] += attrs.after or 0
            return _join(dim, [(n + more, term) for (n, term), more in zip(parts, longer, strict=True)])
        case OpKind.TRANSPOSE if attrs.perm is not None:
            return attrs.perm.index(x[0][0]), x[0][1]
        case OpKind.RESHAPE if attrs.shape is not None:
            return _reshape_parts(x[0], shape, attrs.shape)
        case OpKind.CONCAT:
            return _join(dim, [*_parts_along(x[0], dim, shape[dim]), *_parts_along(x[1], dim, sizes[1][dim])])
    raise FormatError(f"operator {kind.value} has no abstract expression here")


def _slice_parts(value: Parts, dim: int, start: int, stop: int) -> Parts:
    """Return the parts of a slice along a dim: of parts that lie along it, those that overlap it."""
    if len(value[1]) == 1 or value[0] != dim:
        return value
    met: list[tuple[int, Expr]] = []
    first = 0
    for n, term in value[1]:
        if (count := min(stop, first + n) - max(start, first)) > 0:
            met.append((count, term))
        first += n
    return _join(dim, met)


def _norm(kind: OpKind, attrs: Attrs, x: list[Parts], dim: int, shape: Shape) -> Parts:
    centred = x[0]
    if kind is OpKind.LAYER_NORM:
        mean = _times(_sum(x[0], dim, shape[dim]), Fraction(1, shape[dim]))
        centred = _combine_pairs(OpKind.SUB, x[0], mean, shape)
    out = _over_rms(centred, dim, shape, attrs)
    for extra, joined in zip(x[1:], (OpKind.MUL, OpKind.ADD), strict=False):
        out = _combine_pairs(joined, out, extra, shape)
    return out


def _meaning_of_accumulator(kind: OpKind, x: list[Parts], dim: int, shape: Shape, loop: int, dimx: int) -> Parts:
    def over_loop(value: Parts) -> Parts:
        return _map_parts(value, lambda term: sum_(loop, term))

    last = len(shape) - 1
    mean = Fraction(1, shape[last] * loop)
    match kind:
        case OpKind.ACCUM_SUM:
            return over_loop(x[0])
        case OpKind.ACCUM_SUM_LAST:
            return over_loop(_sum(x[0], last, shape[last]))
        case OpKind.ACCUM_MEAN_LAST:
            return _times(over_loop(_sum(x[0], last, shape[last])), mean)
        case OpKind.ACCUM_RMS_LAST:
            squares = _times(over_loop(_sum(_map_parts(x[0], _FUNCTIONS[OpKind.SQUARE]), last, shape[last])), mean)
            return _map_parts(squares, lambda term: unary("sqrt", term))
        case OpKind.ACCUM_SUM_TO_DIMX:
            return over_loop(_sum(x[0], dim, shape[dim], dimx))
        case OpKind.ACCUM_CONCAT:
            return _combine_split_parts(x[0], [dim] if loop > 1 else [])
    raise FormatError(f"operator {kind.value} has no abstract expression here")

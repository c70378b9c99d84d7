"""The operator table: one row per operator, with arity, levels, attributes, shape rule and LAX class.

Every meaning of an operator (float64, finite fields, abstract expressions, index terms) is keyed by OpKind, and a
totality test fails when a domain lacks a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Final

from mirage_formal.graph.types import DType, Shape, broadcast


class OpKind(StrEnum):
    """Operators of all levels."""

    MATMUL = "matmul"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    EXP = "exp"
    SQRT = "sqrt"
    SQUARE = "square"
    SILU = "silu"
    GELU = "gelu"
    RELU = "relu"
    SIGMOID = "sigmoid"
    SCALE = "scale"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    SUM_TO_DIMX = "sum_to_dimx"
    SOFTMAX = "softmax"
    RMS_NORM = "rms_norm"
    LAYER_NORM = "layer_norm"
    TRANSPOSE = "transpose"
    RESHAPE = "reshape"
    CONCAT = "concat"
    REPEAT = "repeat"
    CAST = "cast"
    RUNNING_MAX = "running_max"
    ACCUM_SUM = "accum_sum"
    ACCUM_SUM_LAST = "accum_sum_last"
    ACCUM_MEAN_LAST = "accum_mean_last"
    ACCUM_RMS_LAST = "accum_rms_last"
    ACCUM_SUM_TO_DIMX = "accum_sum_to_dimx"
    ACCUM_CONCAT = "accum_concat"
    ACCUM_MAX = "accum_max"
    ACCUM_RESCALED_SUM = "accum_rescaled_sum"
    ACCUM_RESCALED_SUM_LAST = "accum_rescaled_sum_last"
    TANH = "tanh"
    ERF = "erf"
    LOG = "log"
    ABS = "abs"
    RECIPROCAL = "reciprocal"
    SHIFT = "shift"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    SLICE = "slice"
    PAD = "pad"
    SELECT = "select"
    EQ = "eq"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    LOGICAL_NOT = "logical_not"
    DIV_NO_NAN = "div_no_nan"
    ROUND_FLOAT16 = "round_float16"
    ROUND_BFLOAT16 = "round_bfloat16"


class Level(Enum):
    """Levels of a µGraph: kernels on device memory, operators of a block on shared memory, of a thread on registers."""

    KERNEL = "kernel"
    BLOCK = "block"
    THREAD = "thread"


class Lax(Enum):
    """Class of an operator in the LAX fragment (paper, section 5): multi-linear, division, exponential or outside.

    From the narrowest to the widest. ROOT is sqrt: outside the paper's theorem, but with a faithful interpretation in
    Z_p for p = 3 mod 4. OPAQUE operators are interpreted as random functions; NONE has no interpretation in a finite
    field.
    """

    LINEAR = "linear"
    DIVISION = "division"
    EXPONENTIAL = "exponential"
    ROOT = "root"
    OPAQUE = "opaque"
    NONE = "none"


class Family(Enum):
    """Family of operators, by their dependence on the elements of their operands."""

    PRODUCT = "product"
    #: Elementwise, of one operand; those with an attribute (scale, shift, cast) need more than the operand.
    FUNCTION = "function"
    #: Elementwise, of two operands, with broadcasting; in a maximum or minimum a number may take the place of one.
    ARITHMETIC = "arithmetic"
    #: Elementwise, of two operands, or of one operand and a number; the result is a boolean mask.
    COMPARISON = "comparison"
    #: Elementwise, of a boolean mask and one or two other operands, with broadcasting.
    SELECTION = "selection"
    #: Reduction along a dimension, which becomes shorter.
    REDUCTION = "reduction"
    #: Normalisation along a dimension, which keeps its extent.
    NORM = "norm"
    #: Movement of elements; no arithmetic.
    MOVE = "move"
    #: Reduction or concatenation over the iterations of the for-loop; the result is behind the loop.
    ACCUMULATOR = "accumulator"


_ALWAYS_SHOWN: Final = ("dim", "factor", "eps", "shape", "perm", "times", "dtype")


@dataclass(frozen=True, slots=True, repr=False)
class Attrs:
    """Attributes of an operator; its OpSpec lists the required ones, all others are None.

    dim: data dimension (0-based, non-negative). factor: exact scale. eps: exact constant added under a root.
    shape: target of a reshape. perm: axes of a transpose. times: repetitions. dtype: target of a cast.
    shift: exact summand. value: the number in place of the last operand of a maximum, a minimum, a comparison or a
    selection. start, stop: a slice's first element and the one behind its last. before, after: the numbers of zeros
    that a pad adds on either side.
    """

    dim: int | None = None
    factor: Fraction | None = None
    eps: Fraction | None = None
    shape: Shape | None = None
    perm: tuple[int, ...] | None = None
    times: int | None = None
    dtype: DType | None = None
    shift: Fraction | None = None
    start: int | None = None
    stop: int | None = None
    before: int | None = None
    after: int | None = None
    value: Fraction | None = None

    def __repr__(self) -> str:
        return _text(self)


@lru_cache(maxsize=1 << 10)
def _text(attrs: Attrs) -> str:
    # Canonical forms are ordered by this text. Attributes added later appear in it only where they are set, so that the
    # forms of graphs without them do not change.
    shown = ((field.name, getattr(attrs, field.name)) for field in fields(attrs))
    text = ", ".join(f"{name}={value!r}" for name, value in shown if name in _ALWAYS_SHOWN or value is not None)
    return f"Attrs({text})"


NO_ATTRS: Final = Attrs()


@dataclass(frozen=True, slots=True)
class BlockContext:
    """Context of a block-level shape rule besides the operand shapes."""

    forloop_range: int
    reduction_dimx: int


#: A shape rule returns the output shapes, or a text "expected ..., got ..." with the fault.
ShapeRule = Callable[[Attrs, tuple[Shape, ...], BlockContext | None], tuple[Shape, ...] | str]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row of the operator table.

    Attributes:
        kind: The operator.
        min_arity: Fewest operands.
        max_arity: Most operands.
        family: Its family.
        levels: Levels at which it may stand.
        shape: Its shape rule.
        lax: Its class in the LAX fragment.
        required: Names of the attributes that must be set.
        optional: Names of the attributes that may be set.
        commutative: Whether the two operands may be swapped.
        outputs: Number of results.
    """

    kind: OpKind
    min_arity: int
    max_arity: int
    family: Family
    levels: frozenset[Level]
    shape: ShapeRule
    lax: Lax
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    commutative: bool = False
    outputs: int = 1

    @property
    def accumulator(self) -> bool:
        """Return whether it closes the for-loop."""
        return self.family is Family.ACCUMULATOR

    @property
    def elementwise(self) -> bool:
        """Return whether each output element depends only on the operand elements at the same (broadcast) index."""
        return self.family in ELEMENTWISE

    @property
    def reads_dimx(self) -> bool:
        """Return whether its meaning depends on the block graph's reduction_dimx."""
        return self.shape is _to_dimx


#: Families of operators whose result at an index depends on the operands at that (broadcast) index only.
ELEMENTWISE: Final = frozenset({Family.FUNCTION, Family.ARITHMETIC, Family.COMPARISON, Family.SELECTION})


def _same(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    return (shapes[0],)


def _binary(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    out = broadcast(shapes[0], shapes[1])
    if out is None:
        return f"expected equal ranks with dims equal or 1, got {list(shapes[0])} and {list(shapes[1])}"
    return (out,)


def _broadcast(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    out = shapes[0]
    for other in shapes[1:]:
        found = _binary(attrs, (out, other), ctx)
        if isinstance(found, str):
            return found
        (out,) = found
    return (out,)


def _matmul(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    a, b = shapes
    if len(a) != len(b) or len(a) < 2:
        return f"expected equal ranks of at least 2, got {list(a)} and {list(b)}"
    if a[-1] != b[-2]:
        return f"inner dimensions differ: left {list(a)} has {a[-1]}, right {list(b)} has {b[-2]}"
    if a[:-2] != b[:-2]:
        return f"expected equal leading dimensions, got {list(a[:-2])} and {list(b[:-2])}"
    if ctx is not None and any(d != 1 for d in a[:-2]):
        return f"expected leading dimensions 1 inside a block, got {list(a[:-2])}"
    return ((*a[:-1], b[-1]),)


def _dim_fault(attrs: Attrs, shape: Shape) -> str | None:
    if attrs.dim is not None and not 0 <= attrs.dim < len(shape):
        return f"expected a dim in 0..{len(shape) - 1}, got {attrs.dim}"
    return None


def _replace(shape: Shape, dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1 :])


def _reduce(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if (fault := _dim_fault(attrs, shapes[0])) is not None:
        return fault
    assert attrs.dim is not None
    return (_replace(shapes[0], attrs.dim, 1),)


def _running_max(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    out = _reduce(attrs, shapes, ctx)
    return out if isinstance(out, str) else (out[0], out[0])


def _to_dimx(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if (fault := _dim_fault(attrs, shapes[0])) is not None:
        return fault
    shape = shapes[0]
    dim = len(shape) - 1 if attrs.dim is None else attrs.dim
    assert ctx is not None
    kept = ctx.reduction_dimx
    if kept < 1 or shape[dim] <= kept or shape[dim] % kept:
        return f"expected a dimension that is a larger multiple of reduction_dimx {kept}, got {shape[dim]}"
    return (_replace(shape, dim, kept),)


def _reduce_last(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if not shapes[0]:
        return "expected rank at least 1, got a scalar"
    return (_replace(shapes[0], len(shapes[0]) - 1, 1),)


def _accum_concat(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if (fault := _dim_fault(attrs, shapes[0])) is not None:
        return fault
    assert attrs.dim is not None
    assert ctx is not None
    return (_replace(shapes[0], attrs.dim, shapes[0][attrs.dim] * ctx.forloop_range),)


def _rescaled_shape(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    out = broadcast(shapes[0], shapes[1])
    if out != shapes[0]:
        return f"expected a factor that broadcasts to {list(shapes[0])}, got {list(shapes[1])}"
    return (shapes[0],)


def _rescaled_last(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    out = _rescaled_shape(attrs, shapes, ctx)
    if isinstance(out, str):
        return out
    if shapes[1][-1:] != (1,):
        return f"expected a factor of last dim 1, got {list(shapes[1])}"
    return _reduce_last(attrs, shapes, ctx)


def _norm(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if (fault := _dim_fault(attrs, shapes[0])) is not None:
        return fault
    for extra in shapes[1:]:
        if broadcast(shapes[0], extra) != shapes[0]:
            return f"expected a weight that broadcasts to {list(shapes[0])}, got {list(extra)}"
    return (shapes[0],)


def _transpose(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    assert attrs.perm is not None
    if sorted(attrs.perm) != list(range(len(shapes[0]))):
        return f"expected a permutation of 0..{len(shapes[0]) - 1}, got {list(attrs.perm)}"
    return (tuple(shapes[0][i] for i in attrs.perm),)


def _reshape(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    assert attrs.shape is not None
    if prod(attrs.shape) != prod(shapes[0]) or any(d < 1 for d in attrs.shape):
        return f"expected {prod(shapes[0])} elements as in {list(shapes[0])}, got {list(attrs.shape)}"
    return (attrs.shape,)


def _concat(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    a, b = shapes
    if (fault := _dim_fault(attrs, a)) is not None:
        return fault
    assert attrs.dim is not None
    if len(a) != len(b) or any(x != y for i, (x, y) in enumerate(zip(a, b, strict=False)) if i != attrs.dim):
        return f"expected shapes that differ only in dim {attrs.dim}, got {list(a)} and {list(b)}"
    return (_replace(a, attrs.dim, a[attrs.dim] + b[attrs.dim]),)


def _repeat(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if (fault := _dim_fault(attrs, shapes[0])) is not None:
        return fault
    assert attrs.dim is not None
    assert attrs.times is not None
    if shapes[0][attrs.dim] != 1 or attrs.times < 1:
        return f"expected a dim of extent 1 and times >= 1, got {list(shapes[0])} and times {attrs.times}"
    return (_replace(shapes[0], attrs.dim, attrs.times),)


def _slice(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if (fault := _dim_fault(attrs, shapes[0])) is not None:
        return fault
    assert attrs.dim is not None
    assert attrs.start is not None
    assert attrs.stop is not None
    if not 0 <= attrs.start < attrs.stop <= shapes[0][attrs.dim]:
        return f"expected 0 <= start < stop <= {shapes[0][attrs.dim]}, got start {attrs.start} and stop {attrs.stop}"
    return (_replace(shapes[0], attrs.dim, attrs.stop - attrs.start),)


def _pad(attrs: Attrs, shapes: tuple[Shape, ...], ctx: BlockContext | None) -> tuple[Shape, ...] | str:
    if (fault := _dim_fault(attrs, shapes[0])) is not None:
        return fault
    assert attrs.dim is not None
    assert attrs.before is not None
    assert attrs.after is not None
    if attrs.before < 0 or attrs.after < 0 or not attrs.before + attrs.after:
        return f"expected one zero or more before or after, got {attrs.before} and {attrs.after}"
    return (_replace(shapes[0], attrs.dim, attrs.before + shapes[0][attrs.dim] + attrs.after),)


_K = frozenset({Level.KERNEL})
_B = frozenset({Level.BLOCK})
_KB = _K | _B
_ALL = _KB | {Level.THREAD}
_DIM = frozenset({"dim"})
_EPS = frozenset({"eps"})
_VALUE = frozenset({"value"})


def _unary(kind: OpKind, lax: Lax) -> OpSpec:
    return OpSpec(kind, 1, 1, Family.FUNCTION, _ALL, _same, lax)


def _pair(kind: OpKind, lax: Lax, *, commutative: bool) -> OpSpec:
    return OpSpec(kind, 2, 2, Family.ARITHMETIC, _ALL, _binary, lax, commutative=commutative)


def _valued(kind: OpKind, family: Family, *, commutative: bool = True) -> OpSpec:
    """Return the row of an operator of two operands that may have a number in place of the second."""
    return OpSpec(kind, 1, 2, family, _ALL, _broadcast, Lax.OPAQUE, optional=_VALUE, commutative=commutative)


def _comparison(kind: OpKind, *, commutative: bool = False) -> OpSpec:
    return _valued(kind, Family.COMPARISON, commutative=commutative)


def _accum(kind: OpKind, rule: ShapeRule, lax: Lax, arity: int = 1, required: frozenset[str] = frozenset()) -> OpSpec:
    return OpSpec(kind, arity, arity, Family.ACCUMULATOR, _B, rule, lax, required=required)


_ROWS: Final = (
    OpSpec(OpKind.MATMUL, 2, 2, Family.PRODUCT, _KB, _matmul, Lax.LINEAR),
    _pair(OpKind.ADD, Lax.LINEAR, commutative=True),
    _pair(OpKind.SUB, Lax.LINEAR, commutative=False),
    _pair(OpKind.MUL, Lax.LINEAR, commutative=True),
    _pair(OpKind.DIV, Lax.DIVISION, commutative=False),
    _unary(OpKind.EXP, Lax.EXPONENTIAL),
    _unary(OpKind.SQRT, Lax.ROOT),
    _unary(OpKind.SQUARE, Lax.LINEAR),
    _unary(OpKind.SILU, Lax.EXPONENTIAL),
    _unary(OpKind.GELU, Lax.OPAQUE),
    _unary(OpKind.RELU, Lax.OPAQUE),
    _unary(OpKind.SIGMOID, Lax.OPAQUE),
    OpSpec(OpKind.SCALE, 1, 1, Family.FUNCTION, _ALL, _same, Lax.LINEAR, required=frozenset({"factor"})),
    OpSpec(OpKind.SUM, 1, 1, Family.REDUCTION, _KB, _reduce, Lax.LINEAR, required=_DIM),
    OpSpec(OpKind.MEAN, 1, 1, Family.REDUCTION, _KB, _reduce, Lax.LINEAR, required=_DIM),
    OpSpec(OpKind.MAX, 1, 1, Family.REDUCTION, _KB, _reduce, Lax.NONE, required=_DIM),
    OpSpec(OpKind.SUM_TO_DIMX, 1, 1, Family.REDUCTION, _B, _to_dimx, Lax.LINEAR, required=_DIM),
    OpSpec(OpKind.SOFTMAX, 1, 1, Family.NORM, _K, _norm, Lax.EXPONENTIAL, required=_DIM),
    OpSpec(OpKind.RMS_NORM, 1, 2, Family.NORM, _KB, _norm, Lax.ROOT, required=_DIM, optional=_EPS),
    OpSpec(OpKind.LAYER_NORM, 1, 3, Family.NORM, _KB, _norm, Lax.ROOT, required=_DIM, optional=_EPS),
    OpSpec(OpKind.TRANSPOSE, 1, 1, Family.MOVE, _K, _transpose, Lax.LINEAR, required=frozenset({"perm"})),
    OpSpec(OpKind.RESHAPE, 1, 1, Family.MOVE, _K, _reshape, Lax.LINEAR, required=frozenset({"shape"})),
    OpSpec(OpKind.CONCAT, 2, 2, Family.MOVE, _KB, _concat, Lax.LINEAR, required=_DIM),
    OpSpec(OpKind.REPEAT, 1, 1, Family.MOVE, _KB, _repeat, Lax.LINEAR, required=frozenset({"dim", "times"})),
    OpSpec(OpKind.CAST, 1, 1, Family.FUNCTION, _ALL, _same, Lax.LINEAR, required=frozenset({"dtype"})),
    OpSpec(OpKind.RUNNING_MAX, 1, 1, Family.REDUCTION, _B, _running_max, Lax.NONE, required=_DIM, outputs=2),
    _accum(OpKind.ACCUM_SUM, _same, Lax.LINEAR),
    _accum(OpKind.ACCUM_SUM_LAST, _reduce_last, Lax.LINEAR),
    _accum(OpKind.ACCUM_MEAN_LAST, _reduce_last, Lax.LINEAR),
    _accum(OpKind.ACCUM_RMS_LAST, _reduce_last, Lax.ROOT),
    _accum(OpKind.ACCUM_SUM_TO_DIMX, _to_dimx, Lax.LINEAR),
    _accum(OpKind.ACCUM_CONCAT, _accum_concat, Lax.LINEAR, required=_DIM),
    _accum(OpKind.ACCUM_MAX, _same, Lax.NONE),
    _accum(OpKind.ACCUM_RESCALED_SUM, _rescaled_shape, Lax.NONE, arity=2),
    _accum(OpKind.ACCUM_RESCALED_SUM_LAST, _rescaled_last, Lax.NONE, arity=2),
    _unary(OpKind.TANH, Lax.OPAQUE),
    _unary(OpKind.ERF, Lax.OPAQUE),
    _unary(OpKind.LOG, Lax.OPAQUE),
    _unary(OpKind.ABS, Lax.ROOT),
    _unary(OpKind.RECIPROCAL, Lax.DIVISION),
    OpSpec(OpKind.SHIFT, 1, 1, Family.FUNCTION, _ALL, _same, Lax.LINEAR, required=frozenset({"shift"})),
    _valued(OpKind.MAXIMUM, Family.ARITHMETIC),
    _valued(OpKind.MINIMUM, Family.ARITHMETIC),
    OpSpec(OpKind.SLICE, 1, 1, Family.MOVE, _K, _slice, Lax.LINEAR, required=frozenset({"dim", "start", "stop"})),
    OpSpec(OpKind.PAD, 1, 1, Family.MOVE, _K, _pad, Lax.LINEAR, required=frozenset({"dim", "before", "after"})),
    OpSpec(OpKind.SELECT, 2, 3, Family.SELECTION, _ALL, _broadcast, Lax.LINEAR, optional=_VALUE),
    _comparison(OpKind.EQ, commutative=True),
    _comparison(OpKind.LT),
    _comparison(OpKind.LE),
    _comparison(OpKind.GT),
    _comparison(OpKind.GE),
    _unary(OpKind.LOGICAL_NOT, Lax.LINEAR),
    _pair(OpKind.DIV_NO_NAN, Lax.DIVISION, commutative=False),
    _unary(OpKind.ROUND_FLOAT16, Lax.OPAQUE),
    _unary(OpKind.ROUND_BFLOAT16, Lax.OPAQUE),
)

SPECS: Final[dict[OpKind, OpSpec]] = {row.kind: row for row in _ROWS}


def _kinds(family: Family) -> frozenset[OpKind]:
    return frozenset(row.kind for row in _ROWS if row.family is family)


#: Elementwise functions of one operand without attributes.
FUNCTIONS: Final = _kinds(Family.FUNCTION) - {OpKind.SCALE, OpKind.SHIFT, OpKind.CAST, OpKind.LOGICAL_NOT}
ARITHMETIC: Final = _kinds(Family.ARITHMETIC)
MOVES: Final = _kinds(Family.MOVE)
COMPARISONS: Final = _kinds(Family.COMPARISON)
#: Elementwise maximum and minimum.
EXTREMES: Final = frozenset({OpKind.MAXIMUM, OpKind.MINIMUM})
#: Operators that may have a number, ``Attrs.value``, in place of their last operand.
VALUED: Final = EXTREMES | COMPARISONS | {OpKind.SELECT}
#: Roundings to the element type that they name, of values that are stored wider.
ROUNDINGS: Final = frozenset({OpKind.ROUND_FLOAT16, OpKind.ROUND_BFLOAT16})
#: Operators besides selections that take boolean masks: conjunction (mul), disjunction (maximum, max) and moves.
TAKES_MASKS: Final = MOVES | {
    OpKind.MUL,
    OpKind.MAXIMUM,
    OpKind.MAX,
    OpKind.EQ,
    OpKind.LOGICAL_NOT,
    OpKind.CAST,
    OpKind.ACCUM_CONCAT,
    OpKind.ACCUM_MAX,
}
#: Operators that the finite-field interpretation replaces by random functions.
OPAQUE: Final = frozenset(row.kind for row in _ROWS if row.lax is Lax.OPAQUE)
#: Opaque operators with a random function of their own; ``a <= b`` is the negation of ``b < a``, and ``>`` and ``>=``
#: exchange the operands.
KEYED: Final = OPAQUE - {OpKind.LE, OpKind.GT, OpKind.GE}
#: Opaque operators on numbers that are 0 at 0, in the finite field as over the reals.
ZERO_AT_ZERO: Final = OPAQUE - COMPARISONS - {OpKind.SIGMOID, OpKind.LOG}

#: Operators whose result takes the place of an operand, so they need no shared memory of their own in the search-time
#: estimate (the reference system counts them the same way).
IN_PLACE: Final = _kinds(Family.FUNCTION) | {OpKind.ACCUM_SUM}

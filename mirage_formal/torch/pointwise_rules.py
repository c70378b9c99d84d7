"""Import rules of elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.types import DType
from mirage_formal.torch.call import (
    LARGEST,
    NARROW_LARGEST,
    TYPES,
    Operand,
    OperatorCall,
    Written,
    constant_tensor,
    is_minus_infinity,
)
from mirage_formal.torch.call import round_number as rounded_number
from mirage_formal.torch.imported_values import ImportedGraph, ImportedValue, unsupported_error
from mirage_formal.torch.index_maps import View

#: Magnitude of x below which 1 + x loses digits of x, so that log(1 + x) is 2 artanh y with y = x / (2 + x).
SERIES: Final = Fraction(1, 4)
#: Logical operators of arithmetic between masks, by the name of the arithmetic operator.
_LOGIC: Final = {"mul": "logical_and", "minimum": "logical_and", "add": "logical_or", "maximum": "logical_or"}
#: Constant folding of arithmetic.
_FOLDED: Final[dict[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


def unary(name: str, *more: object) -> Callable[[OperatorCall], Written]:
    """Return the rule that writes the front end's function of this name."""

    def rule(call: OperatorCall) -> Written:
        return call.map(lambda graph, x: getattr(graph, name)(x, *more), call.value(next(iter(call.given))))

    return rule


def binary(name: str) -> Callable[[OperatorCall], Written]:
    """Return the rule of a function of two operands; one may be a number; ``alpha`` scales the second."""

    def rule(call: OperatorCall) -> Written:
        first, second = call.operand("self"), call.operand("other")
        alpha = call.factor("alpha") if "alpha" in call.given else Fraction(1)
        if not isinstance(first, ImportedValue) and not isinstance(second, ImportedValue):
            if name in _FOLDED and call.dtype is not None and call.dtype.floating:
                return constant_tensor(_FOLDED[name](first, alpha * second), call.shape, call.dtype)
            first = call.value()
        if call.dtype is DType.BOOL:
            return call.shaped(_of_masks(call, name, first, second))
        if name == "mul" and 0 in (first, second):
            raise unsupported_error("expected a factor other than 0: NaN and infinity times 0 are NaN")

        def made(graph: ImportedGraph, a: Any, b: Any) -> Tensor:
            if alpha != 1:
                b = b * alpha if isinstance(b, Fraction) else graph.scale(b, alpha)
            found = getattr(graph, name)(a, b)
            assert isinstance(found, Tensor)
            return found

        steps = alpha != 1 and isinstance(second, ImportedValue)
        return call.shaped((call.wide if steps else call.map)(made, first, second))

    return rule


def _of_masks(call: OperatorCall, name: str, first: Operand, second: Operand) -> ImportedValue:
    if name not in _LOGIC or not isinstance(first, ImportedValue) or not isinstance(second, ImportedValue):
        raise unsupported_error(f"expected numbers, or masks of which two are an operand of {', '.join(_LOGIC)}")
    return call.logic(lambda graph, a, b: getattr(graph, _LOGIC[name])(a, b), first, second)


def rsub(call: OperatorCall) -> Written:
    """Write ``rsub``: the other operand, a number, minus alpha times the tensor."""
    number, alpha = call.number("other"), call.factor("alpha")
    if alpha == 1:
        return call.map(lambda graph, x: graph.sub(number, x), call.value())
    return call.wide(lambda graph, x: graph.sub(number, graph.scale(x, alpha)), call.value())


def div(call: OperatorCall) -> Written:
    """Write ``div`` without a rounding mode."""
    if call.given.get("rounding_mode") is not None:
        raise unsupported_error("expected no rounding_mode: programs have no rounding to whole numbers")
    if call.operand("self") == 0:
        raise unsupported_error("expected a dividend other than 0: 0 by NaN and 0 by 0 are NaN")
    return binary("div")(call)


def power(call: OperatorCall) -> Written:
    """Write ``pow`` with a constant exponent; minus infinity to a fractional power is that power of infinity."""
    exponent = call.number("exponent")
    roots = abs(exponent) == Fraction(1, 2)

    def made(graph: ImportedGraph, x: Tensor) -> Tensor:
        found = graph.pow(x, exponent)
        if exponent.denominator == 1 or (roots and x.dtype is not DType.FLOAT16):
            return found
        return graph.select(graph.lt(x, -LARGEST), graph.neg(x) if exponent > 0 else 0, found)

    simple = roots or abs(exponent) in (0, 1, 2)
    return (call.map if simple else call.wide)(made, call.value())


def gelu(call: OperatorCall) -> Written:
    """Write ``gelu``, exact or with the tanh approximation."""
    form = call.given["approximate"]
    return call.map(lambda graph, x: graph.gelu(x, form), call.value())


def clamp(call: OperatorCall) -> Written:
    """Write ``clamp``; each bound is a number, a tensor or left out."""
    names = ("min_val", "max_val") if "min_val" in call.given else ("min", "max")
    low, high = (
        None if _no_bound(call, name, sign) else call.operand(name) for name, sign in zip(names, (-1, 1), strict=True)
    )
    if low is None and high is None:
        raise unsupported_error("expected a bound that is finite")
    return call.shaped(call.map(lambda graph, x, a, b: graph.clamp(x, a, b), call.value(), low, high))


def _no_bound(call: OperatorCall, name: str, sign: int) -> bool:
    """Return whether a bound is left out, or infinite so that it bounds nothing."""
    given = call.given.get(name)
    return given is None or (isinstance(given, float) and given == sign * float("inf"))


def clamp_to(low: int, high: int) -> Callable[[OperatorCall], Written]:
    """Return the rule that clamps elements to two constants."""
    return lambda call: call.map(lambda graph, x: graph.clamp(x, low, high), call.value())


def leaky_relu(call: OperatorCall) -> Written:
    """Write ``leaky_relu``: x above 0, the slope times x elsewhere."""
    slope = call.factor("negative_slope")
    return call.map(lambda graph, x: graph.select(graph.gt(x, 0), x, graph.scale(x, slope)), call.value())


# --- logarithms and exponentials near 0 -------------------------------------------------------------------------------


def log_one_plus(graph: ImportedGraph, x: Tensor) -> Tensor:
    """Write log(1 + x) with full relative accuracy near 0.

    Below ``SERIES`` it is 2 (y + y^3/3 + y^5/5 + y^7/7), which is off by less than y^8 / 9 of the value, 2e-8, for y is
    at most 1/7: less than float32 rounds.
    """
    y = graph.div(x, graph.shift(x, 2))
    square = graph.square(y)
    found = graph.scale(square, Fraction(2, 7))
    for term in (Fraction(2, 5), Fraction(2, 3)):
        found = graph.mul(graph.shift(found, term), square)
    series = graph.mul(graph.shift(found, 2), y)
    return graph.select(graph.lt(graph.abs(x), SERIES), series, graph.log(graph.shift(x, 1)))


def exp_minus_one(graph: ImportedGraph, x: Tensor) -> Tensor:
    """Write e^x - 1 as tanh(x / 2) (e^x + 1), in which nothing cancels."""
    half = graph.tanh(graph.scale(x, Fraction(1, 2)))
    return graph.mul(half, graph.shift(graph.exp(x), 1))


def log1p(call: OperatorCall) -> Written:
    """Write ``log1p``: log(1 + x)."""
    return call.wide(log_one_plus, call.value())


def expm1(call: OperatorCall) -> Written:
    """Write ``expm1``: e^x - 1."""
    return call.wide(exp_minus_one, call.value())


def softplus(call: OperatorCall) -> Written:
    """Write ``softplus``: log(1 + e^(b x)) / b up to a threshold of b x, x beyond it."""
    beta, threshold = call.factor("beta"), call.number("threshold")

    def made(graph: ImportedGraph, x: Tensor) -> Tensor:
        inner = x if beta == 1 else graph.scale(x, beta)
        found = log_one_plus(graph, graph.exp(inner))
        return graph.select(graph.gt(inner, threshold), x, found if beta == 1 else graph.div(found, beta))

    return call.wide(made, call.value())


def log_of_sigmoid(graph: ImportedGraph, x: Tensor) -> Tensor:
    """Write log(sigmoid(x)) as min(x, 0) - log(1 + e^-|x|)."""
    small = graph.exp(graph.neg(graph.abs(x)))
    return graph.sub(graph.minimum(x, 0), log_one_plus(graph, small))


def log_sigmoid(call: OperatorCall) -> Written:
    """Write ``log_sigmoid``: -log(1 + e^-x)."""
    return call.wide(log_of_sigmoid, call.value())


def mish(call: OperatorCall) -> Written:
    """Write ``mish``: x tanh(log(1 + e^x))."""
    return call.wide(lambda graph, x: graph.mul(x, graph.tanh(log_one_plus(graph, graph.exp(x)))), call.value())


def elu(call: OperatorCall) -> Written:
    """Write ``elu``: s x above 0, s a (e^(c x) - 1) elsewhere."""
    alpha, scale, inner = (call.factor(name) for name in ("alpha", "scale", "input_scale"))
    return call.wide(_elu(scale, alpha * scale, inner), call.value())


def celu(call: OperatorCall) -> Written:
    """Write ``celu``: x above 0, a (e^(x / a) - 1) elsewhere."""
    alpha = call.factor("alpha")
    return call.wide(_elu(Fraction(1), alpha, 1 / alpha), call.value())


def _elu(above: Fraction, below: Fraction, inner: Fraction) -> Callable[[ImportedGraph, Tensor], Tensor]:
    def made(graph: ImportedGraph, x: Tensor) -> Tensor:
        low = _scaled(graph, exp_minus_one(graph, _scaled(graph, x, inner)), below)
        return graph.select(graph.gt(x, 0), _scaled(graph, x, above), low)

    return made


def softshrink(call: OperatorCall) -> Written:
    """Write ``softshrink``: 0 from -c to c, x less c above, x plus c below."""
    bound = call.number("lambd")

    def made(graph: ImportedGraph, x: Tensor) -> Tensor:
        outside = graph.select(graph.gt(x, 0), graph.shift(x, -bound), graph.shift(x, bound))
        inside = graph.logical_and(graph.ge(x, -bound), graph.le(x, bound))
        return graph.select(inside, 0, outside)

    return call.map(made, call.value())


def _scaled(graph: ImportedGraph, x: Tensor, factor: Fraction) -> Tensor:
    return x if factor == 1 else graph.scale(x, factor)


def addcmul(call: OperatorCall) -> Written:
    """Write ``addcmul``: x + c a b."""
    factor = call.factor("value")
    values = [call.value(name) for name in ("self", "tensor1", "tensor2")]
    return call.wide(lambda graph, x, a, b: graph.add(x, graph.mul(_scaled(graph, a, factor), b)), *values)


def addcdiv(call: OperatorCall) -> Written:
    """Write ``addcdiv``: x + c a / b."""
    factor = call.factor("value")
    values = [call.value(name) for name in ("self", "tensor1", "tensor2")]
    return call.wide(lambda graph, x, a, b: graph.add(x, graph.div(_scaled(graph, a, factor), b)), *values)


def lerp(call: OperatorCall) -> Written:
    """Write ``lerp``: x + c (y - x), or the same from y where c is nearer to 1."""
    factor = call.factor("weight")
    if factor == 1:
        raise unsupported_error("expected a weight other than 1: NaN and infinity times 0 are NaN")

    def made(graph: ImportedGraph, x: Tensor, y: Tensor) -> Tensor:
        apart = graph.sub(y, x)
        if abs(factor) < Fraction(1, 2):
            return graph.add(x, graph.scale(apart, factor))
        return graph.sub(y, graph.scale(apart, 1 - factor))

    return call.wide(made, call.value(), call.value("end"))


def hardsigmoid(call: OperatorCall) -> Written:
    """Write ``hardsigmoid``: x / 6 + 1 / 2, clamped to 0..1."""
    return call.wide(_hardsigmoid, call.value())


def hardswish(call: OperatorCall) -> Written:
    """Write ``hardswish``: x hardsigmoid(x)."""
    return call.wide(lambda graph, x: graph.mul(x, _hardsigmoid(graph, x)), call.value())


def _hardsigmoid(graph: ImportedGraph, x: Tensor) -> Tensor:
    return graph.clamp(graph.shift(graph.scale(x, Fraction(1, 6)), Fraction(1, 2)), 0, 1)


def xlogy(call: OperatorCall) -> Written:
    """Write ``xlogy``: x log(y), and 0 where x is 0 and y is a number."""

    def made(graph: ImportedGraph, x: Tensor, y: Tensor) -> Tensor:
        zero = graph.logical_and(graph.eq(x, 0), number_mask(graph, y))
        return graph.select(zero, 0, graph.mul(x, graph.log(y)))

    return call.wide(made, call.value(), call.value("other"))


# --- masks ------------------------------------------------------------------------------------------------------------


def number_mask(graph: ImportedGraph, x: Tensor) -> Tensor:
    """Write the mask of elements that are not NaN: at most 0 or at least 0."""
    return graph.logical_or(graph.le(x, 0), graph.ge(x, 0))


def is_nan(call: OperatorCall) -> Written:
    """Write ``isnan``: the mask of elements that are NaN."""
    return call.logic(lambda graph, x: graph.logical_not(number_mask(graph, x)), call.compared(call.value()))


def is_infinite(*, above: bool, below: bool) -> Callable[[OperatorCall], Written]:
    """Return the rule of the mask of infinite elements, of one sign or both."""

    def made(graph: ImportedGraph, x: Tensor) -> Tensor:
        if above and below:
            return graph.gt(graph.abs(x), LARGEST)
        return graph.gt(x, LARGEST) if above else graph.lt(x, -LARGEST)

    return lambda call: call.logic(made, call.compared(call.value()))


def nan_to_num(call: OperatorCall) -> Written:
    """Write ``nan_to_num``: x, with numbers for NaN and the infinities."""
    value = call.value()
    largest = NARROW_LARGEST.get(value.dtype, LARGEST)
    given = {"nan": Fraction(0), "posinf": largest, "neginf": -largest}
    numbers = {name: given[name] if call.given.get(name) is None else call.number(name) for name in given}

    def made(graph: ImportedGraph, x: Tensor) -> Tensor:
        found = graph.select(number_mask(graph, x), x, numbers["nan"])
        found = graph.select(graph.lt(x, -LARGEST), numbers["neginf"], found)
        return graph.select(graph.gt(x, LARGEST), numbers["posinf"], found)

    return call.map(made, call.compared(value))


#: For each comparison, the equivalent one with exchanged operands.
_TURNED: Final = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def comparison(name: str) -> Callable[[OperatorCall], Written]:
    """Return the rule of a comparison of two tensors, or of a tensor and a number.

    Torch rounds the number to the tensor's type first.
    """

    def rule(call: OperatorCall) -> Written:
        first, second = call.value(), call.given["other"]
        if not isinstance(second, ImportedValue):
            return _with_number(call, name, first, second)
        if second.number is not None and second.dtype.floating and first.number is None:
            return call.shaped(_with_number(call, name, first, float(second.number)))
        if not first.dtype.floating and not second.dtype.floating:
            return _between_masks(call, name, first, second)
        if first.same(second):
            if name in ("eq", "le", "ge"):
                return call.logic(number_mask, call.compared(first))
            if name == "ne":
                return is_nan(call)
        values = call.compared(first), call.compared(second)
        return call.map(lambda graph, a, b: getattr(graph, name)(a, b), *values)

    return rule


def _between_masks(call: OperatorCall, name: str, first: ImportedValue, second: ImportedValue) -> ImportedValue:
    if name not in ("eq", "ne"):
        raise unsupported_error(f"expected numbers, got masks as operands of {name}")
    return call.logic(lambda graph, a, b: getattr(graph, name)(a, b), first, second)


def _with_number(call: OperatorCall, name: str, value: ImportedValue, given: object) -> ImportedValue:
    if not value.dtype.floating:
        number = call.number("other")
        if name not in ("eq", "ne") or number not in (0, 1):
            raise unsupported_error(
                f"expected a mask to be compared with False or True by eq or ne, got {name} of {given!r}"
            )
        same = (name == "eq") == (number == 1)
        return value if same else call.logic(lambda graph, m: graph.logical_not(m), value)
    value = call.compared(value)
    if isinstance(given, float) and abs(given) == float("inf"):
        return _with_infinity(call, name if given > 0 else _TURNED[name], value, negative=given < 0)
    if isinstance(given, float) and given != given:
        raise unsupported_error("expected a number, got nan")
    number = rounded_number(Fraction(given) if isinstance(given, float) else call.number("other"), value.dtype)
    return call.logic(lambda graph, x: getattr(graph, name)(x, number), value)


def _with_infinity(call: OperatorCall, name: str, value: ImportedValue, *, negative: bool) -> ImportedValue:
    """Write a comparison with infinity; that with minus infinity compares -x with infinity, reversed."""

    def made(graph: ImportedGraph, x: Tensor) -> Tensor:
        infinite = graph.lt(x, -LARGEST) if negative else graph.gt(x, LARGEST)
        match name:
            case "eq" | "ge":
                return infinite
            case "ne":
                return graph.logical_not(infinite)
            case "lt":
                return graph.ge(x, -LARGEST) if negative else graph.le(x, LARGEST)
            case "le":
                return number_mask(graph, x)
            case _:
                return graph.lt(x, x)

    return call.logic(made, value)


def mask_logic(name: str) -> Callable[[OperatorCall], Written]:
    """Return the rule of a logical operator on masks; numbers count as 1 where they are nonzero."""

    def rule(call: OperatorCall) -> Written:
        first, second = (call.nonzero(call.value(item)) for item in ("self", "other"))
        return call.logic(lambda graph, a, b: getattr(graph, name)(a, b), first, second)

    return rule


def logical_not(call: OperatorCall) -> Written:
    """Write ``logical_not``: 1 where a mask or a number is 0."""
    value = call.value()
    if value.dtype.floating:
        return call.logic(lambda graph, x: graph.eq(x, 0), call.compared(value))
    return negate_mask(call, value)


def negate_mask(call: OperatorCall, mask: ImportedValue) -> ImportedValue:
    """Write the negation of a mask."""
    return call.logic(lambda graph, m: graph.logical_not(m), mask)


def conjoin_masks(call: OperatorCall, first: ImportedValue, second: ImportedValue) -> ImportedValue:
    """Write the conjunction of two masks."""
    return call.logic(lambda graph, a, b: graph.logical_and(a, b), first, second)


def _keep_where(call: OperatorCall, value: ImportedValue, keep: ImportedValue) -> ImportedValue:
    """Return a value that is minus infinity also where a mask is 0."""
    if value.keep is not None:
        keep = conjoin_masks(call, value.keep, keep)
    if value.shape != call.shape:
        raise unsupported_error(
            f"expected a tensor of shape {list(call.shape)} beside minus infinity, got {list(value.shape)}"
        )
    return ImportedValue(value.base, value.view, keep)


def select_where(call: OperatorCall) -> Written:
    """Write ``select_where``: a selection by a mask; a result with minus infinity may be read by a softmax only."""
    mask, first, second = call.value("condition"), call.given["self"], call.given["other"]
    if is_minus_infinity(second) and isinstance(first, ImportedValue):
        return _keep_where(call, first, mask)
    if is_minus_infinity(first) and isinstance(second, ImportedValue):
        return _keep_where(call, second, negate_mask(call, mask))
    return select_by_mask(call, mask, call.operand("self"), call.operand("other"))


def masked_fill(call: OperatorCall) -> Written:
    """Write ``masked_fill``: a number where a mask is 1; minus infinity may be read by a softmax only."""
    value, mask = call.value(), call.value("mask")
    if is_minus_infinity(call.given["value"]):
        return _keep_where(call, value, negate_mask(call, mask))
    return select_by_mask(call, mask, call.operand("value"), call.operand("self"))


def select_by_mask(
    call: OperatorCall, mask: ImportedValue, first: ImportedValue | Fraction, second: ImportedValue | Fraction
) -> ImportedValue:
    """Write a selection: the first operand where a mask is 1, the second elsewhere."""
    if call.dtype is DType.BOOL:
        raise unsupported_error("expected numbers to choose from, got masks")
    values = [item for item in (first, second) if isinstance(item, ImportedValue)]
    if not values:
        return call.shaped(_number_of(call, mask, first, second))
    wanted = call.target(values)
    first, second = (call.cast(item, wanted) if isinstance(item, ImportedValue) else item for item in (first, second))
    return call.shaped(call.logic(lambda graph, m, a, b: graph.select(m, a, b), mask, first, second))


def _number_of(call: OperatorCall, mask: ImportedValue, first: Any, second: Any) -> ImportedValue:
    """Write a selection between two numbers; a factor of 1 and one of 0 are exact."""
    if call.dtype is None or not call.dtype.floating:
        raise unsupported_error("expected floating-point numbers to choose from")

    def made(graph: ImportedGraph, m: Tensor) -> Tensor:
        if first == 0:
            return _scaled(graph, graph.cast(graph.logical_not(m), call.dtype), second)
        weight = graph.cast(m, call.dtype)
        return _scaled(graph, weight, first) if second == 0 else graph.select(m, _scaled(graph, weight, first), second)

    return call.logic(made, mask)


def constant(number: int | None = None) -> Callable[[OperatorCall], Written]:
    """Return the rule of a tensor filled with one number, which becomes an attribute of its readers."""

    def rule(call: OperatorCall) -> Written:
        if call.dtype is None or not call.dtype.floating:
            raise unsupported_error(f"expected a constant of {', '.join(t for t, d in TYPES.items() if d.floating)}")
        name = "fill_value" if "fill_value" in call.given else "value"
        return constant_tensor(call.number(name) if number is None else Fraction(number), call.shape, call.dtype)

    return rule


def diagonal(call: OperatorCall) -> Written:
    """Write ``diag_embed``: a vector as the main diagonal of a zero matrix."""
    value, offset = call.value(), call.whole("offset")
    rank = len(value.shape) + 1
    if offset or (call.whole("dim1") % rank, call.whole("dim2") % rank) != (rank - 2, rank - 1):
        raise unsupported_error("expected the main diagonal of the last two dims")
    rows = value.shape[-1]
    ones = call.triangle(rows, rows, side="diagonal")
    column = ImportedValue(value.base, View((*value.view.dims, ()), value.view.offset), value.keep)
    return _beside_zeros(call, ones, column)


def triangle(*, lower: bool) -> Callable[[OperatorCall], Written]:
    """Return the rule of ``tril`` or ``triu``: a matrix with zeros on one side of a diagonal."""

    def rule(call: OperatorCall) -> Written:
        value = call.value()
        rows, columns = value.shape[-2:]
        keep = call.triangle(rows, columns, call.whole("diagonal"), side="lower" if lower else "upper")
        return _beside_zeros(call, keep, value)

    return rule


def _beside_zeros(call: OperatorCall, keep: ImportedValue, value: ImportedValue) -> ImportedValue:
    """Write a value where a mask is 1, and zeros elsewhere."""
    if not value.dtype.floating:
        return conjoin_masks(call, keep, value)
    return select_by_mask(call, keep, value if value.number is None else value.number, Fraction(0))


relu6 = clamp_to(0, 6)

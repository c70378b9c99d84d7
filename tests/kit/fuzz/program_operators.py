"""What a random program may do next: each function writes one operator, or says that it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Final

from tests.kit.fuzz.program_writer import LONGEST, Misfit, Writer

_NUMBERS: Final = ("0.5", "2", "-1.5", "0.125", "3", "-0.1", "10")
#: Functions of one element, with further arguments.
_FUNCTIONS: Final = (
    ("relu", ()),
    ("silu", ()),
    ("sigmoid", ()),
    ("tanh", ()),
    ("erf", ()),
    ("gelu", ()),
    ("gelu", ('approximate="tanh"',)),
    ("abs", ()),
    ("neg", ()),
    ("square", ()),
    ("leaky_relu", ("0.1",)),
    ("clamp", ("-0.5", "1")),
)


def function(w: Writer, x: str) -> None:
    name, arguments = w.rng.choice(_FUNCTIONS)
    w.result(w.call(name, x, *arguments), x, positive=name == "sigmoid" and w.largest(x) < 8)


def exponential(w: Writer, x: str) -> None:
    if w.largest(x) > 8:
        raise Misfit
    w.result(w.call("exp", x), x, positive=True)


def of_positive(w: Writer, x: str) -> None:
    name = w.rng.choice(("log", "sqrt", "rsqrt", "reciprocal"))
    w.result(f"graph.{name}({w.above_zero(x)})", x, positive=name != "log")


def power(w: Writer, x: str) -> None:
    if w.rng.random() < 0.6:
        w.result(f"{x} ** {w.rng.choice((2, 3, 4))}", x)
    else:
        w.result(f"{w.above_zero(x)} ** {w.rng.choice((0.5, -0.5, 1.5, -1, -2))}", x)


def with_number(w: Writer, x: str) -> None:
    c = w.rng.choice(_NUMBERS)
    left = c if not c.startswith("-") else f"({c})"
    forms = (f"{x} * {c}", f"{left} * {x}", f"{x} + {c}", f"{left} + {x}", f"{x} - {c}", f"{left} - {x}", f"{x} / {c}")
    w.result(w.rng.choice((*forms, f"-{x}", f"graph.maximum({x}, {c})", f"graph.minimum({x}, {c})")), x)


def arithmetic(w: Writer, x: str) -> None:
    other = w.partner(x)
    a, b = (x, other) if w.rng.random() < 0.7 else (other, x)
    symbol = w.rng.choice("+-*")
    w.result(f"{a} {symbol} {b}", x, other)


def quotient(w: Writer, x: str) -> None:
    if w.rng.random() < 0.2:
        w.result(f"{w.rng.choice(('1', '0.5'))} / {w.above_zero(x)}", x)
    else:
        other = w.partner(x)
        w.result(f"{x} / {w.above_zero(other)}", x, other)


def extremum(w: Writer, x: str) -> None:
    other = w.partner(x)
    w.result(w.call(w.rng.choice(("maximum", "minimum")), x, other), x, other)


def choice(w: Writer, x: str) -> None:
    shape = tuple(1 if w.rng.random() < 0.2 else extent for extent in w.shape(x))
    mask = w.fresh(shape, w.dtypes[x], mask=True)
    other = w.partner(x) if w.rng.random() < 0.6 else w.rng.choice(("0", "-10"))
    w.result(f"graph.where({mask}, {x}, {other})", x, mask, other)


def product(w: Writer, x: str) -> None:
    if w.rank(x) < 2:
        raise Misfit
    *lead, rows, inner = w.shape(x)
    size = w.rng.choice((1, 8, 16, 33, 64, w.rng.randint(1, LONGEST)))
    match w.rng.randrange(5):
        case 0:
            w.result(f"{x} @ {x}.mT", x)
        case 1:
            other = w.fresh((*lead, size, rows), w.dtypes[x])
            w.result(f"{other} @ {x}", x, other)
        case 2:
            other = w.fresh((*lead, size, inner), w.dtypes[x])
            w.result(f"{x} @ {other}.mT", x, other)
        case _:
            other = w.fresh((*lead, inner, size), w.dtypes[x])
            w.result(f"{x} @ {other}" if w.rng.random() < 0.5 else f"graph.matmul({x}, {other})", x, other)


def layer(w: Writer, x: str) -> None:
    if w.rank(x) < 2:
        raise Misfit
    inner, size = w.shape(x)[-1], w.rng.choice((1, 16, 64, w.rng.randint(1, LONGEST)))
    if w.rank(x) == 2 and w.rng.random() < 0.3:
        weight, bias = w.fresh((inner, size), w.dtypes[x]), w.fresh((size,), w.dtypes[x])
        w.result(f"graph.addmm({bias}, {x}, {weight})", x, weight, bias)
        return
    weight = w.fresh((size, inner), w.dtypes[x])
    if w.rng.random() < 0.5:
        w.result(f"graph.linear({x}, {weight})", x, weight)
    else:
        bias = w.fresh((size,), w.dtypes[x])
        w.result(f"graph.linear({x}, {weight}, {bias})", x, weight, bias)


def reduction(w: Writer, x: str) -> None:
    name = w.rng.choice(("sum", "sum", "mean", "max", "min"))
    rank = w.rank(x)
    if rank > 1 and w.rng.random() < 0.2:
        dims = str(tuple(sorted(w.rng.sample(range(rank), 2))))
    else:
        dims = str(w.dim(x))
    kept = ["keepdim=False"] if w.rng.random() < 0.25 and rank > 2 else []
    w.result(w.call(name, x, f"dim={dims}", *kept), x, positive=x in w.positive)


def log_sum(w: Writer, x: str) -> None:
    if w.largest(x) > 50:
        raise Misfit
    w.result(w.call("logsumexp", x, f"dim={w.dim(x)}"), x)


def norm(w: Writer, x: str) -> None:
    dim = w.dim(x)
    name = w.rng.choice(("softmax", "softmax", "log_softmax", "layer_norm", "rms_norm"))
    if name in ("softmax", "log_softmax"):
        if w.largest(x) > 50:
            raise Misfit
        w.result(w.call(name, x, f"dim={dim}"), x, positive=name == "softmax" and w.largest(x) < 8)
        return
    # Of one element a norm is 0 or a sign, and with small deviations its rounding errors are large.
    if w.shape(x)[dim] < 3:
        raise Misfit
    read, arguments = [x], [f"dim={dim}"]
    for what in ("weight", "bias") if name == "layer_norm" else ("weight",):
        if w.rng.random() < 0.5:
            read.append(w.along(x, dim))
            arguments.append(f"{what}={read[-1]}")
    arguments.append(f"eps={w.rng.choice(('1e-5', '1e-6', '0.001'))}")
    # No method of tensors, here as in PyTorch.
    w.result(f"graph.{name}({', '.join((x, *arguments))})", *read)


def transposition(w: Writer, x: str) -> None:
    rank = w.rank(x)
    if rank < 2:
        raise Misfit
    if w.rng.random() < 0.3:
        w.result(f"{x}.mT", x)
    elif w.rng.random() < 0.5:
        a, b = w.rng.sample(range(rank), 2)
        w.result(w.call("transpose", x, str(a), str(b)), x)
    else:
        perm = list(range(rank))
        while perm == sorted(perm):
            w.rng.shuffle(perm)
        w.result(w.call("permute", x, str(tuple(perm))), x)


def reshape(w: Writer, x: str) -> None:
    shape = w.shape(x)
    at = w.rng.randrange(len(shape))
    factors = [f for f in range(2, isqrt(shape[at]) + 1) if shape[at] % f == 0]
    if factors and w.rng.random() < 0.6:
        f = w.rng.choice(factors)
        new = (*shape[:at], shape[at] // f, f, *shape[at + 1 :])
    elif len(shape) > 1 and at + 1 < len(shape):
        new = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    else:
        raise Misfit
    w.result(w.call("reshape", x, str(new)), x, positive=x in w.positive)


def ones(w: Writer, x: str) -> None:
    """Dims of extent 1 put in, taken out, or made longer."""
    single = [d for d, extent in enumerate(w.shape(x)) if extent == 1]
    if not single or w.rng.random() < 0.4:
        w.result(w.call("unsqueeze", x, str(w.rng.randint(0, w.rank(x)))), x)
    elif w.rank(x) > 1 and w.rng.random() < 0.5:
        w.result(w.call("squeeze", x, str(w.rng.choice(single))), x)
    else:
        at, times = w.rng.choice(single), w.rng.randint(2, 40)
        shape = tuple(times if d == at else extent for d, extent in enumerate(w.shape(x)))
        w.result(w.call("expand", x, str(shape)), x)


def copies(w: Writer, x: str) -> None:
    w.result(w.call("repeat_interleave", x, str(w.rng.randint(2, 4)), str(w.dim(x))), x)


def concatenation(w: Writer, x: str) -> None:
    dim = w.dim(x)
    shape = list(w.shape(x))
    parts = [x]
    for _ in range(w.rng.choice((1, 1, 2))):
        shape[dim] = w.rng.randint(1, 64)
        parts.append(w.fresh(tuple(shape), w.dtypes[x]) if w.rng.random() < 0.8 else x)
    w.rng.shuffle(parts)
    w.result(f"graph.concat([{', '.join(parts)}], dim={dim})", *parts)


def part(w: Writer, x: str) -> None:
    dim = w.rng.randrange(w.rank(x))
    extent = w.shape(x)[dim]
    if extent < 2:
        raise Misfit
    start = w.rng.randrange(extent)
    stop = w.rng.randint(start + 1, extent)
    if stop - start == extent:
        raise Misfit
    text = f"{start or ''}:{'' if stop == extent else stop}"
    w.result(f"{x}[{', '.join([':'] * dim + [text])}]", x, positive=x in w.positive)


def parts(w: Writer, x: str) -> None:
    """Halves or thirds; only where few results wait, for there are at most three outputs."""
    dim = w.dim(x)
    extent = w.shape(x)[dim]
    if extent < 3 or len(w.leaves) > 1:
        raise Misfit
    if w.rng.random() < 0.5:
        w.result(w.call("chunk", x, "2", f"dim={dim}"), x)
    else:
        first = w.rng.randint(1, extent - 1)
        w.result(w.call("split", x, str([first, extent - first]), f"dim={dim}"), x)


def padding(w: Writer, x: str) -> None:
    before, after = w.rng.choice(((1, 0), (0, 1), (2, 3), (0, 8), (3, 0)))
    value = w.rng.choice((["value=1"], [], []))
    w.result(w.call("pad", x, str(w.dim(x)), str(before), str(after), *value), x)


def cast(w: Writer, x: str) -> None:
    other = w.rng.choice([d for d in ("float16", "bfloat16", "float32", "float32") if d != w.dtypes[x]])
    w.result(w.call("cast", x, f"mf.{other}"), x, dtype=other)


OPERATORS: Final[tuple[tuple[Callable[[Writer, str], None], float], ...]] = (
    (function, 4),
    (exponential, 1),
    (of_positive, 1.5),
    (power, 1),
    (with_number, 2.5),
    (arithmetic, 4),
    (quotient, 1.5),
    (extremum, 1),
    (choice, 0.5),
    (product, 4),
    (layer, 2),
    (reduction, 3),
    (log_sum, 0.5),
    (norm, 2.5),
    (transposition, 1.5),
    (reshape, 1),
    (ones, 0.8),
    (copies, 0.5),
    (concatenation, 1),
    (part, 1),
    (parts, 0.8),
    (padding, 0.5),
    (cast, 0.4),
)

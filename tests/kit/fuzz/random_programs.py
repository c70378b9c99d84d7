"""Random programs as users write them: the text of a file, and what it computes, with no part of the front end used.

2 to 12 operators, extents from 1 to 300, 1 to 3 outputs. All are programs that have a meaning: logarithms and roots are
of positive numbers, exponentials of numbers that are not large, every result is used, and every input is read. Each
line is run on NumPy arrays when it is written (numpy_graph.py), so that the next may use what is known: shapes, values
and signs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isqrt, prod
from typing import Any, Final

import numpy as np

import mirage_formal as mf
from tests.kit.fuzz.numpy_graph import Array, NumpyGraph, Values

Shape = tuple[int, ...]

#: Extent of a dim.
LONGEST: Final = 300
MOST_OPERATORS: Final = 12
#: A call, a transposition, arithmetic, a slice or a sign.
_OPERATOR: Final = re.compile(r"\.\w+\(|\.mT| (?:[-+*/@]|\*\*) |\w\[|^-")
#: Of one tensor.
MOST_ELEMENTS: Final = 1 << 16
#: Absolute value of an element.
_LARGEST: Final = 1e4


class Misfit(Exception):
    """An operator that cannot be applied here; another one is drawn."""


@dataclass
class Writer:
    """A program that is being written.

    Attributes:
        rng: Draws everything.
        lines: What is written.
        values: Every tensor by name.
        dtypes: Their element types.
        positive: Tensors that are above 0 whatever the inputs are.
        leaves: Results that nothing has read, in order.
        operators: How many operators the lines have.
    """

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    values: dict[str, Values] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    positive: set[str] = field(default_factory=set)
    leaves: list[str] = field(default_factory=list)
    operators: int = 0

    def __post_init__(self) -> None:
        self.graph = NumpyGraph()

    def shape(self, name: str) -> Shape:
        return self.values[name].shape

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def largest(self, name: str) -> float:
        return float(np.abs(self.values[name].array).max())

    def dim(self, name: str) -> int:
        """A dim, also counted from the end."""
        rank = self.rank(name)
        return self.rng.randrange(-rank, rank)

    def is_input(self, name: str) -> bool:
        return not name.startswith("t")

    # --- lines -------------------------------------------------------------------------------------------------

    def fresh(self, shape: Shape, dtype: str, *, mask: bool = False) -> str:
        """A new input."""
        if prod(shape) > MOST_ELEMENTS or max(shape) > LONGEST:
            raise Misfit
        name = f"{'mask' if mask else 'x'}{len(self.arrays)}"
        draws = np.random.default_rng(self.rng.getrandbits(32))
        bits = draws.integers(0, 2, shape).astype(np.float64)
        self.arrays.append(bits if mask else draws.standard_normal(shape))
        line = f'{name} = graph.new_input({shape!r}, mf.{dtype}, name="{name}")'
        self.lines.append(line)
        self.values[name] = Values(self.graph, self.arrays[-1])
        self.dtypes[name] = dtype
        return name

    def result(self, expression: str, *read: str, positive: bool = False, dtype: str = "") -> None:
        """A line whose result is a new tensor, or several."""
        operators = self.operators + len(_OPERATOR.findall(expression))
        if operators > MOST_OPERATORS:
            raise Misfit
        found: Any = eval(expression, {"graph": self.graph, "mf": mf}, dict(self.values))
        parts: list[Values] = found if isinstance(found, list) else [found]
        for part in parts:
            array = part.array
            if array.size > MOST_ELEMENTS or max(array.shape, default=1) > LONGEST or array.ndim > 5:
                raise Misfit
            if not np.isfinite(array).all() or np.abs(array).max() > _LARGEST:
                raise Misfit
        self.operators = operators
        names = [f"t{len(self.values) + i}" for i in range(len(parts))]
        self.lines.append(f"{', '.join(names)} = {expression}")
        for name, part in zip(names, parts, strict=True):
            self.values[name] = part
            self.dtypes[name] = dtype or self.dtypes[read[0]]
            if positive:
                self.positive.add(name)
        self.leaves = [leaf for leaf in self.leaves if leaf not in read] + names

    def call(self, name: str, operand: str, *arguments: str) -> str:
        """A call as a method of the graph or of the tensor."""
        if self.rng.random() < 0.5:
            return f"graph.{name}({', '.join((operand, *arguments))})"
        return f"{operand}.{name}({', '.join(arguments)})"

    # --- operands ----------------------------------------------------------------------------------------------

    def partner(self, name: str) -> str:
        """A tensor that broadcasts with another one: one that is there, or an input."""
        shape = self.shape(name)
        if self.rng.random() < 0.5:
            known = [other for other in self.values if other != name and self._fits(name, other)]
            unread = [other for other in known if other in self.leaves]
            if unread or known:
                return self.rng.choice(unread or known)
        kept = tuple(1 if self.rng.random() < 0.25 else extent for extent in shape)
        dropped = self.rng.randrange(len(kept)) if self.rng.random() < 0.25 else 0
        return self.fresh(kept[dropped:], self.dtypes[name])

    def _fits(self, a: str, b: str) -> bool:
        pairs = zip(reversed(self.shape(a)), reversed(self.shape(b)), strict=False)
        return self.dtypes[a] == self.dtypes[b] and all(x == y or 1 in (x, y) for x, y in pairs)

    def above_zero(self, name: str) -> str:
        """An expression that is positive: the tensor where it is known to be, else one that is made of it."""
        if name in self.positive:
            return name
        forms = [f"(graph.abs({name}) + 0.5)", f"({name} ** 2 + 1)"]
        return self.rng.choice(forms + [f"graph.sigmoid({name})"] * (self.largest(name) < 8))

    def along(self, name: str, dim: int) -> str:
        """A vector along a dim."""
        return self.fresh((self.shape(name)[dim],), self.dtypes[name])

    # --- trying -----------------------------------------------------------------------------------------------

    def attempt(self, write: Callable[[Writer, str], None], name: str) -> None:
        """Let an operator be written; where it does not fit, the inputs that it has made are taken back."""
        lines, arrays, values = len(self.lines), len(self.arrays), dict(self.values)
        try:
            write(self, name)
        except Misfit:
            del self.lines[lines:], self.arrays[arrays:]
            self.values = values


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


_USUAL: Final = (16, 32, 48, 64, 96, 128, 256)
_ODD: Final = (77, 100, 127, 129, 197, 255, 257, 300)


@dataclass(frozen=True, slots=True)
class Written:
    """A program.

    Attributes:
        text: Its file.
        inputs: Numbers for its inputs, in order.
        outputs: What it computes from them, in float64.
    """

    text: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


def extent(rng: random.Random) -> int:
    """From 1 to 300; small ones, odd ones and multiples of 16 more often than by chance."""
    choice = rng.random()
    if choice < 0.25:
        return rng.randint(1, 8)
    if choice < 0.6:
        return rng.randint(1, LONGEST)
    return rng.choice(_USUAL if choice < 0.85 else _ODD)


def first_shape(rng: random.Random) -> Shape:
    """Of the first input."""
    while True:
        shape = tuple(extent(rng) for _ in range(rng.choice((1, 2, 2, 2, 2, 3, 3, 4))))
        if prod(shape) <= MOST_ELEMENTS:
            return shape


def program(seed: int) -> Written:
    """The program of a seed."""
    rng = random.Random(seed)
    while True:
        dtype = rng.choice(("float16",) * 6 + ("bfloat16",) * 2)
        writer = Writer(rng)
        with np.errstate(all="ignore"):
            writer.fresh(first_shape(rng), dtype)
            _grow(writer, rng.randint(2, MOST_OPERATORS))
        if (found := _finished(writer)) is not None:
            return found


def _grow(writer: Writer, count: int) -> None:
    rng = writer.rng
    makers, weights = zip(*OPERATORS, strict=True)
    while writer.operators < count:
        # Mostly what was made last; three outputs are all that may stay unread.
        waiting = writer.leaves or list(writer.values)
        name = waiting[-1] if rng.random() < 0.7 else rng.choice(waiting if len(waiting) > 2 else list(writer.values))
        writer.attempt(rng.choices(makers, weights)[0], name)


def _finished(writer: Writer) -> Written | None:
    """The program, if it has 1 to 3 outputs and reads every input."""
    rng = writer.rng
    outputs = list(writer.leaves)
    inner = [name for name in writer.values if not writer.is_input(name) and name not in outputs]
    if inner and len(outputs) < 3 and rng.random() < 0.15:
        outputs.append(rng.choice(inner))
    if not 1 <= len(outputs) <= 3:
        return None
    lines = [*writer.lines, *(f"graph.mark_output({name})" for name in outputs)]
    text = "\n".join(("import mirage_formal as mf", "", "graph = mf.new_kernel_graph()", *lines, ""))
    return Written(text, tuple(writer.arrays), tuple(writer.values[name].array for name in outputs))

"""Random tensor programs, each paired with what random rewrites make of it: right ones, and wrong ones.

Programs are terms in one table (``Terms``), so that a rewrite of one operator is a few appended rows. The rules stand
in ``right_rewrites`` and ``wrong_rewrites``; whether a wrong one changes what is computed, float64 decides
(``graphs.mutants``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.graph.graph import BlockGraph, GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import EXTREMES, NO_ATTRS, SPECS, Attrs, OpKind
from mirage_formal.graph.type_rules import result_dtype
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals
from tests.kit.graphs.function_values import VALUES

if TYPE_CHECKING:
    from tests.kit.fuzz.right_rewrites import Rule

K = OpKind
EXTENTS: Final = (2, 3, 4, 6)
UNARY: Final = (*VALUES, K.SCALE, K.SHIFT)
REDUCTIONS: Final = (K.SUM, K.MEAN, K.MAX, K.RMS_NORM, K.LAYER_NORM, K.SOFTMAX)
BINARY: Final = (K.ADD, K.SUB, K.MUL, K.DIV, K.MAXIMUM, K.MINIMUM, K.DIV_NO_NAN)
COMPARED: Final = (K.EQ, K.LT, K.LE, K.GT, K.GE)
LAYOUT: Final = (K.TRANSPOSE, K.RESHAPE, K.CONCAT)
GROWTH: Final = frozenset({K.EXP, K.SQUARE, K.MATMUL})


class Sign(Enum):
    """What is known about the sign of all elements."""

    ANY = 0
    NONNEGATIVE = 1
    POSITIVE = 2


@dataclass(frozen=True, slots=True)
class Row:
    """An operator, or a kernel that a block graph defines, or an input if it has no operands."""

    kind: OpKind | None
    operands: tuple[int, ...]
    attrs: Attrs
    block: BlockGraph | None = None


class Mismatch(Exception):
    """Shapes do not fit: the rule or the random choice does not apply."""


class Terms:
    """A growing table of terms over fixed inputs; equal terms have one number, operands have smaller ones."""

    def __init__(self, inputs: Sequence[Shape], masks: Sequence[int] = ()) -> None:
        self.inputs = len(inputs)
        self.rows: list[Row] = [Row(None, (), NO_ATTRS)] * len(inputs)
        self.shapes: list[Shape] = list(inputs)
        self.masks: list[bool] = [number in masks for number in range(len(inputs))]
        self.signs: list[Sign] = [Sign.ANY] * len(inputs)
        #: How often values may have grown on the way: programs stay below a bound.
        self.growth: list[int] = [0] * len(inputs)
        self._known: dict[tuple[OpKind, tuple[int, ...], Attrs], int] = {}

    def op(self, kind: OpKind, *operands: int, **attrs: Any) -> int:
        """The number of an operator applied to terms.

        Raises:
            Mismatch: The shapes do not fit.
        """
        return self.made(kind, operands, Attrs(**attrs) if attrs else NO_ATTRS)

    def kind(self, number: int) -> OpKind:
        """The operator of a term that is one."""
        kind = self.rows[number].kind
        assert kind is not None
        return kind

    def dim(self, number: int) -> int:
        """The dim of a term whose operator has one."""
        dim = self.rows[number].attrs.dim
        assert dim is not None
        return dim

    def factor(self, number: int) -> Fraction:
        """The factor of a scaled term."""
        factor = self.rows[number].attrs.factor
        assert factor is not None
        return factor

    def shift(self, number: int) -> Fraction:
        """The summand of a shifted term."""
        shift = self.rows[number].attrs.shift
        assert shift is not None
        return shift

    def made(self, kind: OpKind, operands: tuple[int, ...], attrs: Attrs) -> int:
        """The same with attributes at hand."""
        key = (kind, operands, attrs)
        found = self._known.get(key)
        if found is not None:
            return found
        shapes = SPECS[kind].shape(attrs, tuple(self.shapes[i] for i in operands), None)
        if isinstance(shapes, str):
            raise Mismatch(shapes)
        dtype = result_dtype(kind, attrs, tuple(DType.BOOL if self.masks[i] else DType.FLOAT32 for i in operands))
        if not isinstance(dtype, DType):
            raise Mismatch(dtype)
        self._known[key] = len(self.rows)
        row, sign = Row(kind, operands, attrs), _sign(kind, attrs, [self.signs[i] for i in operands])
        return self._append(row, shapes[0], sign, mask=not dtype.floating)

    def kernel(self, block: BlockGraph, operands: tuple[int, ...], like: int) -> int:
        """A graph-defined kernel whose one result has the shape and sign of the term ``like``; no masks."""
        if any(self.masks[i] for i in (*operands, like)):
            raise Mismatch("a mask")
        return self._append(Row(None, operands, NO_ATTRS, block), self.shapes[like], self.signs[like], mask=False)

    def _append(self, row: Row, shape: Shape, sign: Sign, *, mask: bool) -> int:
        self.rows.append(row)
        self.masks.append(mask)
        self.shapes.append(shape)
        self.signs.append(sign)
        grown = max((self.growth[i] for i in row.operands), default=0)
        self.growth.append(grown + (2 if row.kind is K.EXP else row.kind in GROWTH))
        return len(self.rows) - 1

    def one(self, a: int) -> int:
        """Ones in the shape of a term."""
        return self.op(K.EXP, self.op(K.SCALE, a, factor=Fraction(0)))

    def reachable(self, root: int) -> list[int]:
        """The terms that a term is made of, inputs left out, operands first."""
        seen, stack = set(), [root]
        while stack:
            number = stack.pop()
            if number >= self.inputs and number not in seen:
                seen.add(number)
                stack.extend(self.rows[number].operands)
        return sorted(seen)

    def replaced(self, root: int, old: int, new: int) -> int:
        """``root`` with every occurrence of ``old`` replaced by ``new``, which has the same shape."""
        if (self.shapes[old], self.masks[old]) != (self.shapes[new], self.masks[new]):
            raise Mismatch("another shape, or no mask")
        moved = {old: new}
        for number in self.reachable(root):
            row = self.rows[number]
            if number == old or not any(i in moved for i in row.operands):
                continue
            operands = tuple(moved.get(i, i) for i in row.operands)
            if row.block is not None:
                moved[number] = self.kernel(row.block, operands, number)
            else:
                assert row.kind is not None
                moved[number] = self.made(row.kind, operands, row.attrs)
        return moved.get(root, root)

    def graph(self, root: int) -> KernelGraph:
        """The term as a program over all inputs."""
        number = {i: i for i in range(self.inputs)}
        ops: list[Op | GraphDefined] = []
        for i in self.reachable(root):
            row = self.rows[i]
            operands = tuple(number[j] for j in row.operands)
            if row.block is not None:
                ops.append(GraphDefined(operands, row.block))
            else:
                assert row.kind is not None
                ops.append(Op(row.kind, operands, row.attrs))
            number[i] = len(number)
        inputs = tuple(
            Input(f"t{i}", DTensor(shape, DType.BOOL if self.masks[i] else DType.FLOAT32), row_major(shape))
            for i, shape in enumerate(self.shapes[: self.inputs])
        )
        return KernelGraph(inputs, tuple(ops), (number[root],))


def _sign(kind: OpKind, attrs: Attrs, signs: list[Sign]) -> Sign:
    least = min(signs, key=lambda sign: sign.value)
    match kind:
        case K.EXP | K.SIGMOID | K.SOFTMAX:
            return Sign.POSITIVE
        case K.SQUARE | K.RELU | K.ABS:
            return Sign.POSITIVE if least is Sign.POSITIVE else Sign.NONNEGATIVE
        case K.ADD | K.MUL | K.DIV | K.MATMUL | K.CONCAT | K.SQRT | K.SUM | K.MEAN | K.MAX | K.TRANSPOSE | K.RESHAPE:
            return least
        case K.MINIMUM if attrs.value is not None and attrs.value <= 0:
            return Sign.ANY
        case K.REPEAT | K.MAXIMUM | K.MINIMUM:
            return least
        case K.RECIPROCAL:
            return least if least is Sign.POSITIVE else Sign.ANY
        case K.SCALE if attrs.factor is not None and attrs.factor > 0:
            return least
        case K.EQ | K.LT | K.LE | K.GT | K.GE | K.LOGICAL_NOT:
            return Sign.NONNEGATIVE
        case K.ROUND_FLOAT16 | K.ROUND_BFLOAT16 | K.DIV_NO_NAN if least is not Sign.ANY:
            return Sign.NONNEGATIVE
        case K.SELECT:
            value = attrs.value
            chosen = [*signs[1:], *([] if value is None else [_sign_of(value)])]
            return min(chosen, key=lambda sign: sign.value)
        case K.CAST:
            return least
    return Sign.ANY


def _sign_of(value: Fraction) -> Sign:
    return Sign.POSITIVE if value > 0 else Sign.NONNEGATIVE if value == 0 else Sign.ANY


class Truth(Enum):
    """Whether a pair was made by right rewrites only, or with a wrong one (which may change nothing all the same)."""

    RIGHT = "right"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class FuzzPair:
    """A program and what the named rewrites made of it."""

    name: str
    program: KernelGraph
    candidate: KernelGraph
    truth: Truth


def pairs(seed: int, count: int) -> Iterator[FuzzPair]:
    """``count`` pairs, about half of them with a wrong rewrite; they depend on the seed and the count alone."""
    # The rules are written in terms of the table above.
    from tests.kit.fuzz.wrong_rewrites import RIGHT, WRONG

    rng = random.Random(seed)
    made = 0
    while made < count:
        terms, root = random_program(rng)
        if root < terms.inputs:
            continue
        wanted = Truth.RIGHT if rng.random() < 0.5 else Truth.WRONG
        names: list[str] = []
        changed = root
        for rules in [RIGHT] * rng.randint(1 if wanted is Truth.RIGHT else 0, 3) + [WRONG] * (wanted is Truth.WRONG):
            name, changed = _rewritten(terms, changed, rules, rng)
            if name:
                names.append(name)
        if changed == root or changed < terms.inputs or (wanted is Truth.WRONG and not name):
            continue
        left, right = terms.graph(root), terms.graph(changed)
        if left == right:
            continue
        if rng.random() < 0.2:
            left, right = right, left
        made += 1
        yield FuzzPair(" + ".join(names), left, right, wanted)


def _rewritten(
    terms: Terms, root: int, rules: Mapping[OpKind | None, list[Rule]], rng: random.Random
) -> tuple[str, int]:
    """The name of a rule that applied and the term it gave; an empty name if none did."""
    places = terms.reachable(root)
    for attempt in range(20 if places else 0):
        place = rng.choice(places)
        row = terms.rows[place]
        # Rules of one operator come first: those of all terms apply everywhere and would crowd them out.
        general = row.block is not None or rng.random() < (0.1 if attempt < 12 else 0.6)
        fitting = rules.get(None if general else row.kind, ())
        if not fitting:
            continue
        rule = rng.choice(fitting)
        try:
            new = rule(terms, place, rng)
            if new is None or new == place:
                continue
            return rule.__name__, terms.replaced(root, place, new)
        except Mismatch:
            continue
    return "", root


def random_program(rng: random.Random) -> tuple[Terms, int]:
    """Terms with a random program in them, and its root."""
    a, b = rng.choice(EXTENTS), rng.choice(EXTENTS)
    shapes = [(a, b), rng.choice(((a, b), (b, a), (b, b), (a, a))), rng.choice(((a, b), (b, a), (a, 1), (1, b)))]
    shapes = shapes[: rng.choice((2, 3, 3))]
    terms = Terms([*shapes, shapes[0]], [len(shapes)]) if rng.random() < 0.3 else Terms(shapes)
    last = rng.randrange(len(shapes))
    wanted = rng.randint(2, 7)
    steps = 0
    for _ in range(60):
        try:
            found = _grown(terms, last, rng)
        except Mismatch:
            continue
        if found is None or found == last:
            continue
        if terms.masks[found]:
            found = _read(terms, found, last, rng)
        last, steps = found, steps + 1
        if steps == wanted:
            break
    return terms, last


def _grown(terms: Terms, last: int, rng: random.Random) -> int | None:
    """One more operator on the last term, alone or with an earlier one."""
    choice = rng.random()
    shape = terms.shapes[last]
    if choice < 0.08:
        return _mask(terms, last, rng)
    if choice < 0.2:
        return _idiom(terms, last, rng)
    if choice < 0.38:
        return _unary(terms, last, rng)
    if choice < 0.56:
        kind = rng.choice(REDUCTIONS)
        dim = rng.randrange(len(shape))
        if shape[dim] == 1:
            return None
        eps = _eighths(rng) if kind in (K.RMS_NORM, K.LAYER_NORM) and rng.random() < 0.4 else None
        return terms.op(kind, last, dim=dim, eps=eps)
    if choice < 0.66:
        return _layout(terms, last, rng)
    other = rng.randrange(len(terms.rows))
    if choice < 0.82:
        kind = rng.choice(BINARY)
        if kind in EXTREMES and rng.random() < 0.5:
            return terms.op(kind, last, value=_eighths(rng) * rng.choice((0, 1, -1, 4)))
        pair = (last, other) if rng.random() < 0.5 else (other, last)
        if kind is K.DIV and terms.signs[pair[1]] is not Sign.POSITIVE:
            return None
        return terms.op(kind, *pair)
    if max(terms.growth[last], terms.growth[other]) > 3:
        return None
    return terms.op(K.MATMUL, last, other) if rng.random() < 0.5 else terms.op(K.MATMUL, other, last)


def _mask(terms: Terms, last: int, rng: random.Random) -> int | None:
    """A comparison with another term or a number, or one more operator on masks."""
    masks = [i for i, mask in enumerate(terms.masks) if mask]
    if masks and rng.random() < 0.3:
        mask = rng.choice(masks)
        if rng.random() < 0.4:
            return terms.op(K.LOGICAL_NOT, mask)
        both = terms.op(rng.choice((K.MUL, K.MAXIMUM, K.EQ)), mask, rng.choice(masks))
        return terms.op(K.LOGICAL_NOT, both) if rng.random() < 0.4 else both
    if masks and rng.random() < 0.5:
        return rng.choice(masks)
    kind = rng.choice(COMPARED)
    if rng.random() < 0.4:
        return terms.op(kind, last, value=_eighths(rng) * rng.choice((0, 1, -1, 4)))
    return terms.op(kind, last, rng.randrange(len(terms.rows)))


def _read(terms: Terms, mask: int, last: int, rng: random.Random) -> int:
    """A term that reads a mask: a selection, also between values of which one does not exist everywhere."""
    shape = terms.shapes[last]
    others = [i for i, s in enumerate(terms.shapes) if s == shape and not terms.masks[i]]
    if not others:
        return last
    other = rng.choice(others)
    try:
        match rng.randrange(6):
            case 0:
                return terms.op(K.CAST, mask, dtype=DType.FLOAT32)
            case 1:
                return terms.op(K.SELECT, mask, last, value=_eighths(rng) * rng.choice((0, 0, 1, -4)))
            case 2:
                return terms.op(K.SELECT, terms.op(K.GT, last, value=Fraction(0)), terms.op(K.LOG, last), other)
            case 3:
                divided = terms.op(K.DIV, last, other)
                return terms.op(K.SELECT, terms.op(K.EQ, other, value=Fraction(0)), last, divided)
            case 4:
                kept = terms.op(K.SELECT, mask, terms.op(K.EXP, terms.op(K.TANH, last)), value=Fraction(0))
                return terms.op(K.DIV_NO_NAN, kept, terms.op(K.SUM, kept, dim=len(shape) - 1))
        return terms.op(K.SELECT, mask, last, other)
    except Mismatch:
        return last


def _idiom(terms: Terms, last: int, rng: random.Random) -> int | None:
    """Two operators that laws connect and that chance seldom puts together."""
    others = [i for i, s in enumerate(terms.shapes) if s == terms.shapes[last] and not terms.masks[i]]
    if not others:
        return None
    other, dim = rng.choice(others), rng.randrange(len(terms.shapes[last]))
    calm = terms.growth[last] <= 1 and terms.growth[other] <= 1
    match rng.randrange(12):
        case 0 if calm:
            return terms.op(K.EXP, terms.op(rng.choice((K.ADD, K.SUB)), last, other))
        case 1:
            return terms.op(K.SUM, terms.op(K.MUL, last, other), dim=dim)
        case 2:
            weight = terms.op(K.MEAN, other, dim=dim)
            return terms.op(K.SUM, terms.op(K.MUL, last, weight), dim=dim)
        case 3 if calm:
            return terms.op(K.MUL, terms.op(K.EXP, last), terms.op(K.EXP, other))
        case 4:
            positive = [terms.op(kind, i) for kind, i in ((K.SIGMOID, last), (K.SQUARE, other))]
            return terms.op(K.SQRT, terms.op(rng.choice((K.ADD, K.MUL)), *positive))
        case 5 if calm:
            return terms.op(K.EXP, terms.op(rng.choice((K.SUM, K.MEAN)), last, dim=dim))
        case 6 if calm:
            mixed = terms.op(K.MATMUL, last, rng.randrange(len(terms.rows)))
            return terms.op(K.DIV, mixed, terms.op(K.SUM, terms.op(K.SIGMOID, last), dim=len(terms.shapes[last]) - 1))
        case 7 if calm:
            second = rng.randrange(len(terms.rows))
            return terms.op(K.ADD, terms.op(K.MATMUL, last, second), terms.op(K.MATMUL, other, second))
        case 8:
            return terms.op(K.SQRT, terms.op(K.SQUARE, last))
        case 9:
            return terms.op(K.DIV, terms.op(K.DIV, last, terms.op(K.SIGMOID, other)), terms.op(K.SIGMOID, last))
        case 10:
            return terms.op(K.SQUARE, terms.op(K.ADD, last, other))
        case 11:
            return terms.op(K.DIV, terms.op(K.SUB, last, other), terms.op(K.SUM, terms.op(K.SIGMOID, last), dim=dim))
    return None


def _eighths(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(1, 3), 8)


def _unary(terms: Terms, last: int, rng: random.Random) -> int | None:
    kind = rng.choice(UNARY)
    domain = FUNCTION_SPECS[kind].domain if kind in FUNCTION_SPECS else Reals.ALL
    if domain is Reals.NONNEGATIVE and terms.signs[last] is Sign.ANY:
        return None
    if domain in (Reals.POSITIVE, Reals.NONZERO) and terms.signs[last] is not Sign.POSITIVE:
        return None
    if kind in GROWTH and terms.growth[last] > (1 if kind is K.EXP else 3):
        return None
    if kind is K.SCALE:
        return terms.op(kind, last, factor=_eighths(rng) * rng.choice((1, -1, 4)))
    if kind is K.SHIFT:
        return terms.op(kind, last, shift=_eighths(rng) * rng.choice((1, -1, 4)))
    return terms.op(kind, last)


def _layout(terms: Terms, last: int, rng: random.Random) -> int | None:
    shape = terms.shapes[last]
    kind = rng.choice(LAYOUT)
    if kind is K.TRANSPOSE:
        perm = list(range(len(shape)))
        rng.shuffle(perm)
        return terms.op(kind, last, perm=tuple(perm))
    if kind is K.CONCAT:
        other = rng.randrange(len(terms.rows))
        return terms.op(kind, last, other, dim=rng.randrange(len(shape)))
    if len(shape) == 3:
        return terms.op(kind, last, shape=(shape[0] * shape[1], shape[2]))
    whole = shape[0] * shape[1]
    cut = rng.choice([n for n in (2, 3, 4, 6) if whole % n == 0] or [1])
    return terms.op(kind, last, shape=rng.choice(((whole // cut, cut), (cut, whole // cut))))

"""Random edits of proofs (docs/proof.md), and the normal form that tells which of them changed what a proof says.

An edit knows what stands where: a digit is replaced by other digits, an exponent by other exponents.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from mirage_formal.check.proof.operator_terms import UNARY, UNINTERPRETED
from mirage_formal.check.proof.ring import INCREASING

Proof = dict[str, Any]
Path = tuple[str | int, ...]


class Role(Enum):
    """What a place in a proof holds."""

    ENTRY = "entry of a table"
    LIST = "list"
    EXTENT = "extent"
    DIGIT = "digit"
    FACTOR = "factor"
    EXPONENT = "exponent"
    COEFFICIENT = "coefficient"
    STRIDE = "stride"
    OFFSET = "offset"
    STEP = "step"
    NUMBER = "axis, size or input"
    WORD = "name"


@dataclass(frozen=True)
class Row:
    """A list: what its first items hold, and what the others hold in turn."""

    heads: tuple[Any, ...]
    others: tuple[Any, ...] = ()

    def at(self, i: int) -> Any:
        """What item ``i`` holds."""
        return self.heads[i] if i < len(self.heads) else self.others[(i - len(self.heads)) % len(self.others)]


R = Role
INDEX = Row((R.OFFSET,), (R.STRIDE, R.DIGIT))
MONO = Row((), (R.FACTOR, R.EXPONENT))
POLY = Row((), (Row((R.COEFFICIENT,), (R.FACTOR, R.EXPONENT)),))
DIGITS = Row((), (R.DIGIT,))
CHAINS = Row((), (DIGITS,))
OPENS = Row((), (Row((R.FACTOR,), (R.DIGIT,)),))
PARTS = Row((), (Row((R.FACTOR, CHAINS)),))
NUMBERS = Row((), (R.NUMBER,))
FACTORS = {
    "in": (R.NUMBER, Row((), (INDEX,))), "sum": (DIGITS, MONO), "max": (DIGITS, POLY), "exp": (POLY,), "pow": (POLY,),
    "pmax": (INDEX, R.DIGIT, DIGITS, POLY), "carry": (INDEX, R.DIGIT, DIGITS, POLY), "surd": (R.NUMBER,),
    "top": (Row((), (POLY,)),), "fn": (R.WORD, POLY),
    "keep": (POLY, POLY),
}  # fmt: skip
LEMMAS = {
    "sum": (DIGITS, MONO, OPENS, PARTS), "max": (DIGITS, POLY, OPENS, R.FACTOR, CHAINS),
    "pmax": (INDEX, R.DIGIT, DIGITS, POLY, R.FACTOR, CHAINS), "content": (POLY, R.EXPONENT, MONO, R.COEFFICIENT, POLY),
    "largest": (DIGITS, Row((), (POLY,)), POLY, POLY, R.WORD, POLY), "square": (POLY, POLY),
}  # fmt: skip
STEPS = {
    "input": (R.NUMBER, CHAINS), "split": (R.STEP, R.DIGIT, R.DIGIT, R.DIGIT), "fold": (R.STEP, CHAINS),
    "rename": (R.STEP, CHAINS), "unary": (R.WORD, R.STEP), "binary": (R.WORD, R.STEP, R.STEP),
    "matmul": (R.STEP, R.STEP), "rescaled": (R.STEP, R.STEP), "scale": (R.STEP, R.COEFFICIENT),
    "offset": (R.STEP, R.COEFFICIENT), "sum": (R.STEP, R.NUMBER, R.NUMBER), "max": (R.STEP, R.NUMBER),
    "running_max": (R.STEP, R.NUMBER, R.DIGIT), "carry": (R.STEP, R.NUMBER, R.DIGIT),
    "repeat": (R.STEP, R.NUMBER, R.DIGIT),
    "slice": (R.STEP, R.NUMBER, R.OFFSET, DIGITS, Row((), (Row((R.DIGIT, INDEX)),))), "reshape": (R.STEP, NUMBERS),
    "transpose": (R.STEP, NUMBERS), "rewrite": (R.STEP, POLY, MONO, Row((), (R.FACTOR,))),
}  # fmt: skip
TABLES: dict[str, dict[str, tuple[Any, ...]]] = {"factors": FACTORS, "lemmas": LEMMAS, "steps": STEPS}
WORDS = (
    UNARY,
    ("add", "sub", "mul", "div", "max", "select", "eq", "lt", "le", "div_no_nan"),
    (*UNINTERPRETED, "zero", "negative", "inv0"), ("top", "keep"),
    ("pmax", "carry"), ("running_max", "carry"), ("sum", "max"), ("scale", "offset"), ("matmul", "rescaled"),
    ("exp", "pow"), INCREASING, ("fold", "rename"), ("reshape", "transpose"),
)  # fmt: skip


def places(proof: Proof) -> Iterator[tuple[Role, Path]]:
    """All places of a proof, with what they hold."""
    yield from ((R.EXTENT, ("digits", number)) for number in range(len(proof["digits"])))
    yield from ((R.NUMBER, ("bases", number)) for number in range(len(proof["bases"])))
    for number in range(len(proof["atoms"])):
        yield R.ENTRY, ("atoms", number)
        yield from ((R.NUMBER, ("atoms", number, at)) for at in range(len(proof["atoms"][number])))
    for table in ("factors", "lemmas", "steps", "outputs"):
        for number, raw in enumerate(proof[table]):
            yield R.ENTRY, (table, number)
            row = Row((R.STEP, R.STEP, MONO)) if table == "outputs" else Row((R.WORD, *TABLES[table][raw[0]]))
            yield from _inside(raw, row, (table, number))


def _inside(raw: Any, held: Row | Role, path: Path) -> Iterator[tuple[Role, Path]]:
    if isinstance(held, Role):
        yield held, path
    elif isinstance(raw, list):
        if len(raw) > 1:
            yield R.LIST, path
        for i, item in enumerate(raw):
            yield from _inside(item, held.at(i), (*path, i))


def look(proof: Proof, path: Path) -> Any:
    """What stands at a place."""
    found: Any = proof
    for key in path:
        found = found[key]
    return found


def edited(proof: Proof, rng: random.Random) -> tuple[str, Proof]:
    """A proof with one random edit, and what was done; of a proof in two halves, one of these is edited."""
    if isinstance(proof, list):
        at = rng.choice((1, 2))
        label, half = edited(json.loads(proof[at]), rng)
        return label, [*proof[:at], json.dumps(half), *proof[at + 1 :]]
    every: dict[Role, list[Path]] = {}
    for role, path in places(proof):
        every.setdefault(role, []).append(path)
    while True:
        role = rng.choice(list(every))
        found = copy.deepcopy(proof)
        path = rng.choice(every[role])
        last: Any = path[-1]
        holder, old = look(found, path[:-1]), look(found, path)
        if role is R.ENTRY:
            label = _entry(holder, last, rng)
        elif role is R.LIST:
            label = _list(old, rng)
        else:
            label, holder[last] = role.value, _other(found, role, old, rng)
        if found != proof:
            return f"{path[0]}: {label}", found


def _entry(table: list[Any], at: int, rng: random.Random) -> str:
    """An entry of a table dropped, doubled, moved, or with another in its place."""
    label = rng.choice(("dropped", "doubled", "moved", "replaced"))
    match label:
        case "dropped":
            del table[at]
        case "doubled":
            table.insert(rng.randrange(len(table) + 1), copy.deepcopy(table[at]))
        case "moved":
            table.insert(rng.randrange(len(table)), table.pop(at))
        case _:
            table[at] = copy.deepcopy(rng.choice(table))
    return f"entry {label}"


def _list(items: list[Any], rng: random.Random) -> str:
    """Items of a list, such as sides and operands, dropped, doubled, swapped, or all reversed."""
    label = rng.choice(("dropped", "doubled", "swapped", "swapped", "swapped", "reversed"))
    i, j = rng.randrange(len(items)), rng.randrange(len(items))
    match label:
        case "dropped":
            del items[i]
        case "doubled":
            items.insert(j, copy.deepcopy(items[i]))
        case "swapped":
            items[i], items[j] = items[j], items[i]
        case _:
            items.reverse()
    return f"item {label}"


def _other(proof: Proof, role: Role, old: Any, rng: random.Random) -> Any:
    """Something else of the same role, or out of its range.

    An edit before this one may have put something of another kind there: then a number takes its place.
    """
    sizes = {R.DIGIT: "digits", R.FACTOR: "factors", R.STEP: "steps"}
    if role in sizes:
        table = proof[sizes[role]]
        alike = [n for n, raw in enumerate(table) if _kind(raw) == _kind(table[old])]
        return rng.choice((rng.choice(alike), rng.choice(alike), rng.randrange(len(table)), old + 1, old - 1, -1 - old))
    if role is R.WORD:
        return rng.choice([word for words in WORDS if old in words for word in words] or [old + "s"])
    if role is R.COEFFICIENT:
        value = Fraction(old)
        value = rng.choice((value + 1, value - 1, -value, 2 * value, 1 / value if value else value + 2))
        return value.numerator if value.denominator == 1 else f"{value.numerator}/{value.denominator}"
    if type(old) is not int:
        return rng.randrange(3)
    return rng.choice((old + 1, old - 1, -old, 2 * old, old // 2, old + 2, 1))


def _kind(raw: Any) -> Any:
    return raw[0] if isinstance(raw, list) else raw


# --- normal form -----------------------------------------------------------------------------------------------------


class Normal:
    """Normal forms of proofs: numbers of factors and steps, orders of terms, lemmas and classes are gone.

    Two proofs with one normal form use the same lemmas, each with the same choices, on the same tensors. What is left
    out besides is the multiplier at an output, as any product of divisors is as good as another, and the bases, as any
    of them are good if the roots come out equal.
    """

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {}

    def _id(self, key: Hashable) -> int:
        return self._ids.setdefault(key, len(self._ids))

    def __call__(self, proof: Proof) -> Hashable:
        """The normal form; proofs to compare need one instance.

        Raises:
            LookupError, TypeError, ValueError: It is no proof; the kernel refuses it.
        """
        form = _Form(self._id, proof)
        lemmas = frozenset(form.lemma(raw) for raw in proof["lemmas"])
        outputs = tuple(tuple(form.steps[step] for step in entry[:2]) for entry in proof["outputs"])
        return lemmas, outputs, tuple(map(tuple, proof["atoms"]))


class _Form:
    def __init__(self, number: Any, proof: Proof) -> None:
        self.number, self.extents = number, proof["digits"]
        self.factors: list[int] = []
        self.bound: list[list[int]] = []
        for raw in proof["factors"]:
            self.factors.append(number(self.factor(raw)))
            named = [raw[2], *raw[3]] if raw[0] == "pmax" else raw[1] if raw[0] in ("sum", "max") else []
            self.bound.append(named)
        self.steps: list[int] = []
        for raw in proof["steps"]:
            self.steps.append(number(self.step(raw)))

    def digit(self, d: int) -> Hashable:
        return d, self.extents[d]

    def index(self, raw: list[int]) -> Hashable:
        return raw[0], frozenset((s, self.digit(d)) for s, d in zip(raw[1::2], raw[2::2], strict=True))

    def mono(self, raw: list[int]) -> Hashable:
        return frozenset((self.factors[f], e) for f, e in zip(raw[::2], raw[1::2], strict=True))

    def poly(self, raw: list[Any]) -> Hashable:
        return frozenset((Fraction(term[0]), self.mono(term[1:])) for term in raw)

    def digits(self, raw: list[int]) -> Hashable:
        return frozenset(map(self.digit, raw))

    def chains(self, raw: list[list[int]]) -> Hashable:
        return frozenset(tuple(map(self.digit, chain)) for chain in raw)

    def opens(self, raw: list[list[int]]) -> Hashable:
        """Which digit each bound one becomes."""
        pairs = [(self.factors[f], zip(self.bound[f], fresh, strict=True)) for f, *fresh in raw]
        return frozenset((f, frozenset((self.digit(a), self.digit(b)) for a, b in z)) for f, z in pairs)

    def factor(self, raw: list[Any]) -> Hashable:
        match raw:
            case ["in", number, indices]:
                return "in", number, tuple(map(self.index, indices))
            case ["sum", digits, mono]:
                return "sum", self.digits(digits), self.mono(mono)
            case ["max", digits, poly]:
                return "max", self.digits(digits), self.poly(poly)
            case ["pmax" | "carry" as kind, index, u, digits, poly]:
                return kind, self.index(index), self.digit(u), self.digits(digits), self.poly(poly)
            case ["top", list(polys)]:
                return "top", frozenset(map(self.poly, polys))
            case ["keep", mask, poly]:
                return "keep", self.poly(mask), self.poly(poly)
            case ["fn", "zero", poly]:
                negated = [[-Fraction(term[0]), *term[1:]] for term in poly]
                return "fn", "zero", frozenset((self.poly(poly), self.poly(negated)))
            case [kind, *names, list(poly)]:
                return kind, *names, self.poly(poly)
        return tuple(raw)

    def lemma(self, raw: list[Any]) -> Hashable:
        match raw:
            case ["sum", digits, mono, opens, parts]:
                classes = parts and frozenset((self.factors[s], self.chains(c)) for s, c in parts)
                return "sum", self.digits(digits), self.mono(mono), self.opens(opens), classes
            case ["max", digits, poly, opens, s, chains]:
                return (
                    "max",
                    self.digits(digits),
                    self.poly(poly),
                    self.opens(opens),
                    self.factors[s],
                    self.chains(chains),
                )
            case ["pmax", index, u, digits, poly, s, chains]:
                head = ("pmax", self.index(index), self.digit(u), self.digits(digits), self.poly(poly))
                return *head, self.factors[s], self.chains(chains)
            case ["largest", digits, polys, summand, factor, name, inner]:
                some = frozenset(self.poly(poly) for poly in polys)
                return (
                    "largest",
                    self.digits(digits),
                    some,
                    self.poly(summand),
                    self.poly(factor),
                    name,
                    self.poly(inner),
                )
            case ["square", poly, root]:
                return "square", self.poly(poly), self.poly(root)
        _, poly, e2, mono, q, rest = raw
        return "content", self.poly(poly), e2, self.mono(mono), Fraction(q), self.poly(rest)

    def step(self, raw: list[Any]) -> Hashable:
        """A step; the order of operands stays, as the operators' terms keep it. What shows a rewrite does not count."""
        held = STEPS[raw[0]]
        if raw[0] in ("fold", "rename"):
            return raw[0], self.steps[raw[1]], self.chains(raw[2])
        if raw[0] == "rewrite":
            return raw[0], self.steps[raw[1]], self.poly(raw[2])
        return raw[0], *(self._read(h, item) for h, item in zip(held, raw[1:], strict=False))

    def _read(self, held: Row | Role, item: Any) -> Hashable:
        match held:
            case R.STEP:
                return self.steps[item]
            case R.DIGIT:
                return self.digit(item)
            case Row():
                return tuple(self._read(held.at(i), inner) for i, inner in enumerate(item))
        return Fraction(item) if held is R.COEFFICIENT else item

"""Parser of proof files: bounded, strictly typed JSON. Every integer is range-checked before it is used.

The largest proof is ``MAX_PROOF_BYTES`` of support/limits.py; the bounds on tables and integers are here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fractions import Fraction
from math import prod
from typing import Any, Final, NoReturn

from mirage_formal.check.proof.operator_terms import UNINTERPRETED
from mirage_formal.check.proof.ring import Coef, Index, Key, Mono, Poly, ProofError, Ring, require
from mirage_formal.support.limits import MAX_PROOF_BYTES

MAX_NESTING: Final = 12
MAX_TABLE: Final = 5_000
MAX_EXTENT: Final = 1 << 40
MAX_EXPONENT: Final = 64
MAX_NUMBER: Final = 10**4_000
_TABLES: Final = ("atoms", "bases", "digits", "factors", "lemmas", "steps", "outputs")
VERSION: Final = 2
_RATIONAL: Final = re.compile(r"(-?[1-9][0-9]{0,3999})/([1-9][0-9]{0,3999})")


def parse_tables(proof: bytes | str) -> dict[str, list[object]]:
    """Return the tables of a proof.

    Raises:
        ProofError: It is not a JSON object with exactly these tables, or exceeds a bound.
    """
    require(len(proof) <= MAX_PROOF_BYTES, f"expected at most {MAX_PROOF_BYTES} bytes, got {len(proof)}")
    try:
        text = proof if isinstance(proof, str) else proof.decode("utf-8")
        depth = deepest = 0
        for bracket in re.findall(r"[\[\]{}]", text):
            depth += 1 if bracket in "[{" else -1
            deepest = max(deepest, depth)
        require(deepest <= MAX_NESTING, f"expected at most {MAX_NESTING} nested brackets, got {deepest}")
        found = json.loads(text, object_pairs_hook=_object, parse_float=_no_number, parse_constant=_no_number)
    except ValueError as error:
        raise ProofError(f"expected JSON, got {str(error)[:200]}") from error
    good = isinstance(found, dict) and sorted(found) == sorted((*_TABLES, "version"))
    require(good, f"expected an object with version, {', '.join(_TABLES)}")
    parse_integer(found["version"], VERSION, VERSION)
    return {name: parse_list(found[name]) for name in _TABLES}


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    require(len({name for name, _ in pairs}) == len(pairs), "expected distinct keys")
    return dict(pairs)


def _no_number(text: str) -> NoReturn:
    raise ProofError(f"expected integers, got {text[:40]}")


def parse_list(raw: object, low: int = 0, high: int = MAX_TABLE) -> list[object]:
    """Return a list after checking that its length lies in low..high."""
    if type(raw) is not list or not low <= len(raw) <= high:
        raise ProofError(f"expected a list of {low}..{high} entries, got {str(raw)[:60]}")
    return raw


def parse_integer(raw: object, low: int, high: int) -> int:
    """Return an integer after checking that it lies in low..high; true and false are refused."""
    if type(raw) is not int or not low <= raw <= high:
        raise ProofError(f"expected an integer in {low}..{str(high)[:60]}, got {str(raw)[:60]}")
    return raw


def parse_word(raw: object, allowed: Iterable[str]) -> str:
    """Return a string after checking that it is one of the allowed words."""
    if type(raw) is not str or raw not in allowed:
        raise ProofError(f"expected one of {', '.join(allowed)}, got {str(raw)[:60]}")
    return raw


def parse_rational(raw: object) -> Coef:
    """Return a number: an integer, or a text a/b in lowest terms with b > 1."""
    if type(raw) is str and (match := _RATIONAL.fullmatch(raw)) is not None:
        value = Fraction(int(match[1]), int(match[2]))
        if value.denominator > 1 and str(value) == raw:
            return value
    if type(raw) is int and abs(raw) < MAX_NUMBER:
        return raw
    raise ProofError(f"expected an integer or a text a/b in lowest terms, got {str(raw)[:60]}")


def parse_pairs(raw: object) -> list[tuple[object, object]]:
    """Return the entries of a flat list as pairs."""
    flat = parse_list(raw)
    require(len(flat) % 2 == 0, f"expected a flat list of pairs, got {len(flat)} entries")
    return list(zip(flat[::2], flat[1::2], strict=True))


class Reader:
    """Parser of digits, indices, monomials and factors; records which table entries are named."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.named_digits: set[int] = set()
        self.named_factors: set[int] = set()
        #: Bound digits of each factor of the table in the order of the table, u of a pmax first.
        self.listed: dict[int, tuple[int, ...]] = {}
        self._size = 0

    def digit(self, raw: object) -> int:
        """Return a number of the proof as a digit: it is one of the declared digits, and is noted as used."""
        number = parse_integer(raw, 0, len(self.ring.extents) - 1)
        self.named_digits.add(number)
        return number

    def digits(self, raw: object) -> tuple[int, ...]:
        """Return a list of the proof as digits: at most 64, all distinct, and noted as used."""
        found = tuple(self.digit(d) for d in parse_list(raw, high=64))
        require(len(set(found)) == len(found), f"expected distinct digits, got {found}")
        return found

    def index(self, raw: object) -> Index:
        """Return an index: its offset, then stride and digit in turn."""
        flat = parse_list(raw, low=1, high=129)
        offset = parse_integer(flat[0], 0, MAX_EXTENT)
        terms = {self.digit(digit): parse_integer(stride, 1, MAX_EXTENT) for stride, digit in parse_pairs(flat[1:])}
        require(2 * len(terms) + 1 == len(flat), "expected distinct digits in an index")
        return offset, tuple(sorted(terms.items()))

    def factor(self, raw: object) -> int:
        """Return the number of a factor that was read before."""
        number = parse_integer(raw, 0, self._size - 1)
        self.named_factors.add(number)
        return number

    def monomial(self, raw: object) -> Mono:
        """Return a monomial: factor and half exponent in turn."""
        flat = parse_pairs(raw)
        found = {self.factor(f): parse_integer(e, -MAX_EXPONENT, MAX_EXPONENT) for f, e in flat}
        good = len(found) == len(flat) and 0 not in found.values()
        require(good, "expected distinct factors with exponents that are not 0")
        return tuple(sorted(found.items()))

    def polynomial(self, raw: object) -> Poly:
        """Return a polynomial: lists of a coefficient and a monomial."""
        found: Poly = {}
        for term in parse_list(raw):
            first, *rest = parse_list(term, low=1)
            mono, coef = self.monomial(rest), parse_rational(first)
            require(mono not in found and coef, "expected distinct monomials with coefficients that are not 0")
            found[mono] = coef
        return found

    def chains(self, raw: object) -> list[tuple[int, tuple[int, ...]]]:
        """Return folds: lists of a new digit and the digits that are folded into it."""
        flat = [parse_list(chain, low=2) for chain in parse_list(raw, high=64)]
        found = [self.digits(chain[1:]) for chain in flat]
        return [(self.digit(chain[0]), olds) for chain, olds in zip(flat, found, strict=True)]

    def needed_factors(self) -> set[int]:
        """Return the factors named since the table was read, and all factors in their payloads."""
        seen: set[int] = set()
        stack = list(self.named_factors)
        while stack:
            f = stack.pop()
            if f not in seen:
                seen.add(f)
                stack += [g for mono in self.ring.inside(f)[2] for g, _ in mono]
        return seen

    def entry(self, raw: object, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Read an entry of the factor table, which may name earlier factors only.

        Sound: a factor is a name for a real function of its free digits, so reading one asserts nothing.
        """
        first, *body = parse_list(raw, low=2)
        kind = parse_word(first, _LENGTHS)
        parse_list(raw, low=_LENGTHS[kind], high=_LENGTHS[kind])
        payload: Any
        match kind:
            case "in":
                payload = self._element(body, shapes)
            case "sum":
                bound, mono = frozenset(self.digits(body[0])), self.monomial(body[1])
                _all_used(bound, self.ring.free_of(mono))
                payload = (bound, mono)
            case "max":
                payload = self._bound(body[0], body[1])
            case "pmax" | "carry":
                index, u = self.index(body[0]), self.digit(body[1])
                payload = (index, u, *self._bound(body[2], body[3], empty=True))
                require(u not in payload[2], f"expected digit {u} to be bound once")
            case "exp" | "pow":
                payload = self._body(body[0])
            case "top":
                polys = parse_list(body[0], low=2)
                payload = frozenset(frozenset(self.polynomial(poly).items()) for poly in polys)
                require(len(payload) == len(polys), "expected distinct polynomials")
            case "surd":
                payload = parse_integer(body[0], 2, MAX_NUMBER)
                require(
                    self.ring.squares(payload)[0] == 1, f"expected a number without squares, got {str(payload)[:60]}"
                )
            case "keep":
                payload = tuple(frozenset(self.polynomial(part).items()) for part in body)
            case "fn":
                name = parse_word(body[0], _FUNCTIONS)
                payload = (name, frozenset(self.polynomial(body[1]).items()))
            case _:
                raise AssertionError(kind)
        require(self.ring.intern(kind, payload) == self._size, "expected distinct factors")
        if kind in ("sum", "max", "pmax"):
            self.listed[self._size] = self.digits([body[1], *parse_list(body[2])] if kind == "pmax" else body[0])
        self._size += 1

    def _element(self, body: list[object], shapes: tuple[tuple[int, ...], ...]) -> tuple[int, tuple[Index, ...]]:
        source = parse_integer(body[0], -len(shapes), len(shapes) - 1)
        shape = shapes[source] if source >= 0 else (prod(shapes[~source]),)
        rank = len(shape)
        found = tuple(self.index(index) for index in parse_list(body[1], rank, rank))
        for (offset, terms), extent in zip(found, shape, strict=True):
            good = offset + sum(s * (self.ring.extents[d] - 1) for d, s in terms) < extent
            require(good, f"expected an index below {extent}")
        return source, found

    def _body(self, raw: object, zero: bool = False) -> Key:
        poly = self.polynomial(raw)
        require(poly or zero, "expected a polynomial that is not 0")
        return frozenset(poly.items())

    def _bound(self, digits: object, raw: object, empty: bool = False) -> tuple[frozenset[int], Key]:
        bound, body = frozenset(self.digits(digits)), self._body(raw, zero=empty)
        _all_used(bound, self.ring.free_in(dict(body)), empty)
        return bound, body


_LENGTHS: Final = {
    "in": 3, "sum": 3, "max": 3, "pmax": 5, "carry": 5, "exp": 2, "pow": 2, "top": 2, "surd": 2, "fn": 3,
    "keep": 3,
}  # fmt: skip
_FUNCTIONS: Final = (*UNINTERPRETED, "zero", "negative", "inv0")


def _all_used(bound: frozenset[int], free: frozenset[int], empty: bool = False) -> None:
    require(bound <= free and (bound or empty), "expected bound digits, each of which occurs")

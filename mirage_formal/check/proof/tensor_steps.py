"""Tensor steps of a proof: a tensor is an operator term, a digit string per axis, and its element's polynomial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, partialmethod
from itertools import product
from math import prod

from mirage_formal.check.proof.index_substitution import Substitution, folding_substitution, require_lemma, value
from mirage_formal.check.proof.operator_terms import ABOVE_ZERO, LOOP, UNARY, Terms
from mirage_formal.check.proof.parser import MAX_EXTENT, Reader, parse_integer, parse_list, parse_rational, parse_word
from mirage_formal.check.proof.ring import ONE, Coef, Mono, Poly, ProofError, require
from mirage_formal.graph.types import MAX_RANK

Strings = tuple[tuple[int, ...], ...]
#: Most masks whose cases are told apart.
MAX_MASKS = 4
RANK = MAX_RANK + LOOP + 1
BINARY = ("add", "sub", "mul", "div", "max", "select", "eq", "lt", "le", "div_no_nan")
#: Steps, with the smallest and the largest length of their entries.
LENGTHS = {
    **dict.fromkeys(("input", "fold", "rename", "unary", "matmul", "scale", "offset", "max"), (3, 3)),
    **dict.fromkeys(("rescaled", "reshape", "transpose", "congruent"), (3, 3)), "slice": (6, 6),
    **dict.fromkeys(("binary", "sum", "repeat"), (4, 4)), **dict.fromkeys(("running_max", "carry"), (3, 4)),
    **dict.fromkeys(("split", "rewrite"), (5, 5)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckedTensor:
    """A tensor: the polynomial is the value of the element at the position that the strings of digits denote."""

    term: int
    strings: Strings
    poly: Poly


class TensorReplay:
    """Replay of tensor steps.

    Sound: each method computes, from tensors that are what their terms say, one that is what its term says; or it keeps
    the term and writes the same elements with other digits.
    """

    def __init__(self, reader: Reader, terms: Terms, sources: Sequence[int]) -> None:
        self.reader, self.ring, self.terms, self.sources = reader, reader.ring, terms, sources
        self.tensors: list[CheckedTensor] = []
        self.used, self.read = set[int](), set[int]()
        self._laws: dict[str, Callable[..., CheckedTensor]] = {name: getattr(self, f"_{name}") for name in LENGTHS}

    def step(self, raw: object) -> None:
        """Replay the next step.

        Raises:
            ProofError: Its law does not apply.
        """
        name = parse_word(parse_list(raw, low=1)[0], LENGTHS)
        found = self._laws[name](*parse_list(raw, *LENGTHS[name])[1:])
        self.ring.charge(1 + len(found.poly))
        digits = [d for string in found.strings for d in string]
        good = len(set(digits)) == len(digits) and self.ring.free_in(found.poly) <= set(digits)
        require(good, "expected distinct digits, which hold all that the element depends on")
        good = tuple(self._size(string) for string in found.strings) == self.terms.shapes[found.term]
        require(good, f"expected strings of the shape {self.terms.shapes[found.term]}")
        self.tensors.append(found)

    def tensor(self, raw: object) -> CheckedTensor:
        """Return the tensor of an earlier step by a number of the proof, and note that it is used."""
        number = parse_integer(raw, 0, len(self.tensors) - 1)
        self.used.add(number)
        return self.tensors[number]

    def difference(self, a: Poly, b: Poly, divided: object, masks: object, rewritten: bool = False) -> Poly:
        """Return the difference of two polynomials times a multiplier, in which equal maxima alone may be left.

        They are compared in each case of masks; it is that of the last case. In each case of an element that is
        rewritten both need the same values, so that what a selection discards stays discarded; else no case is told of
        selections, for the same reason.

        Sound: masks are 0 or 1, so what is equal in each case is equal. A multiplier is a product of positive powers of
        divisors, or of what they are divided by themselves, which is not 0, so the difference is 0 if its product with
        the multiplier is, or with what of it is a divisor in a case; and that is if its two parts have the same largest
        value, each alone.
        """
        ring, multiplier, rest = self.ring, self.reader.monomial(divided), dict[Mono, Coef]()
        given = [self.reader.factor(mask) for mask in parse_list(masks, high=MAX_MASKS)]
        require(all(map(ring.is_mask, given)), "expected masks")
        for case in product((0, 1), repeat=len(given)):
            cases = dict(zip(given, case, strict=True))
            kept, told = (Substitution(ring, (), cases, guards=guards).polynomial for guards in (True, False))
            x, y = kept(a), kept(b)
            good = ring.needs(x, told) == ring.needs(y, told) if given and rewritten else (x, y) == (a, b)
            require(good, "expected the same needs in each case")
            x, y = told(x), told(y)
            divisors = ring.partial((*x, *y))
            require(all(e > 0 and (given or f in divisors) for f, e in multiplier), "expected a multiplier of divisors")
            by = [item for item in multiplier if item[0] in divisors]
            rest = ring.combined((ring.prod((*mono, *by)), coef) for mono, coef in ring.add(x, y, -1).items())
            below = {m: -c for m, c in rest.items() if c < 0 and any(ring.kinds[f] == "top" for f, _ in m)}
            require(ring.same_largest([ring.add(rest, below)], [below]), "expected equal elements")
        return rest

    def _rewrite(self, raw: object, poly: object, divided: object, masks: object) -> CheckedTensor:
        """Return a tensor with its element written as another polynomial.

        Sound: no divisor or root is new that may be 0 or negative, and the two are equal.
        """
        a, new = self.tensor(raw), self.reader.polynomial(poly)
        require(self.ring.needs(new) <= self.ring.needs(a.poly), "expected no new divisor or root")
        self.difference(a.poly, new, divided, masks, rewritten=True)
        return CheckedTensor(a.term, a.strings, new)

    def _size(self, string: Sequence[int]) -> int:
        return prod(self.ring.extents[d] for d in string)

    def _place(self, string: Sequence[int], extent: int) -> int:
        """Return where the last digits begin, as few as have this extent together, or all."""
        return next((cut for cut in range(len(string), 0, -1) if self._size(string[cut:]) >= extent), 0)

    def _axis(self, a: CheckedTensor, raw: object) -> int:
        return parse_integer(raw, 0, len(a.strings) - 1)

    def _input(self, raw: object, strings: object) -> CheckedTensor:
        """Return an input, or an atom: a tensor of a graph that is kept opaque.

        Sound: an atom's elements are named by its operator term and their position, as an input's are by the input;
        those of source ~i by their position in row-major order.
        """
        number = parse_integer(raw, -len(self.sources), len(self.sources) - 1)
        term = self.sources[number] if number >= 0 else self.terms.flat(self.sources[~number])
        self.read.add(number)
        found = tuple(self.reader.digits(string) for string in parse_list(strings, high=RANK))
        element = (number, tuple(value(self.ring, string) for string in found))
        return CheckedTensor(term, found, {((self.ring.intern("in", element), 2),): 1})

    def _congruent(self, raw: object, pairs: object) -> CheckedTensor:
        """Return a tensor with the elements of one that is computed in the same way from other, equal tensors.

        Sound: each pair of tensors has the same elements at the same positions, and so have their reshapes.
        """
        a, table = self.tensor(raw), dict[int, int]()
        for pair in parse_list(pairs, low=1):
            x, y = map(self.tensor, parse_list(pair, 2, 2))
            require((x.strings, x.poly) == (y.strings, y.poly), "expected pairs of equal tensors")
            table[x.term], shape = y.term, self.terms.shapes[a.term]
            if prod(shape) == prod(self.terms.shapes[x.term]):
                table[self.terms.reshape(x.term, shape)] = self.terms.reshape(y.term, shape)
        return CheckedTensor(self.terms.replaced(a.term, table), a.strings, a.poly)

    # --- digits ------------------------------------------------------------------------------------------------

    def _split(self, raw: object, digit: object, high: object, low: object) -> CheckedTensor:
        a, d = self.tensor(raw), self.reader.digit(digit)
        hi, lo = pair = self.reader.digits([high, low])
        good = self._size(pair) == self.ring.extents[d] and not any({hi, lo} & {*string} for string in a.strings)
        require(good, f"expected new digits whose extents multiply to {self.ring.extents[d]}")
        require_lemma(self.ring, pair)
        return self._replaced(a, ((d,),), (pair,), Substitution(self.ring, [((d,), value(self.ring, pair))]))

    def _fold(self, raw: object, chains: object) -> CheckedTensor:
        a, folds = self.tensor(raw), self.reader.chains(chains)
        move = folding_substitution(self.ring, folds, self.ring.free_in(a.poly))
        return self._replaced(a, tuple(chain for _, chain in folds), tuple((new,) for new, _ in folds), move)

    def _rename(self, raw: object, pairs: object) -> CheckedTensor:
        return self._fold(raw, [[new, old] for old, new in (parse_list(pair, 2, 2) for pair in parse_list(pairs))])

    def _replaced(self, a: CheckedTensor, olds: Strings, news: Strings, move: Substitution) -> CheckedTensor:
        """Replace runs of digits, each contiguous in one string, in the strings and in the polynomial."""
        table = {old[0]: (old, new) for old, new in zip(olds, news, strict=True)}
        strings = []
        for string in a.strings:
            out: list[int] = []
            at = 0
            while at < len(string):
                old, new = table.get(string[at], (string[at : at + 1],) * 2)
                require(string[at : at + len(old)] == old, f"expected digits {old} side by side in one string")
                table.pop(old[0], None)
                out += new
                at += len(old)
            strings.append(tuple(out))
        require(not table, f"expected digits of the tensor, got {sorted(table)}")
        return CheckedTensor(a.term, tuple(strings), move.polynomial(a.poly))

    def _slice(self, raw: object, axis: object, start: object, string: object, pairs: object) -> CheckedTensor:
        a = self.tensor(raw)
        at, new, first = self._axis(a, axis), self.reader.digits(string), parse_integer(start, 0, MAX_EXTENT)
        strides = dict(value(self.ring, a.strings[at])[1])
        term = self.terms.slice(a.term, at, first, self._size(new))
        places, offset, total = [], 0, Counter[int]()
        for pair in parse_list(pairs):
            digit, index = parse_list(pair, 2, 2)
            d, (shift, by) = self.reader.digit(digit), self.reader.index(index)
            if shift + sum(s * (self.ring.extents[x] - 1) for x, s in by) >= self.ring.extents[d] or d not in strides:
                raise ProofError(f"expected an index that stays in digit {d}")
            stride = strides.pop(d)
            offset += stride * shift
            total.update({x: stride * s for x, s in by})
            places.append(((d,), (shift, by)))
        good = not strides and (offset, tuple(sorted(total.items()))) == (first, value(self.ring, new)[1])
        require(good, f"expected the digits of axis {at} to make up {first} and the new number")
        require_lemma(self.ring, a.strings[at])
        poly = Substitution(self.ring, places).polynomial(a.poly)
        return CheckedTensor(term, _replace_string(a.strings, at, new), poly)

    def _reshape(self, raw: object, shape: object) -> CheckedTensor:
        a = self.tensor(raw)
        new = tuple(parse_integer(extent, 1, MAX_EXTENT) for extent in parse_list(shape, high=RANK))
        digits = [d for string in a.strings for d in string]
        strings: list[tuple[int, ...]] = []
        for extent in reversed(new):
            cut = self._place(digits, extent)
            strings.append(tuple(digits[cut:]))
            del digits[cut:]
        return CheckedTensor(self.terms.reshape(a.term, new), tuple(reversed(strings)), a.poly)

    def _transpose(self, raw: object, perm: object) -> CheckedTensor:
        a = self.tensor(raw)
        order = tuple(self._axis(a, axis) for axis in parse_list(perm, high=RANK))
        return CheckedTensor(self.terms.transpose(a.term, order), tuple(a.strings[i] for i in order), a.poly)

    def _repeat(self, raw: object, axis: object, digit: object) -> CheckedTensor:
        a, new = self.tensor(raw), self.reader.digit(digit)
        at = self._axis(a, axis)
        term = self.terms.repeat(a.term, at, self.ring.extents[new])
        return CheckedTensor(term, _replace_string(a.strings, at, (new,)), a.poly)

    # --- operators ---------------------------------------------------------------------------------------------

    def _unary(self, kind: object, raw: object) -> CheckedTensor:
        a, name = self.tensor(raw), parse_word(kind, UNARY)
        return CheckedTensor(self.terms.unary(name, a.term), a.strings, self.ring.function(name, a.poly))

    def _binary(self, kind: object, left: object, right: object) -> CheckedTensor:
        """Return an operator of two tensors.

        Sound: a mask is 0 or 1, so of what always has a value the product with a mask is the selection. What is above 0
        has an inverse. a < b if a - b is negative, a <= b unless b - a is, a = b if a - b is zero.
        """
        a, b, name, ring = self.tensor(left), self.tensor(right), parse_word(kind, BINARY), self.ring
        term, (total, sign) = self.terms.binary(name, a.term, b.term), self.terms.known[b.term]
        x, y, below = a.poly, b.poly, partial(ring.function, "negative")
        made: dict[str, Callable[[], Poly]] = {
            "add": lambda: ring.add(x, y), "sub": lambda: ring.add(x, y, -1), "max": lambda: ring.top((x, y)),
            "mul": lambda: ring.mul(x, y), "div": lambda: ring.mul(x, ring.power(y, -2)),
            "div_no_nan": lambda: ring.mul(x, ring.power(y, -2) if sign == ABOVE_ZERO else ring.function("inv0", y)),
            "select": lambda: ring.mul(x, y) if total else ring.keep(x, y),
            "eq": lambda: ring.function("zero", ring.add(x, y, -1)), "lt": lambda: below(ring.add(x, y, -1)),
            "le": lambda: ring.add(ONE, below(ring.add(y, x, -1)), -1),
        }  # fmt: skip
        return CheckedTensor(term, self._aligned(a.strings, b.strings), made[name]())

    def _aligned(self, a: Strings, b: Strings, roles: dict[int, object] | None = None) -> Strings:
        """Return the strings of broadcast axes: equal or one empty, each digit in one axis."""
        roles = {} if roles is None else roles
        for axis, (x, y) in enumerate(zip(a, b, strict=True)):
            require(not x or not y or x == y, f"expected equal strings or an empty one in axis {axis}, got {x} and {y}")
            _assign_role(roles, (*x, *y), axis)
        return tuple(x or y for x, y in zip(a, b, strict=True))

    def _matmul(self, left: object, right: object) -> CheckedTensor:
        a, b = self.tensor(left), self.tensor(right)
        term = self.terms.matmul(a.term, b.term)
        inner, roles = a.strings[-1], dict[int, object]()
        require(inner == b.strings[-2], f"expected one string to contract, got {inner} and {b.strings[-2]}")
        for string, role in ((a.strings[-2], "row"), (inner, "inner"), (b.strings[-1], "column")):
            _assign_role(roles, string, role)
        lead = self._aligned(a.strings[:-2], b.strings[:-2], roles)
        poly = self.ring.total(frozenset(inner), self.ring.mul(a.poly, b.poly))
        return CheckedTensor(term, (*lead, a.strings[-2], b.strings[-1]), poly)

    def _scale(self, raw: object, number: object, kind: str = "scale") -> CheckedTensor:
        a, q = self.tensor(raw), parse_rational(number)
        poly = self.ring.add({}, a.poly, q) if kind == "scale" else self.ring.add(a.poly, ONE, q)
        return CheckedTensor(self.terms.constant(kind, a.term, Fraction(q)), a.strings, poly)

    _offset = partialmethod(_scale, kind="offset")

    def _sum(self, raw: object, axis: object, kept: object) -> CheckedTensor:
        a, count = self.tensor(raw), parse_integer(kept, 1, MAX_EXTENT)
        at = self._axis(a, axis)
        string, cut = a.strings[at], self._place(a.strings[at], count)
        poly = self.ring.total(frozenset(string[:cut]), a.poly)
        term = self.terms.reduce("sum", a.term, at, count)
        return CheckedTensor(term, _replace_string(a.strings, at, string[cut:]), poly)

    def _max(self, raw: object, axis: object) -> CheckedTensor:
        a = self.tensor(raw)
        at = self._axis(a, axis)
        poly = self.ring.maximum(frozenset(a.strings[at]), a.poly)
        return CheckedTensor(self.terms.reduce("max", a.term, at), _replace_string(a.strings, at, ()), poly)

    def _running_max(self, raw: object, axis: object, *names: object, kind: str = "pmax") -> CheckedTensor:
        """Return the running maximum, or its carry factor; u takes the place of the loop's digit inside.

        Sound: in a loop of one iteration nothing is carried, so the factor is 0.
        """
        a, ring = self.tensor(raw), self.ring
        at = parse_integer(axis, LOOP + 1, len(a.strings) - 1)
        loop, bound = a.strings[LOOP], frozenset(a.strings[at])
        if len(loop) == len(names) == 1:
            u = self.reader.digit(names[0])
            body = folding_substitution(ring, [(u, loop)], ring.free_in(a.poly) | bound).polynomial(a.poly)
            poly = ring.running_maximum(kind, (0, ((loop[0], 1),)), u, bound, body)
        elif not loop and not names:
            poly = ring.maximum(bound, a.poly) if kind == "pmax" else {}
        else:
            raise ProofError(
                "running maximum: expected a new digit name for a loop of one digit, none for one iteration"
            )
        term = self.terms.reduce("running_max" if kind == "pmax" else kind, a.term, at)
        return CheckedTensor(term, _replace_string(a.strings, at, ()), poly)

    _carry = partialmethod(_running_max, kind="carry")

    def _rescaled(self, left: object, right: object) -> CheckedTensor:
        """Return the last state of s = s * f + x.

        Sound: s_T = sum over t of x_t times the product over t' > t of f_t'. With f_t' = exp(m_(t'-1) - m_t') the
        product telescopes to exp(m_t - m_T), for every t, if the m of all iterations are of one sequence: its payload
        must not depend on t, and u must run as far as t, so that m_T is the largest value of all.
        """
        x, f, ring = self.tensor(left), self.tensor(right), self.ring
        term, loop = self.terms.rescaled(x.term, f.term), x.strings[LOOP]
        strings = self._aligned(x.strings, f.strings)
        if not loop and not f.strings[LOOP]:
            return CheckedTensor(term, strings, x.poly)
        number = ring.alone(f.poly, "carry")
        good = f.strings[LOOP] == loop and len(loop) == 1 and number >= 0
        require(good, "expected a factor that is the carry of a running maximum over the loop")
        index, u, bound, body = ring.payloads[number]
        poly, t = dict(body), loop[0]
        outside = ring.free_in(poly) - bound - {u}
        good = index == (0, ((t, 1),)) and t not in outside and ring.extents[u] == ring.extents[t]
        require(good, "expected the carry of one running maximum at the loop's own iterations")
        now = ring.running_maximum("pmax", index, u, bound, poly)
        last = ring.maximum(bound | {u}, poly)
        weight = ring.exponential(ring.add(now, last, -1))
        poly = ring.total(frozenset(loop), ring.mul(x.poly, weight))
        return CheckedTensor(term, _replace_string(strings, LOOP, ()), poly)


def _replace_string(strings: Strings, axis: int, string: tuple[int, ...]) -> Strings:
    return (*strings[:axis], string, *strings[axis + 1 :])


def _assign_role(roles: dict[int, object], string: tuple[int, ...], role: object) -> None:
    for digit in string:
        require(roles.setdefault(digit, role) == role, f"expected digit {digit} in one axis only")

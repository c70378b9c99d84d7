"""Tensors by exact terms: per dim a string of digits (a mixed-radix index), and one polynomial for the element.

A dim of extent n is a mixed-radix string of digits (most significant first, empty for extent 1). Reshapes and
transposes only split and regroup digits; replication is a digit that the polynomial does not contain. Every operation
leaves a step for the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

from msgspec import Struct

from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.prove.equality.canonical_reductions import BinderTerms
from mirage_formal.prove.equality.element_forms import element_forms, verify_form
from mirage_formal.prove.equality.facts import INPUT, Sign, TensorFacts, infer_facts
from mirage_formal.prove.equality.index_substitution import DigitSubstitution, Folds, make_renaming
from mirage_formal.prove.equality.polynomials import (
    FactorKind,
    Index,
    Polynomial,
    ProofIncomplete,
    UnnestedDigits,
    add,
    constant,
    factor_power,
    scale_polynomial,
)
from mirage_formal.prove.equality.radicals import SquareRoots
from mirage_formal.semantics.function_table import UNINTERPRETED
from mirage_formal.semantics.value_domain import LOOP_AXIS

String = tuple[int, ...]


class TensorTerm(Struct, frozen=True):
    """A tensor of a proof step.

    Attributes:
        step: The step.
        strings: The digits of each dim.
        element: The element as a polynomial over these digits.
        fact: Static facts from its operators.
    """

    step: int
    strings: tuple[String, ...]
    element: Polynomial
    fact: TensorFacts = INPUT


class ProofStep(Struct, frozen=True):
    """One step of a proof.

    Attributes:
        body: Its JSON-like body over this interner's numbers.
        operands: The steps of its operands.
        strings: The digits of each dim of the result.
        element: The element of the result.
        uses: The lemmas that it uses.
    """

    body: tuple[Any, ...]
    operands: tuple[int, ...]
    strings: tuple[String, ...]
    element: Polynomial
    uses: frozenset[int]


class TensorTerms(BinderTerms):
    """Operations on tensors of exact terms.

    Sound: each operation computes the element of its result from the elements of its operands at the same digits, by
    the operator's definition; digits are split and merged along mixed-radix bijections only.
    """

    def __init__(self, radicals: SquareRoots | None = None) -> None:
        super().__init__(radicals)
        self.steps: list[ProofStep] = []

    # --- bookkeeping -------------------------------------------------------------------------------------------

    def extent_of(self, string: Iterable[int]) -> int:
        """Return the number of values of a string."""
        return prod(self.extent[d] for d in string)

    def shape(self, a: TensorTerm) -> Shape:
        """Return the extents of the dims."""
        return tuple(self.extent_of(string) for string in a.strings)

    def _add_step(
        self,
        body: tuple[Any, ...],
        operands: tuple[TensorTerm, ...],
        strings: Iterable[String],
        element: Polynomial,
        uses: Iterable[int] = (),
        known: TensorFacts | None = None,
    ) -> TensorTerm:
        known = infer_facts(body, tuple(a.fact for a in operands)) if known is None else known
        made = TensorTerm(len(self.steps), tuple(strings), element, known)
        self.steps.append(ProofStep(body, tuple(a.step for a in operands), made.strings, element, frozenset(uses)))
        return made

    def _moved(
        self, body: tuple[Any, ...], a: TensorTerm, strings: Iterable[String], change: DigitSubstitution
    ) -> TensorTerm:
        with self.scope() as uses:
            element = self.change(a.element, change)
        return self._add_step(body, (a,), strings, element, uses)

    def congruent(
        self, a: TensorTerm, pairs: Iterable[tuple[TensorTerm, TensorTerm]], known: TensorFacts
    ) -> TensorTerm:
        """Return the tensor that is computed as ``a``, with the second of each pair of equal tensors for the first.

        ``known`` has the facts that the operators of the result show. They may differ from those of ``a``.
        """
        operands = (a, *(x for pair in pairs for x in pair))
        return self._add_step(("congruent",), operands, a.strings, a.element, known=known)

    def _reduced(self, a: TensorTerm) -> TensorTerm:
        """Return the tensor with its element in other forms, and with merged digits.

        Sound: an element is written in another way only with what shows that both are equal.
        """
        for make in element_forms(self, a.element):
            with self.scope():
                form = make(a.element)
            with self.scope() as uses:
                shown = form is not None and verify_form(self, a.element, form)
            if form is not None and shown:
                a = self._add_step(("rewrite", *form), (a,), a.strings, form[0], uses)
        return self.coarsen(a)

    # --- digits ------------------------------------------------------------------------------------------------

    def coarsen(self, a: TensorTerm) -> TensorTerm:
        """Return the tensor with digits merged that are adjacent in every occurrence."""
        candidates = {d for string in a.strings if len(string) > 1 for d in string}
        if not candidates:
            return a
        occurring = self.free_of(a.element)
        nexts = self.chains(self.adjacent_in(a.element), candidates & occurring)
        folds: list[tuple[int, String]] = []
        strings: list[String] = []
        for string in a.strings:
            chains: list[list[int]] = []
            for d in string:
                last = chains[-1][-1] if chains else None
                if last is not None and (nexts.get(last) == d or (last not in occurring and d not in occurring)):
                    chains[-1].append(d)
                else:
                    chains.append([d])
            out: list[int] = []
            for chain in chains:
                if len(chain) > 1:
                    folds.append((self.fresh(self.extent_of(chain)), tuple(chain)))
                out.append(folds[-1][0] if len(chain) > 1 else chain[0])
            strings.append(tuple(out))
        if not folds:
            return a
        fixed: Folds = tuple(folds)
        return self._moved(("fold", fixed), a, strings, DigitSubstitution(folds=fixed))

    def cut(self, a: TensorTerm, axis: int, strides: Iterable[int]) -> TensorTerm:
        """Split digits of a dim so that digit boundaries fall on all of ``strides``."""
        for stride in sorted(strides):
            below = 1
            string = a.strings[axis]
            for place in range(len(string) - 1, -1, -1):
                digit = string[place]
                extent = self.extent[digit]
                if below < stride < below * extent:
                    if stride % below or extent % (stride // below):
                        raise UnnestedDigits(
                            f"a cut at {stride} does not nest with an index of stride {below}, extent {extent}"
                        )
                    low = stride // below
                    hi, lo = self.fresh(extent // low), self.fresh(low)
                    split = (*string[:place], hi, lo, *string[place + 1 :])
                    strings = (*a.strings[:axis], split, *a.strings[axis + 1 :])
                    change = DigitSubstitution(affine=((digit, (0, ((low, hi), (1, lo)))),))
                    a = self._moved(("split", digit, hi, lo), a, strings, change)
                    break
                below *= extent
                if below >= stride:
                    break
        return a

    def _cuts(self, string: String) -> set[int]:
        out: set[int] = set()
        below = 1
        for d in reversed(string):
            below *= self.extent[d]
            out.add(below)
        return out

    def rename(self, a: TensorTerm, names: dict[int, int]) -> TensorTerm:
        """Return the tensor with other digits."""
        names = {d: e for d, e in names.items() if d != e}
        if not names:
            return a
        strings = tuple(tuple(names.get(d, d) for d in string) for string in a.strings)
        pairs = tuple(sorted(names.items()))
        return self._moved(("rename", pairs), a, strings, make_renaming(pairs))

    def unify(self, a: TensorTerm, b: TensorTerm, pairs: Sequence[tuple[int, int]]) -> tuple[TensorTerm, TensorTerm]:
        """Give paired dims of both tensors the same digits, and all other digits of b and a different ones."""
        shared = [(i, j) for i, j in pairs if a.strings[i] and b.strings[j]]
        for i, j in shared:
            mine, theirs = self._cuts(a.strings[i]), self._cuts(b.strings[j])
            if mine != theirs:
                a = self.cut(a, i, theirs - mine)
                b = self.cut(b, j, mine - theirs)
        # The operand with the shallower element is renamed: fewer sums have to be brought to normal form again.
        if self.height_of(a.element) < self.height_of(b.element):
            return self._rename_paired(b, a, [(j, i) for i, j in shared])[::-1]
        return self._rename_paired(a, b, shared)

    def _rename_paired(
        self, a: TensorTerm, b: TensorTerm, shared: Sequence[tuple[int, int]]
    ) -> tuple[TensorTerm, TensorTerm]:
        taken = {d for string in a.strings for d in string}
        names: dict[int, int] = {}
        for i, j in shared:
            names |= dict(zip(b.strings[j], a.strings[i], strict=True))
        paired = {j for _, j in shared}
        for j, string in enumerate(b.strings):
            if j not in paired:
                names |= {d: self.fresh(self.extent[d]) for d in string if d in taken}
        return a, self.rename(b, names)

    # --- operators ---------------------------------------------------------------------------------------------

    def input(self, number: int, shape: Shape, known: TensorFacts = INPUT) -> TensorTerm:
        """Return an input of the program with digits of its own, or an atom."""
        strings = tuple((self.fresh(n),) if n > 1 else () for n in shape)
        indices = tuple((0, tuple((1, d) for d in string)) for string in strings)
        element = factor_power(self.factor(FactorKind.INPUT, (number, indices)))
        return self._add_step(("input", number), (), strings, element, known=known)

    def unary(self, kind: OpKind, a: TensorTerm) -> TensorTerm:
        """Return an elementwise function of a tensor."""
        with self.scope() as uses:
            element = self._unary(kind, a.element)
        found = self._add_step(("unary", kind.value), (a,), a.strings, element, uses)
        return self._reduced(found)

    def _unary(self, kind: OpKind, p: Polynomial) -> Polynomial:
        match kind:
            case OpKind.EXP:
                return self.exp(p)
            case OpKind.SQUARE:
                self.register_square(p)
                return self.mul(p, p)
            case OpKind.SQRT:
                return self.power(p, 1)
            case OpKind.SIGMOID:
                return self.increase("sigmoid", p)
            case OpKind.RELU:
                return self.largest_of((p, ()))
            case _ if kind in UNINTERPRETED:
                return self.apply(kind.value, p)
            case OpKind.GELU:
                half = scale_polynomial(p, Fraction(1, 2))
                inner = self.mul(half, factor_power(self.factor(FactorKind.SURD, self.root(Fraction(2))[1]), 1))
                return add(half, self.mul(half, self.apply("erf", inner)))
            case _:
                raise ProofIncomplete(f"{kind} has no exact meaning")

    def binary(self, kind: OpKind, a: TensorTerm, b: TensorTerm) -> TensorTerm:
        """Return the result of an elementwise operator; dims of extent 1 broadcast."""
        a, b = self.unify(a, b, [(i, i) for i in range(len(a.strings))])
        strings = [x or y for x, y in zip(a.strings, b.strings, strict=True)]
        with self.scope() as uses:
            element = self._binary(kind, a.element, b.element, b.fact)
        return self._reduced(self._add_step(("binary", kind.value), (a, b), strings, element, uses))

    def _binary(self, kind: OpKind, p: Polynomial, q: Polynomial, known: TensorFacts) -> Polynomial:
        """Return the element of a result; ``known`` holds the facts about the second operand.

        Sound: a mask is 0 or 1, so where a value always exists, its product with a mask is the value where the mask is
        1, and 0 elsewhere. 1 / q is the inverse that is 0 at 0 of a q that is never 0.
        """
        match kind:
            case OpKind.ADD:
                return add(p, q)
            case OpKind.SUB:
                return add(p, q, -1)
            case OpKind.MUL:
                if p == q:
                    self.register_square(p)
                return self.mul(p, q)
            case OpKind.DIV:
                return self.mul(p, self.power(q, -2))
            case OpKind.MAX:
                return self.largest_of((p, q))
            case OpKind.SELECT:
                return self.mul(p, q) if known.total else self.keep(p, q)
            case OpKind.EQ:
                return self.apply("zero", add(p, q, -1))
            case OpKind.LT:
                return self.apply("negative", add(p, q, -1))
            case OpKind.LE:
                return add(constant(1), self.apply("negative", add(q, p, -1)), -1)
            case OpKind.DIV_NO_NAN:
                return self.mul(p, self.power(q, -2) if known.sign is Sign.POSITIVE else self.apply("inv0", q))
            case _:
                raise ProofIncomplete(f"{kind} has no exact meaning")

    def matmul(self, a: TensorTerm, b: TensorTerm) -> TensorTerm:
        """Return the product over the last two dims; the dims before them broadcast."""
        last = len(a.strings) - 1
        a, b = self.unify(a, b, [*((i, i) for i in range(last - 1)), (last, last - 1)])
        lead = (x or y for x, y in zip(a.strings[: last - 1], b.strings[: last - 1], strict=True))
        with self.scope() as uses:
            element = self.sum(self.mul(a.element, b.element), a.strings[last])
        made = self._add_step(("matmul",), (a, b), (*lead, a.strings[last - 1], b.strings[last]), element, uses)
        return self.coarsen(made)

    def scale(self, a: TensorTerm, factor: Fraction) -> TensorTerm:
        """Return the product with a constant."""
        return self._add_step(("scale", factor), (a,), a.strings, scale_polynomial(a.element, factor))

    def offset(self, a: TensorTerm, value: Fraction) -> TensorTerm:
        """Return the sum with a constant."""
        return self._add_step(("offset", value), (a,), a.strings, add(a.element, constant(value)))

    def fold(self, a: TensorTerm, axis: int, kept: int) -> TensorTerm:
        """Return the sum over a dim that keeps the ``kept`` residues of its index."""
        a = self.cut(a, axis, (kept,))
        string = a.strings[axis]
        place = len(string)
        while self.extent_of(string[place:]) < kept:
            place -= 1
        strings = (*a.strings[:axis], string[place:], *a.strings[axis + 1 :])
        with self.scope() as uses:
            element = self.sum(a.element, string[:place])
        return self.coarsen(self._add_step(("sum", axis, kept), (a,), strings, element, uses))

    def largest(self, a: TensorTerm, axis: int) -> TensorTerm:
        """Return the maximum over a dim."""
        strings = (*a.strings[:axis], (), *a.strings[axis + 1 :])
        with self.scope() as uses:
            element = self.max(a.element, a.strings[axis])
        return self.coarsen(self._add_step(("max", axis), (a,), strings, element, uses))

    def running(self, a: TensorTerm, axis: int, kind: FactorKind) -> TensorTerm:
        """Return the running maximum over a dim and all iterations so far, or the rescaling factor of each iteration.

        In a loop of one iteration the rescaling factor is 0: there is no state yet.
        """
        name = "running_max" if kind == FactorKind.PMAX else "carry"
        loop = a.strings[LOOP_AXIS]
        if len(loop) > 1:
            raise ProofIncomplete("a running maximum over a loop whose index is split")
        strings = (*a.strings[:axis], (), *a.strings[axis + 1 :])
        if not loop:
            with self.scope() as uses:
                element = self.max(a.element, a.strings[axis]) if kind == FactorKind.PMAX else ()
            return self._add_step((name, axis), (a,), strings, element, uses)
        u = self.fresh(self.extent[loop[0]])
        with self.scope() as uses:
            inner = self.change(a.element, make_renaming(((loop[0], u),)))
            element = self.prefix(kind, (0, ((1, loop[0]),)), u, a.strings[axis], inner)
        return self._add_step((name, axis, u), (a,), strings, element, uses)

    def rescaled(self, x: TensorTerm, carry: TensorTerm) -> TensorTerm:
        """Return the state after the loop of s = s * carry + x, by telescoping.

        Sound: carry is exp(m_{t-1} - m_t) for a running maximum m and nothing else, so the products of later carries
        telescope to exp(m_t - m_last).
        """
        x, carry = self.unify(x, carry, [(i, i) for i in range(len(x.strings))])
        joined = [s or c for s, c in zip(x.strings, carry.strings, strict=True)]
        if not joined[LOOP_AXIS]:
            return self._add_step(("rescaled",), (x, carry), joined, x.element, known=x.fact)
        f = self.alone(carry.element, FactorKind.CARRY)
        loop = carry.strings[LOOP_AXIS]
        if f is None or len(loop) != 1 or self.payload[f][0] != (0, ((1, loop[0]),)):
            raise ProofIncomplete("the factor of a rescaling accumulator is not that of a running maximum")
        index, u, digits, p = self.payload[f]
        strings = (*joined[:LOOP_AXIS], (), *joined[LOOP_AXIS + 1 :])
        with self.scope() as uses:
            now = self.prefix(FactorKind.PMAX, index, u, digits, p)
            last = self.max(p, (u, *digits))
            weight = self.exp(add(now, last, -1))
            element = self.sum(self.mul(x.element, weight), loop)
        return self.coarsen(self._add_step(("rescaled",), (x, carry), strings, element, uses))

    # --- layout ------------------------------------------------------------------------------------------------

    def reshape(self, a: TensorTerm, shape: Shape) -> TensorTerm:
        """Return the same elements in row-major order with other dims."""
        if shape == self.shape(a):
            return a
        try:
            return self._regrouped(a, shape)
        except UnnestedDigits:
            # Digits of several dims may make up one number.
            flat = (prod(shape),)
            if flat in (shape, self.shape(a)):
                raise
            return self._regrouped(self._regrouped(a, flat), shape)

    def _regrouped(self, a: TensorTerm, shape: Shape) -> TensorTerm:
        old = self.shape(a)
        # Cuts of the new shape that fall inside an old dim, and the old dims' own boundaries.
        ends = {1}
        below = 1
        for n in reversed(shape):
            below *= n
            ends.add(below)
        inner = 1
        for axis in range(len(old) - 1, -1, -1):
            wanted = {e // inner for e in ends if inner < e < inner * old[axis] and e % inner == 0}
            if any(inner < e < inner * old[axis] and e % inner for e in ends):
                raise UnnestedDigits(f"a reshape of {list(old)} to {list(shape)} regroups indices that do not nest")
            a = self.cut(a, axis, wanted)
            inner *= old[axis]
        digits = [d for string in a.strings for d in string]
        strings: list[String] = []
        for n in reversed(shape):
            string: list[int] = []
            size = 1
            while size < n:
                if not digits or n % (size * self.extent[digits[-1]]):
                    raise UnnestedDigits(f"a reshape of {list(old)} to {list(shape)} regroups indices that do not nest")
                string.insert(0, digits.pop())
                size *= self.extent[string[0]]
            strings.insert(0, tuple(string))
        made = self._add_step(("reshape", tuple(shape)), (a,), strings, a.element)
        return self.coarsen(made)

    def transpose(self, a: TensorTerm, perm: Sequence[int]) -> TensorTerm:
        """Return the tensor with dims permuted."""
        return self._add_step(("transpose", tuple(perm)), (a,), (a.strings[i] for i in perm), a.element)

    def repeat(self, a: TensorTerm, axis: int, times: int) -> TensorTerm:
        """Return the tensor with a dim of extent 1 repeated."""
        if times == 1:
            return a
        digit = self.fresh(times)
        strings = (*a.strings[:axis], (digit,), *a.strings[axis + 1 :])
        return self._add_step(("repeat", axis, digit), (a,), strings, a.element)

    def slice(self, a: TensorTerm, axis: int, start: int, length: int) -> TensorTerm:
        """Return ``length`` elements of a dim from ``start``."""
        if start == 0 and length == self.extent_of(a.strings[axis]):
            return a
        return self._slice(self.cut(a, axis, self._block(a, axis, start, length)), axis, start, length)

    def _block(self, a: TensorTerm, axis: int, start: int, length: int) -> tuple[int, ...]:
        """Return the strides to cut at so that the slice is a box of digits; none in a dim of one digit."""
        return () if len(a.strings[axis]) == 1 or start % length else (length,)

    def _slice(self, a: TensorTerm, axis: int, start: int, length: int) -> TensorTerm:
        string = a.strings[axis]
        place = len(string)
        while self.extent_of(string[place:]) < length:
            place -= 1
        low = string[place:]
        base = self.extent_of(low)
        if length == base and start % base == 0:
            inner = tuple(self.fresh(self.extent[d]) for d in low)
            indices: dict[int, Index] = {d: (0, ((1, e),)) for d, e in zip(low, inner, strict=True)}
            rest = start // base
        elif len(string) - place == 1 and start % base + length <= base:
            inner = (self.fresh(length),) if length > 1 else ()
            indices = {low[0]: (start % base, tuple((1, e) for e in inner))}
            rest = start // base
        else:
            raise UnnestedDigits(f"elements {start}..{start + length - 1} do not nest with the indices of their dim")
        for d in reversed(string[:place]):
            indices[d] = (rest % self.extent[d], ())
            rest //= self.extent[d]
        change = DigitSubstitution(affine=tuple(sorted(indices.items())))
        strings = (*a.strings[:axis], inner, *a.strings[axis + 1 :])
        pairs = tuple((d, indices[d]) for d in string)
        return self.coarsen(self._moved(("slice", axis, start, inner, pairs), a, strings, change))

    def final(self, a: TensorTerm) -> TensorTerm:
        """Return the tensor with digits named by dim and stride, for the comparison of outputs."""
        a = self.coarsen(a)
        names: dict[int, int] = {}
        for axis, string in enumerate(a.strings):
            below = 1
            for d in reversed(string):
                names[d] = self.named(self.extent[d], "output", axis, below)
                below *= self.extent[d]
        return self.rename(a, names)


__all__ = ["ProofStep", "String", "TensorTerm", "TensorTerms"]

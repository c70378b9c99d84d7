"""Faults seeded into the prover, each of which makes it prove something false; pairs on which it does so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mirage_formal import BlockBuilder, BlockTensor
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality import (
    canonical_reductions,
    facts,
    index_substitution,
    polynomials,
    prove,
    tensor_terms,
)
from mirage_formal.prove.equality.index_substitution import Affine, DigitSubstitution, Folds
from tests.kit.proofs import claims

Patch = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, Patch] = {}


def fault(patch: Patch) -> Patch:
    FAULTS[patch.__name__] = patch
    return patch


@fault
def a_lost_loop_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digit that does not occur no longer multiplies a sum by its extent."""
    monkeypatch.setattr(canonical_reductions, "prod", lambda values: 1)


@fault
def the_root_of_a_square_is_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polynomials.TermInterner, "nonnegative", lambda self, f, e2: True)


@fault
def a_wrong_power_of_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(a)^-1 is taken for exp(a)."""
    right = polynomials.TermInterner._special

    def wrong(
        self: polynomials.TermInterner, items: dict[int, int], special: list[int], extra: list[polynomials.Polynomial]
    ) -> polynomials.Rational:
        for f in special:
            if self.kind[f] == polynomials.FactorKind.EXP and items[f] < 0:
                items[f] = -items[f]
        return right(self, items, special, extra)

    monkeypatch.setattr(polynomials.TermInterner, "_special", wrong)


@fault
def an_exponent_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polynomials.TermInterner, "_times", lambda self, a, b: self.product({**dict(a), **dict(b)}))


@fault
def a_split_with_its_digits_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DigitSubstitution

    def wrong(affine: Affine = (), folds: Folds = ()) -> DigitSubstitution:
        if len(affine) == 1 and len(affine[0][1][1]) == 2:
            ((digit, (offset, ((stride, hi), (one, lo)))),) = affine
            affine = ((digit, (offset, polynomials.make_index(0, ((stride, lo), (one, hi)))[1])),)
        return right(affine, folds)

    monkeypatch.setattr(tensor_terms, "DigitSubstitution", wrong)


@fault
def the_other_residues_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold to dimx keeps the high digits of the index instead of the low ones."""
    right = tensor_terms.TensorTerms.fold

    def wrong(
        self: tensor_terms.TensorTerms, a: tensor_terms.TensorTerm, axis: int, kept: int
    ) -> tensor_terms.TensorTerm:
        if kept > 1:
            turned = self.cut(a, axis, (self.extent_of(a.strings[axis]) // kept,))
            string = turned.strings[axis]
            place = 0
            while self.extent_of(string[:place]) < kept:
                place += 1
            strings = (*turned.strings[:axis], string[place:] + string[:place], *turned.strings[axis + 1 :])
            a = tensor_terms.TensorTerm(turned.step, strings, turned.element)
        return right(self, a, axis, kept)

    monkeypatch.setattr(tensor_terms.TensorTerms, "fold", wrong)


@fault
def a_forgotten_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tensor_terms.TensorTerms,
        "offset",
        lambda self, a, value: self._add_step(("offset", value), (a,), a.strings, a.element),
    )


@fault
def outputs_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "multiplier", lambda terms, p, q: ())


@fault
def nothing_left_after_any_multiplication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polynomials.TermInterner, "times", lambda self, p, m: ())


@fault
def sums_of_two_terms_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of a sum of terms keeps only the first."""
    right = canonical_reductions.BinderTerms.sum
    monkeypatch.setattr(
        canonical_reductions.BinderTerms, "sum", lambda self, p, digits: right(self, p[:1] if digits else p, digits)
    )


@fault
def a_product_summed_factor_by_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors that share a bound digit are taken for independent ones."""

    def wrong(
        self: canonical_reductions.BinderTerms, bound: frozenset[int], m: polynomials.Monomial, outside: dict[int, int]
    ) -> list[tuple[set[int], dict[int, int]]]:
        groups: list[tuple[set[int], dict[int, int]]] = []
        for f, e in m:
            digits = set(self.free[f] & bound)
            if digits:
                groups.append((digits, {f: e}))
            else:
                outside[f] = e
        return groups

    monkeypatch.setattr(canonical_reductions.BinderTerms, "_components", wrong)


@fault
def a_rescaling_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a rescaling accumulator is taken for the plain sum."""

    def rescaled(
        self: tensor_terms.TensorTerms, x: tensor_terms.TensorTerm, carry: tensor_terms.TensorTerm
    ) -> tensor_terms.TensorTerm:
        self.exp = lambda p: polynomials.constant(1)  # type: ignore[method-assign]
        try:
            return rescaling(self, x, carry)
        finally:
            del self.exp

    rescaling = tensor_terms.TensorTerms.rescaled
    assert callable(tensor_terms.TensorTerms.exp)
    monkeypatch.setattr(tensor_terms.TensorTerms, "rescaled", rescaled)


@fault
def a_maximum_taken_for_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_reductions.BinderTerms, "max", canonical_reductions.BinderTerms.sum)


@fault
def a_slice_that_starts_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tensor_terms.TensorTerms._slice
    monkeypatch.setattr(
        tensor_terms.TensorTerms, "_slice", lambda self, a, axis, start, length: right(self, a, axis, 0, length)
    )


@fault
def an_inverse_taken_for_a_quotient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divisor of a division without NaN is never 0."""
    monkeypatch.setattr(index_substitution.SubstitutionTerms, "_inverse", lambda self, p: self.power(p, -2))


@fault
def everything_out_of_an_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be 0 comes out of an inverse as exponentials do."""
    right = index_substitution.SubstitutionTerms._inverse

    def wrong(self: index_substitution.SubstitutionTerms, p: polynomials.Polynomial) -> polynomials.Polynomial:
        return self.power(p, -2) if len(p) == 1 else right(self, p)

    monkeypatch.setattr(index_substitution.SubstitutionTerms, "_inverse", wrong)


@fault
def negative_without_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether something is negative is taken for the same of its negative."""
    right = index_substitution.SubstitutionTerms.apply

    def wrong(
        self: index_substitution.SubstitutionTerms, name: str, p: polynomials.Polynomial
    ) -> polynomials.Polynomial:
        return right(self, name, polynomials.scale_polynomial(p, -1) if name == "negative" and p and p[0][1] < 0 else p)

    monkeypatch.setattr(index_substitution.SubstitutionTerms, "apply", wrong)


@fault
def a_rounding_taken_for_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    right = index_substitution.SubstitutionTerms.apply
    monkeypatch.setattr(
        index_substitution.SubstitutionTerms,
        "apply",
        lambda self, name, p: p if name.startswith("round") else right(self, name, p),
    )


@fault
def masks_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection is taken for the value that it may choose."""
    right = tensor_terms.TensorTerms._binary

    def wrong(
        self: tensor_terms.TensorTerms,
        kind: OpKind,
        p: polynomials.Polynomial,
        q: polynomials.Polynomial,
        known: facts.TensorFacts,
    ) -> polynomials.Polynomial:
        return q if kind is OpKind.SELECT else right(self, kind, p, q, known)

    monkeypatch.setattr(tensor_terms.TensorTerms, "_binary", wrong)


def _rescaled(t: BlockBuilder, x: BlockTensor) -> claims.Saved:
    _, moved = t.reduction_max(x, 1)
    factor = t.exp(moved)
    return t.forloop_accum_rescale(x, factor), claims.on()


#: Wrong pairs that only one of the faults above mistakes for equal.
AIMED = {
    "division by exp": claims.pair(
        {"X": (2, 3), "Y": (2, 3)}, lambda g, x, y: x / g.exp(y), lambda g, x, y: x * g.exp(y)
    ),
    "maximum": claims.pair({"X": (2, 3)}, lambda g, x: g.max(x, 1), lambda g, x: g.reduction(x, 1)),
    "lost term": claims.pair(
        {"X": (2, 3), "Y": (2, 3)}, lambda g, x, y: g.reduction(x + y, 1), lambda g, x, y: g.reduction(x, 1)
    ),
    "concatenated the other way round": claims.pair(
        {"X": (2, 3), "Y": (2, 3), "W": (6, 4)},
        lambda g, x, y, w: g.concat(x, y, 1) @ w,
        lambda g, x, y, w: g.concat(y, x, 1) @ w,
    ),
    "rescaled": claims.pair(
        {"X": (2, 6)},
        lambda g, x: g.reduction(g.reshape(x, 2, 3, 2), 1),
        lambda g, x: g.reshape(claims.kernel(g, (1,), [(x, claims.on(), 1)], _rescaled, loop=3), 2, 1, 2),
    ),
    "sums of halves": claims.pair(
        {"X": (2, 4)},
        lambda g, x: g.reshape(g.reduction(g.reshape(x, 2, 2, 2), 1), 2, 2),
        lambda g, x: g.concat(g.reduction(g.slice(x, 1, 0, 2), 1), g.reduction(g.slice(x, 1, 2, 4), 1), 1),
    ),
}
CASES = [(c.name, *c.tiny()) for c in claims.load("refute")] + [(name, *pair) for name, pair in AIMED.items()]


@contextmanager
def faulty(name: str) -> Iterator[Callable[[KernelGraph, KernelGraph], bytes | None]]:
    """The prover with a fault: what it says is a proof of a pair, or None if it claims none or crashes."""

    def proof(program: KernelGraph, candidate: KernelGraph) -> bytes | None:
        try:
            verdict = prove.prove(program, candidate)
        except (AssertionError, KeyError, ValueError, TypeError, IndexError, StopIteration):
            return None
        return verdict.proof if isinstance(verdict, Equivalent) else None

    with pytest.MonkeyPatch.context() as monkeypatch:
        FAULTS[name](monkeypatch)
        yield proof

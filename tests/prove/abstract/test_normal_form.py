"""Normal forms: invariant under the axioms, faithful to what they forget, and sized as profiles say."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.logic.session import SubexpressionAnswer
from mirage_formal.logic.terms import add, div, mul, sum_, unary, var
from mirage_formal.prove.abstract.certifying_normalizer import Normaliser
from mirage_formal.prove.abstract.normal_form import ONE, NormalForms
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle, _Profiles
from tests.kit.proofs.expressions import random_rewriting, random_term

SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(SEEDS)
def test_invariant_under_random_rewriting(seed: int) -> None:
    rng = random.Random(seed)
    e = random_term(rng, 4)
    forms = NormalForms()
    other = random_rewriting(rng, e, 12)
    assert forms.of(e) == forms.of(other)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SEEDS)
def test_answers_are_invariant_under_random_rewriting(seed: int) -> None:
    rng = random.Random(seed)
    target, e = random_term(rng, 4), random_term(rng, 2)
    oracle = NormalFormOracle([target])
    moved = NormalFormOracle([random_rewriting(rng, target, 8)])
    assert oracle.contains(e) is moved.contains(random_rewriting(rng, e, 4))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SEEDS)
def test_the_rewriting_normaliser_agrees_with_the_tables(seed: int) -> None:
    rng = random.Random(seed)
    forms = NormalForms()
    a, b = random_term(rng, 3), random_term(rng, 3)
    b = random_rewriting(rng, a, 6) if rng.random() < 0.5 else b
    proof = Normaliser()
    assert (forms.of(a) == forms.of(b)) is (proof.normalise(a) is proof.normalise(b))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SEEDS)
def test_back_to_a_term_and_again(seed: int) -> None:
    forms = NormalForms()
    p = forms.of(random_term(random.Random(seed), 4))
    assert forms.of(forms.term(p)) == p


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SEEDS)
def test_profiles_measure_without_multiplying_out(seed: int) -> None:
    e = random_term(random.Random(seed), 4)
    forms, profile = NormalForms(), _Profiles().of(e)
    polynomial = forms.polynomials[forms.of(e)]
    assert profile.size == sum(c for _, c in polynomial)
    below = [forms.monomials[m][2] for m, _ in polynomial]
    assert profile.below == max(max(1, sum(c for _, c in forms.polynomials[d])) for d in below)
    # At most the true width, so that rejecting by it is sound.
    assert profile.widest <= forms.widest(forms.of(e))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SEEDS)
def test_contexts_contain_and_containment_is_transitive(seed: int) -> None:
    rng = random.Random(seed)
    x, y = random_term(rng, 2), random_term(rng, 2)
    whole = rng.choice((add(x, y), mul(y, x), div(x, y), div(y, x), sum_(3, x), unary("exp", x)))
    around = rng.choice((add(y, whole), mul(whole, y), sum_(2, div(whole, y)), unary("sqrt", whole)))
    assert NormalFormOracle([whole]).contains(x) is SubexpressionAnswer.PROVED
    assert NormalFormOracle([around]).contains(x) is SubexpressionAnswer.PROVED


def test_denominators_multiply_in_profiles() -> None:
    a, b, c, d = (var(n) for n in "abcd")
    profile = _Profiles().of(div(div(a, add(a, b)), add(c, add(c, d))))
    assert (profile.size, profile.below, profile.widest) == (1, 6, 6)
    profile = _Profiles().of(mul(div(add(a, c), add(a, b)), div(d, add(c, d))))
    assert (profile.size, profile.below, profile.widest) == (2, 4, 4)


def test_parts_of_normal_forms() -> None:
    forms = NormalForms()
    x, y = var("x"), var("y")
    p = forms.of(div(sum_(4, mul(x, sum_(3, x))), y))
    (((m, count),)) = forms.polynomials[p]
    n, atoms, below = forms.monomials[m]
    assert (count, n, len(atoms)) == (1, 12, 2)
    assert below == forms.of(y) != ONE
    assert forms.of(add(x, x)) != forms.of(sum_(2, x))
    assert forms.of(div(div(x, y), x)) == forms.of(div(x, mul(x, y)))

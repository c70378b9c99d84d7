"""Constants as users write them, in scales, under roots and as eps: proved and replayed, whatever their factors are."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import isqrt, prod

import hypothesis
import hypothesis.strategies as st
import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.sympy_crosscheck import SympyAnswer, crosscheck_theorem
from mirage_formal.graph.formats.json import from_json, to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.equality.radicals import SquareRoots, coprime_base
from tests.kit.proofs.claims import pair, program
from tests.kit.sampling import share
from tests.prove.equality.constant_forms import EXTREME, FORMS, NATURAL, samples, written

#: What is proved in less than a hundredth of a second.
SMALL = tuple(sample for sample in samples() if not sample.name.startswith("decoder_layer"))


def proved(left: KernelGraph, right: KernelGraph, where: object = "") -> bytes:
    """The proof, replayed."""
    verdict = prove(left, right)
    assert isinstance(verdict, Equivalent), (where, verdict)
    replay(left, right, verdict.proof)
    return verdict.proof


def test_there_are_24_natural_constants_and_all_examples() -> None:
    assert len(NATURAL) == len(set(NATURAL.values())) == 24
    assert len(samples()) == 24
    assert NATURAL["1/sqrt(128)"] == Fraction(8838834764831845, 10**17)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("constant", NATURAL)
def test_natural_constants_are_proved_in_every_example(constant: str, form: str) -> None:
    turn = list(NATURAL).index(constant) + list(FORMS).index(form)
    for sample in share(SMALL, 3, turn):  # each example with each constant, in one form of three
        here, there = (written(sample.graph, form, NATURAL[constant], other=other) for other in (False, True))
        proved(here, there, sample.name)
        proved(here, here, sample.name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("constant", EXTREME)
def test_every_float_is_a_rational_like_any_other(constant: str, form: str) -> None:
    for sample in SMALL[::4]:
        here, there = (written(sample.graph, form, EXTREME[constant], other=other) for other in (False, True))
        assert from_json(to_json(here)) == here
        assert len(proved(here, there, sample.name)) <= 60_000


def test_a_decoder_layer_with_its_scale_is_proved() -> None:
    (layer,) = (sample for sample in samples() if sample.name == "decoder_layer")
    here, there = (written(layer.graph, "scale", NATURAL["1/sqrt(128)"], other=other) for other in (False, True))
    proved(here, there)


@pytest.mark.parametrize("constant", [0.08838834764831845, 0.3333333333333333, 9.999999747378752e-06, 5e-324])
def test_a_norm_of_a_scaled_tensor(constant: float) -> None:
    scaled = program({"X": (4, 64)}, lambda g, x: g.rms_norm(x * constant))
    proved(scaled, scaled)
    proved(scaled, program({"X": (4, 64)}, lambda g, x: g.rms_norm(x)))
    small = program({"X": (4, 64)}, lambda g, x: g.rms_norm(x, eps=constant))
    proved(small, small)
    assert isinstance(prove(small, scaled), Unknown)
    other = program({"X": (4, 64)}, lambda g, x: g.rms_norm(x * (constant * 2)))
    assert isinstance(prove(program({"X": (4, 64)}, lambda g, x: x * constant), other), Unknown)


#: Products of primes that no one factors: 60 and 61 digits.
P, Q, R = 10**60 + 7, 10**60 + 49, 10**61 + 51


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda g, x: g.sqrt(g.scale(x, P * P * Q)), lambda g, x: g.scale(g.sqrt(g.scale(x, Q)), P)),
        (
            lambda g, x: g.sqrt(g.scale(x, P * Q)) * g.sqrt(x),
            lambda g, x: g.sqrt(g.scale(x, P)) * g.sqrt(g.scale(x, Q)),
        ),
        (
            lambda g, x: g.sqrt(g.scale(x, P * Q)) * g.sqrt(g.scale(x, Q * R)) * g.sqrt(g.scale(x, P * R)),
            lambda g, x: g.scale(g.sqrt(x) * x, P * Q * R),
        ),
        (
            lambda g, x: g.sqrt(g.scale(x, Fraction(P, Q))) * g.sqrt(g.scale(x, Fraction(Q, R))),
            lambda g, x: g.scale(g.sqrt(g.scale(x, Fraction(R, P))) * g.sqrt(x), Fraction(P, R)),
        ),
    ],
)  # fmt: skip
def test_roots_of_products_that_cannot_be_factored(left: Callable[..., Tensor], right: Callable[..., Tensor]) -> None:
    here, there = pair({"X": (2, 3)}, left, right)
    theorem = replay(here, there, proved(here, there))
    assert [one.answer for one in crosscheck_theorem(theorem)] == [SympyAnswer.CONFIRMED] * len(theorem.closings)
    wrong = program({"X": (2, 3)}, lambda g, x: g.scale(left(g, x), Fraction(P, P + 2)))
    assert isinstance(prove(here, wrong), Unknown)


def test_coefficients_beyond_all_floats_are_unknown_but_equal_themselves() -> None:
    def power(times: int) -> Callable[..., Tensor]:
        def body(g: Graph, x: Tensor) -> Tensor:
            for _ in range(times):
                x = g.square(x)
            return x

        return body

    def tiny(g: Graph, x: Tensor) -> Tensor:
        return power(5)(g, g.scale(x, 1e-308))

    def other(g: Graph, x: Tensor) -> Tensor:
        return g.scale(power(5)(g, x), 1e-308)

    left, right = pair({"X": (2, 3)}, tiny, other)
    proved(left, left)
    verdict = prove(left, right)
    assert isinstance(verdict, Unknown)
    assert "bits" in verdict.reason


numbers = st.lists(st.sampled_from([2, 3, 5, 6, 997, 1009, 1013, 10007, 1009 * 1013, P, Q, P * Q]), max_size=6).map(
    prod
)


@hypothesis.given(st.lists(numbers, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_roots_have_one_form(found: list[int], rng: random.Random) -> None:
    """Of all products of the numbers: the root of a product has the form of the product of the roots."""
    radicals = SquareRoots()
    while True:
        for n in found:
            radicals.split(n)
        better = radicals.refined()
        if better is None:
            break
        radicals = better
    complete = SquareRoots(radicals.table())
    for _ in range(10):
        chosen = [rng.choice(found) for _ in range(rng.randint(1, 5))]
        s, r = complete.split(prod(chosen))
        assert s * s * r == prod(chosen)
        outside, under = 1, 1
        for n in chosen:
            k, rest = complete.split(n)
            step, under = complete.split(under * rest)
            outside *= k * step
        assert (outside, under) == (s, r)
        assert r == 1 or isqrt(r) ** 2 != r


@hypothesis.given(st.lists(st.integers(1, 10**30), max_size=8))
def test_common_divisors_are_taken_apart(found: list[int]) -> None:
    bases = coprime_base(found)
    for n in found:
        for base in bases:
            while n % base == 0:
                n //= base
        assert n == 1
    for i, base in enumerate(bases):
        assert isqrt(base) ** 2 != base
        assert all(coprime_base((base, other)) == tuple(sorted((base, other))) for other in bases[:i])

"""Elements in other forms: what is equal case by case of masks is proved, and what a selection discards stays so."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.check.proof import ring
from mirage_formal.check.proof.ring import BUDGET
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.prove.equality import proof_writer
from mirage_formal.prove.equality.index_substitution import DigitSubstitution
from mirage_formal.prove.equality.polynomials import ManyMembers, constant, freeze
from mirage_formal.prove.equality.proof_writer import replay_work
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.equality.tensor_terms import TensorTerms
from tests.kit.proofs.claims import Mask, Pair, pair

S = (4, 6)
GIVEN = {"X": S, "Y": S, "Z": S, "M": Mask(*S), "N": Mask(*S)}
Body = Callable[[Graph, Tensor, Tensor, Tensor, Tensor, Tensor], object]


def both(left: Body, right: Body) -> Pair:
    return pair(GIVEN, left, right)


def proved(program: KernelGraph, candidate: KernelGraph) -> bool:
    verdict = prove(program, candidate)
    if isinstance(verdict, Equivalent):
        replay_composed(program, candidate, verdict.proof)
    return isinstance(verdict, Equivalent)


EQUAL = {
    "a function that has no value in the other case": both(
        lambda g, x, y, z, m, n: g.exp(g.select(m, g.log(x), y / z)),
        lambda g, x, y, z, m, n: g.select(m, x, g.exp(y / z)),
    ),
    "a selection in a selection of the negated mask": both(
        lambda g, x, y, z, m, n: g.select(m, g.select(g.logical_not(m), y / z, g.log(x)), z),
        lambda g, x, y, z, m, n: g.select(m, g.log(x), z),
    ),
    "a quotient of both branches": both(
        lambda g, x, y, z, m, n: g.select(m, x, y) / z,
        lambda g, x, y, z, m, n: g.select(m, x / z, y / z),
    ),
    "selections of the terms of a sum": both(
        lambda g, x, y, z, m, n: g.select(m, y / z + g.log(x) - 3, 0),
        lambda g, x, y, z, m, n: g.select(m, y / z, 0) - g.select(m, 3 - g.log(x), 0),
    ),
    "a factor that always has a value, selected or not": both(
        lambda g, x, y, z, m, n: g.select(m, g.exp(x) * g.sqrt(y), 0),
        lambda g, x, y, z, m, n: g.exp(x) * g.select(m, g.sqrt(y), 0),
    ),
    "a selection in one branch of a selection of the same quotient": both(
        lambda g, x, y, z, m, n: g.select(g.eq(x / z, 0), x / z, (x / z) / (x / z)),
        lambda g, x, y, z, m, n: g.select(g.eq(x / z, 0), x / z, g.select(g.eq(x / z, 0), x / z, (x / z) / (x / z))),
    ),
    "a comparison of two quotients by one divisor": both(
        lambda g, x, y, z, m, n: g.select(g.gt(x / z * g.exp(y), 0), y, z),
        lambda g, x, y, z, m, n: g.select(g.gt(x / z, 0), y, z),
    ),
    "a comparison with what has a value where the rest has one": both(
        lambda g, x, y, z, m, n: g.select(g.gt(g.exp(g.sqrt(y)) * x / g.sqrt(y), 0), y, z),
        lambda g, x, y, z, m, n: g.select(g.gt(x / g.sqrt(y), 0), y, z),
    ),
    "a quotient by what is 0 everywhere, alone and in a norm": both(
        lambda g, x, y, z, m, n: g.exp(g.layer_norm(x - x, dim=1)),
        lambda g, x, y, z, m, n: g.exp(
            g.div(
                g.scale(x, 2) - x - x - g.mean(y - y, 1),
                g.sqrt(g.mean(g.square(z - z), 1) - g.square(g.mean(z - z, 1))),
            )
        ),
    ),
    "two masks": both(
        lambda g, x, y, z, m, n: g.relu(g.select(m, g.select(n, x, y), z)),
        lambda g, x, y, z, m, n: g.select(n, g.select(m, g.relu(x), g.relu(z)), g.relu(g.select(m, y, z))),
    ),
    "a mask of rows under a sum": both(
        lambda g, x, y, z, m, n: g.reduction(g.exp(g.select(m, x, y)), 1),
        lambda g, x, y, z, m, n: g.reduction(g.select(m, g.exp(x), 0), 1) + g.reduction(g.select(m, 0, g.exp(y)), 1),
    ),
    "a norm of a selection": both(
        lambda g, x, y, z, m, n: g.rms_norm(g.exp(g.select(m, x, y))),
        lambda g, x, y, z, m, n: g.rms_norm(g.select(m, g.exp(x), g.exp(y))),
    ),
    "indices that do not nest, of equal tensors": both(
        lambda g, x, y, z, m, n: g.exp(g.reshape(x + y, 3, 8)),
        lambda g, x, y, z, m, n: g.exp(g.reshape(2 * y + x - y, 3, 8)),
    ),
    "functions before and after a reshape whose indices do not nest": both(
        lambda g, x, y, z, m, n: g.reduction(g.exp(g.reshape(x * y, 3, 8)), 1),
        lambda g, x, y, z, m, n: g.reduction(g.reshape(g.exp(x * y), 3, 8), 1),
    ),
    "functions of a norm before and after a reshape whose indices do not nest": both(
        lambda g, x, y, z, m, n: g.exp(g.reshape(g.rms_norm(x) * 2 + y, 3, 8)) / g.reshape(z, 3, 8),
        lambda g, x, y, z, m, n: g.reshape(g.exp(g.rms_norm(x) + y + g.rms_norm(x)) / z, 3, 8),
    ),
    "a product with a row, reshaped, and a difference of squares": both(
        lambda g, x, y, z, m, n: g.reshape(x * g.reduction(z, 0), 3, 8),
        lambda g, x, y, z, m, n: g.reshape(
            g.scale(g.square(x + g.reduction(z, 0)) - g.square(x - g.reduction(z, 0)), 0.25), 3, 8
        ),
    ),
    "equal norms, each reshaped from another shape": both(
        lambda g, x, y, z, m, n: g.reduction(g.reshape(g.reshape(g.rms_norm(x), 2, 12), 3, 8), 1),
        lambda g, x, y, z, m, n: g.reduction(g.reshape(3 * g.reshape(g.rms_norm(3 * x), 2, 12), 3, 8), 1) / 3,
    ),
    "the largest of parts of what indices do not nest with": both(
        lambda g, x, y, z, m, n: g.max(g.reshape(g.softmax(x, 0), 3, 8), 1),
        lambda g, x, y, z, m, n: g.reshape(
            g.max(g.max(g.reshape(g.reshape(g.softmax(x, 0), 3, 8), 3, 2, 4), 1), 2), 3, 1
        ),
    ),
    "a mean, reshaped, and the same mean of a sum": both(
        lambda g, x, y, z, m, n: g.reshape(g.softmax(g.scale(x + y, 0.5), 1), 3, 8),
        lambda g, x, y, z, m, n: g.reshape(g.softmax((x + y) / 2, 1), 3, 8),
    ),
    "a number of rows and columns that is cut elsewhere": both(
        lambda g, x, y, z, m, n: g.reduction(g.square(g.reshape(g.reshape(x, 8, 3), 2, 12)), 0),
        lambda g, x, y, z, m, n: g.reduction(g.reshape(g.square(x), 2, 12), 0),
    ),
    "parts of rows, reshaped and back": both(
        lambda g, x, y, z, m, n: g.exp(g.reshape(g.reshape(g.concat(x, y, 1), 48), 4, 12)),
        lambda g, x, y, z, m, n: g.concat(g.exp(x), g.exp(y), 1),
    ),
    "a function of parts of rows, reshaped": both(
        lambda g, x, y, z, m, n: g.reshape(g.exp(g.concat(x, y, 1)), 3, 16),
        lambda g, x, y, z, m, n: g.reshape(g.reshape(g.concat(g.exp(x), g.exp(y), 1), 48), 3, 16),
    ),
    "masks of masks": both(
        lambda g, x, y, z, m, n: g.exp(g.select(g.eq(g.select(m, x, 1), 0), y, z)),
        lambda g, x, y, z, m, n: g.select(m, g.select(g.eq(x, 0), g.exp(y), g.exp(z)), g.exp(z)),
    ),
    "a sum of exponentials divided out of what is selected": both(
        lambda g, x, y, z, m, n: g.erf(g.select(m, g.sigmoid(x / z), y)),
        lambda g, x, y, z, m, n: g.select(m, g.erf(1 - g.sigmoid(-x / z)), g.erf(y)),
    ),
    "divisors of either sign": both(
        lambda g, x, y, z, m, n: g.max(x * g.exp(g.select(m, x, y)) / g.exp(g.select(m, x, y)), 1),
        lambda g, x, y, z, m, n: g.max(x, 1),
    ),
}

#: Alike, and not equal at some inputs, or without a value where the program has one.
OTHER = {
    "a comparison of what may have no value": both(
        lambda g, x, y, z, m, n: g.select(g.gt(g.sqrt(x - y), -1), x, z),
        lambda g, x, y, z, m, n: g.relu(x) - g.relu(g.scale(x, -1)),
    ),
    "a comparison with a factor above 0 that may have no value": both(
        lambda g, x, y, z, m, n: g.select(g.gt(x * g.exp(g.sqrt(y)), 0), z, x),
        lambda g, x, y, z, m, n: g.select(g.gt(x, 0), z, x),
    ),
    "a comparison with a common factor of a sum that may have no value": both(
        lambda g, x, y, z, m, n: g.select(g.lt(g.exp(g.log(y) * z) * (x + y), 0), z, x),
        lambda g, x, y, z, m, n: g.select(g.lt(x + y, 0), z, x),
    ),
    "a selected product with a factor that may have no value": both(
        lambda g, x, y, z, m, n: g.select(m, g.log(x) * g.sqrt(y), z),
        lambda g, x, y, z, m, n: g.select(m, g.log(x), z) * g.sqrt(y) + g.select(m, 0, z - z * g.sqrt(y)),
    ),
    "selections of a sum, one by another mask": both(
        lambda g, x, y, z, m, n: g.select(m, y / z + g.log(x), 0),
        lambda g, x, y, z, m, n: g.select(m, y / z, 0) + g.select(n, g.log(x), 0),
    ),
    "a function of the other case": both(
        lambda g, x, y, z, m, n: g.exp(g.select(m, g.log(x), y)),
        lambda g, x, y, z, m, n: g.select(m, x, y),
    ),
    "a selection in a selection of another mask": both(
        lambda g, x, y, z, m, n: g.select(m, g.select(n, x, y), z),
        lambda g, x, y, z, m, n: g.select(m, x, z),
    ),
    "a divisor that is 0 where it is not selected": both(
        lambda g, x, y, z, m, n: g.select(m, x / z, 0),
        lambda g, x, y, z, m, n: g.cast(m, "float16") * (x / z),
    ),
    "a divisor that is 0 where it is not selected, in a function": both(
        lambda g, x, y, z, m, n: g.exp(g.select(m, x / z, 0)),
        lambda g, x, y, z, m, n: g.exp(g.cast(m, "float16") * (x / z)),
    ),
    "a logarithm of what is not selected": both(
        lambda g, x, y, z, m, n: g.select(m, g.log(x), y),
        lambda g, x, y, z, m, n: y + g.cast(m, "float16") * (g.log(x) - y),
    ),
    "indices that do not nest, of other tensors": both(
        lambda g, x, y, z, m, n: g.reshape(x + y, 3, 8),
        lambda g, x, y, z, m, n: g.reshape(x - y, 3, 8),
    ),
    "indices that do not nest in the same way": both(
        lambda g, x, y, z, m, n: g.reshape(x + y, 3, 8),
        lambda g, x, y, z, m, n: g.reshape(g.transpose(y + x, 0, 1), 3, 8),
    ),
    "functions of other elements, before and after a reshape whose indices do not nest": both(
        lambda g, x, y, z, m, n: g.exp(g.reshape(x, 3, 8)),
        lambda g, x, y, z, m, n: g.reshape(g.exp(g.reshape(g.transpose(x, 0, 1), 4, 6)), 3, 8),
    ),
    "a norm of another tensor, reshaped": both(
        lambda g, x, y, z, m, n: g.exp(g.reshape(g.rms_norm(x), 3, 8)),
        lambda g, x, y, z, m, n: g.reshape(g.exp(g.rms_norm(y)), 3, 8),
    ),
    "a norm, reshaped by rows and by columns": both(
        lambda g, x, y, z, m, n: g.exp(g.reshape(g.rms_norm(x), 3, 8)),
        lambda g, x, y, z, m, n: g.exp(g.transpose(g.reshape(g.rms_norm(x), 8, 3), 0, 1)),
    ),
    "a mean of each row, spread and reshaped": both(
        lambda g, x, y, z, m, n: g.reshape(g.softmax(x, 1) + g.mean(y, 1), 3, 8),
        lambda g, x, y, z, m, n: g.reshape(g.softmax(x, 1), 3, 8) + g.mean(g.reshape(y, 3, 8), 1),
    ),
    "a quotient by what is 0 everywhere, of another tensor": both(
        lambda g, x, y, z, m, n: x / (y - y),
        lambda g, x, y, z, m, n: z / (y - y),
    ),
    "parts of rows, reshaped and not back": both(
        lambda g, x, y, z, m, n: g.reshape(g.reshape(g.concat(x, y, 1), 48), 4, 12),
        lambda g, x, y, z, m, n: g.reshape(g.concat(x, y, 0), 4, 12),
    ),
    "a divisor that is 0 where it is not selected, by the sign of what is compared": both(
        lambda g, x, y, z, m, n: g.select(g.gt(x, 0), x / z, 0),
        lambda g, x, y, z, m, n: g.relu(x) / z,
    ),
    "a quotient in an atom that is not selected": both(
        lambda g, x, y, z, m, n: g.select(g.reshape(m, 3, 8), g.exp(g.reshape(x / z, 3, 8)), 0),
        lambda g, x, y, z, m, n: g.cast(g.reshape(m, 3, 8), "float16") * g.exp(g.reshape(x / z, 3, 8)),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_case_by_case(name: str) -> None:
    program, candidate = EQUAL[name]
    assert proved(program, candidate)
    assert proved(candidate, program)


def test_what_no_case_changes_stays() -> None:
    """A power of a divisor that occurs with both signs: the checker once wrote it in another way in each case."""

    def program(g: Graph, x: Tensor) -> tuple[Tensor, Tensor]:
        norm = g.layer_norm(x, dim=0)
        less, below = norm - x, g.sigmoid(norm)
        value = g.square(g.softmax(less / g.reduction(below, 1), 0) + less) + 0.25
        return value, g.select(g.gt(value, 0), g.log(value), below)

    def squares(g: Graph, x: Tensor) -> Tensor:
        value, chosen = program(g, x)
        return g.scale(g.square(chosen + value) - g.square(chosen - value), 0.25)

    assert proved(*pair({"X": (6, 3)}, lambda g, x: program(g, x)[1] * program(g, x)[0], squares))


@pytest.mark.parametrize("name", OTHER)
def test_alike_and_not_equal(name: str) -> None:
    program, candidate = OTHER[name]
    assert not proved(program, candidate)
    assert not proved(candidate, program)


def test_a_mask_that_a_sum_binds_is_another_one() -> None:
    """Of negative(x[d]) summed over d nothing is known in a case of negative(x[d]) for a free d."""
    terms = TensorTerms()
    x = terms.input(0, (3,))
    (d,) = x.strings[0]
    below = terms.apply("negative", x.element)
    total = terms.sum(terms.mul(below, x.element), (d,))
    (mask,) = (f for m, _ in below for f, _ in m)
    (whole,) = (f for m, _ in total for f, _ in m)
    assert terms.masks_in(mask) == {mask}
    assert terms.masks_in(whole) == frozenset()
    assert terms.change(total, DigitSubstitution(cases=((mask, 1),))) == total


def test_a_sum_of_many_maxima_is_unknown_with_a_reason() -> None:
    """Thousands of products with a maximum are opened one after the other, and not one inside the other."""

    def heads(g: Graph, x: Tensor) -> Tensor:
        mask = g.ge(g.square(x), x)
        chosen = g.select(mask, g.exp(g.tanh(g.square(x))), 0)
        share = g.div_no_nan(chosen, g.reduction(chosen, 1))
        rooted = g.select(mask, g.sqrt(g.sigmoid(share) * g.square(share)), 0.375)
        return g.rms_norm(g.layer_norm(rooted, dim=1), dim=1) + rooted

    verdict = prove(*pair({"X": (6, 4)}, lambda g, x: g.square(heads(g, x)), lambda g, x: g.tanh(heads(g, x))))
    assert isinstance(verdict, Unknown)
    assert "the normal forms differ" in verdict.reason


@pytest.mark.parametrize("low", [0, 1])
def test_members_of_a_long_sum_of_maxima_are_too_many(low: int) -> None:
    """However many products a sum has, one with a member that vanishes too: more than 256 are refused, fewer listed."""
    terms = TensorTerms()
    tops = [terms.largest_of((terms.input(n, ()).element, constant(low))) for n in range(600)]
    assert len(terms.members(freeze(dict(t for p in tops[:8] for t in p)))) == 256
    with pytest.raises(ManyMembers):
        terms.members(freeze(dict(t for p in tops for t in p)))


def test_a_logarithm_has_one_form() -> None:
    """What is left when factors are taken out of a logarithm has factors taken out as well, as the checker does it."""

    def norm(g: Graph, x: Tensor) -> Tensor:
        return g.rms_norm(g.minimum(g.tanh(x), -0.375), dim=0, eps=0.375)

    def larger(g: Graph, x: Tensor, y: Tensor) -> object:
        most = g.max(y, dim=0)
        return g.maximum(x, g.select(g.gt(most, 0), g.log(most), most))

    assert proved(
        *pair(
            {"X": (6, 3)},
            lambda g, x: larger(g, x, norm(g, x)),
            lambda g, x: larger(g, x, g.transpose(g.transpose(norm(g, x), (1, 0)), (1, 0))),
        )
    )


def test_equal_operands_of_which_one_is_put_elsewhere() -> None:
    """The norm's sum is 0, and so is what is divided by it, written otherwise: no proof puts both in for one tensor."""

    def quotients(g: Graph, total: Tensor) -> Tensor:
        zero = g.eq(total, 0)
        chosen = g.select(zero, total, g.div(total, total))
        return g.select(zero, chosen, g.div(chosen, total))

    def written(g: Graph, x: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        return g.div(g.sub(x, mean), g.sqrt(g.sub(g.mean(g.square(x), 1), g.square(mean))))

    def program(g: Graph, x: Tensor) -> Tensor:
        return quotients(g, g.reduction(g.layer_norm(g.max(x, dim=0), dim=1), 1))

    def candidate(g: Graph, x: Tensor) -> Tensor:
        return quotients(g, g.reduction(written(g, g.max(x, dim=0)), 1))

    assert proved(*pair({"X": (6, 4)}, program, candidate))


def test_what_is_known_of_a_tensor_without_a_formula_is_what_its_own_operators_show() -> None:
    """max(exp(x), 1) is above 0 by its operators, -min(-exp(x), -1) is not: its logarithm may have no value."""

    def selected(g: Graph, x: Tensor, value: Tensor) -> Tensor:
        regrouped = g.reshape(g.transpose(value, (1, 0)), 4, 3)
        mask, logarithm = g.gt(regrouped, 0), g.log(regrouped)
        return g.select(mask, logarithm, g.select(mask, logarithm, x))

    def positive(g: Graph, x: Tensor) -> Tensor:
        return selected(g, x, g.maximum(g.exp(x), 1))

    def turned(g: Graph, x: Tensor) -> Tensor:
        return selected(g, x, g.scale(g.minimum(g.scale(g.exp(x), -1), -1), -1))

    given = {"X": (4, 3)}
    for left in (positive, turned):
        for right in (positive, turned):
            proved(*pair(given, left, right))
            assert proved(*pair(given, left, left))


def test_half_a_logarithm_in_a_product_of_exponentials() -> None:
    """exp(log(u) / 4)^2 is exp(log(u) / 2), which is the root of |u| where it is made again, as in each case."""

    def chosen(g: Graph, x: Tensor) -> Tensor:
        rounded = g.round_to(x, "float16")
        return g.exp(g.scale(g.select(g.gt(rounded, 0), g.log(rounded), x), Fraction(1, 4)))

    def program(g: Graph, x: Tensor) -> Tensor:
        return g.round_to(g.square(chosen(g, x)), "bfloat16")

    def candidate(g: Graph, x: Tensor) -> Tensor:
        below = g.exp(g.scale(g.square(chosen(g, x)), Fraction(1, 8)))
        return g.round_to(g.square(chosen(g, x)) * below / below, "bfloat16")

    assert proved(*pair({"X": (6, 4)}, program, candidate))


def test_a_proof_is_as_much_work_as_the_checker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the checker counts is at most what the prover expects; beyond the checker's bound nothing is proved."""
    expected: list[int] = []

    def noted(*arguments: Any) -> int:
        expected.append(replay_work(*arguments))
        return expected[-1]

    monkeypatch.setattr(proof_writer, "replay_work", noted)
    assert proof_writer.MAX_REPLAY_WORK <= BUDGET
    program, candidate = EQUAL["a comparison of two quotients by one divisor"]
    verdict = prove(program, candidate)
    assert isinstance(verdict, Equivalent)
    monkeypatch.setattr(ring, "BUDGET", expected[-1])
    replay_composed(program, candidate, verdict.proof)
    monkeypatch.setattr(proof_writer, "MAX_REPLAY_WORK", expected[-1] - 1)
    refused = prove(program, candidate)
    assert isinstance(refused, Unknown)
    assert "more work" in refused.reason

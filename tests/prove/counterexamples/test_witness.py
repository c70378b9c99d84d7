"""Conditions of proofs: those that hold at no input, and which of them are the candidate's alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.check.equivalence import ReplayedTheorem, replay_with_obligations
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.prove.counterexamples import definedness
from mirage_formal.prove.counterexamples.compressed_tensor import CompressedTensor, run_compressed
from mirage_formal.prove.counterexamples.definedness import NEVER, check_conditions
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from mirage_formal.run.verify.certify import UnacceptedCandidate, VerifiedCandidate, verify_by_policy
from mirage_formal.run.verify.policy import Policy
from tests.kit.proofs.claims import Shapes, load, pair

SHAPES = {"X": (4, 6), "Y": (4, 6)}


def never_zero_divisor(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    d = g.relu(g.sub(g.sigmoid(x), g.exp(g.scale(x, 0))))
    return y * d / d


def hidden_zero(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """exp(x) exp(-x) - 1 is 0, and hardly ever in float64."""
    d = g.sub(g.exp(x) * g.exp(g.scale(x, -1)), g.exp(g.scale(x, 0)))
    return y / d * d


def negative_radicand(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    d = g.sqrt(g.sub(g.scale(g.relu(x), -1), g.exp(x)))
    return g.sub(y + d, d)


def shown(
    left: Callable[..., Tensor], right: Callable[..., Tensor], shapes: Shapes | None = None
) -> tuple[ReplayedTheorem, object]:
    program, candidate = pair(shapes or SHAPES, left, right)
    verdict = prove(program, candidate)
    assert isinstance(verdict, Equivalent), verdict
    found = replay_with_obligations(program, candidate, verdict.proof)
    return found, check_conditions(program, candidate, found.doubtful)


@pytest.mark.parametrize("candidate", [never_zero_divisor, negative_radicand])
def test_a_proof_that_holds_nowhere_is_no_proof(candidate: Callable[..., Tensor]) -> None:
    found, answer = shown(lambda g, x, y: g.scale(y, 1), candidate)
    assert found.conditions
    assert answer == Unknown(NEVER)


def test_rounding_is_no_witness() -> None:
    """The divisor is 0 and not 0 in float64; whatever the prover says, no point counts."""
    program, candidate = pair(SHAPES, lambda g, x, y: g.scale(y, 1), hidden_zero)
    assert not isinstance(prove(program, candidate), Equivalent)
    assert check_conditions(program, candidate, True) == Unknown(NEVER)


@pytest.mark.parametrize(
    "candidate",
    [
        lambda g, x, y: y * x / x,
        lambda g, x, y: g.sub(y + g.sqrt(x), g.sqrt(x)),
        lambda g, x, y: g.sub(y + g.sqrt(g.sub(x, y)), g.sqrt(g.sub(x, y))),
        lambda g, x, y: y * g.relu(x) / g.relu(x),
        lambda g, x, y: (
            y * g.relu(g.sub(g.exp(x), g.exp(g.scale(x, 3)))) / g.relu(g.sub(g.exp(x), g.exp(g.scale(x, 3))))
        ),
    ],
)
def test_a_condition_that_holds_somewhere_is_no_obstacle_and_is_reported_as_added(
    candidate: Callable[..., Tensor],
) -> None:
    found, answer = shown(lambda g, x, y: g.scale(y, 1), candidate)
    assert answer is None
    assert set(found.added) == set(found.conditions)


def test_every_right_pair_is_defined_somewhere_at_real_extents_and_adds_nothing() -> None:
    for claim in load("prove"):
        program, candidate = claim.real()
        verdict = prove(program, candidate)
        if isinstance(verdict, Equivalent):
            found = replay_with_obligations(program, candidate, verdict.proof)
            assert found.added == (), claim.name
            assert check_conditions(program, candidate, found.doubtful) is None, claim.name


def test_the_first_point_is_mostly_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a search pays for one evaluation and not for two hundred."""
    tried: list[int] = []

    def counted(*given: Any) -> tuple[CompressedTensor, ...]:
        tried.append(1)
        return run_compressed(*given)

    monkeypatch.setattr(definedness, "run_compressed", counted)
    made = [claim.real() for claim in load("prove") if claim.name.startswith("norm.")]
    for sides in made:
        assert check_conditions(*sides, True) is None
    assert len(tried) <= 2 * len(made) + 10


def test_conditions_that_hold_by_their_form_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definedness, "run_compressed", lambda *given: pytest.fail("nothing is doubtful"))
    found, answer = shown(lambda g, x, y: g.softmax(x, 1) + y, lambda g, x, y: y + g.softmax(x, 1))
    assert found.conditions
    assert not found.doubtful
    assert answer is None


def rms(g: Graph, x: Tensor) -> Tensor:
    return g.sqrt(g.mean(g.square(x), 1))


@pytest.mark.parametrize(
    ("left", "right", "added"),
    [
        (lambda g, x, y: y / x, lambda g, x, y: g.scale(y, 2) / g.scale(x, 2), 0),
        (lambda g, x, y: g.rms_norm(x), lambda g, x, y: x / rms(g, x), 0),
        (lambda g, x, y: y / rms(g, x), lambda g, x, y: y / g.rms_norm(x) * g.rms_norm(x) / rms(g, x), 1),
        (lambda g, x, y: g.scale(x, 1), lambda g, x, y: x * g.exp(y) / g.exp(y), 0),
        (lambda g, x, y: x / y, lambda g, x, y: x * x / y / x, 1),
        (lambda g, x, y: g.sqrt(x), lambda g, x, y: g.sqrt(g.scale(x, 4)) / g.exp(y) * g.scale(g.exp(y), 0.5), 0),
        (lambda g, x, y: g.scale(y, 1), lambda g, x, y: g.sub(y + g.sqrt(x), g.sqrt(x)), 2),
        # The square of a row's norm is not 0 where the norm is not; an element of it may be.
        (lambda g, x, y: y / g.reduction(g.square(x), 1), lambda g, x, y: y * x / x / g.reduction(g.square(x), 1), 1),
    ],
)
def test_what_a_candidate_adds_is_told_by_meaning(
    left: Callable[..., Tensor], right: Callable[..., Tensor], added: int
) -> None:
    found, _ = shown(left, right)
    assert len(found.added) == added, found.added
    assert all(one.startswith("candidate, ") for one in found.added)


def test_another_row_is_another_condition() -> None:
    """Divisors x[i, j] and x[j, i] range over the same values; x[0, j] + x[1, j] and x[i, 0] + x[i, 1] do not."""
    shapes = {"X": (6, 6), "Y": (6, 6)}
    turned, _ = shown(
        lambda g, x, y: y / x, lambda g, x, y: g.transpose(g.transpose(y, 0, 1) / g.transpose(x, 0, 1), 0, 1), shapes
    )
    assert turned.added == ()
    rows, _ = shown(
        lambda g, x, y: y / g.reduction(x, 0),
        lambda g, x, y: y * g.reduction(x, 1) / g.reduction(x, 1) / g.reduction(x, 0),
        shapes,
    )
    assert len(rows.added) == 1


@pytest.mark.parametrize("accept", list(Policy))
def test_no_policy_accepts_what_holds_nowhere(accept: Policy) -> None:
    for candidate, good in ((never_zero_divisor, False), (lambda g, x, y: y * x / x, True)):
        program, graph = pair(SHAPES, lambda g, x, y: g.scale(y, 1), candidate)
        session = FingerprintSession(program, FingerprintSettings(seed=3, rounds=1))
        judged = verify_by_policy(session, graph, accept, replay_with_obligations)
        if good:
            assert isinstance(judged, VerifiedCandidate)
            assert isinstance(judged.verdict, Equivalent)
            assert judged.verdict.added == ("candidate, kernel operator 1: divisor nonzero",)
        else:
            assert isinstance(judged, UnacceptedCandidate)
            assert (judged.kind, judged.reason) == ("unknown", NEVER)

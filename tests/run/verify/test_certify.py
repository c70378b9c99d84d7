"""Policy: what is accepted, on what an equivalent verdict rests, and that a proof is believed only after its replay."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec import structs

from mirage_formal.check.equivalence import ReplayedTheorem
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from mirage_formal.run.tasks import replay_proof
from mirage_formal.run.verify import certify as policy
from mirage_formal.run.verify.certify import UnacceptedCandidate, VerifiedCandidate, verify_by_policy
from mirage_formal.run.verify.policy import Policy
from mirage_formal.support.errors import GraphError
from tests.kit.graphs import workloads as w

K = OpKind
BOTH = pytest.mark.parametrize("accept", list(Policy))


def program(*ops: Op, inputs: int = 2, outputs: tuple[int, ...] | None = None) -> KernelGraph:
    shapes = tuple(w.tensor(f"t{i}", 4, 6) for i in range(inputs))
    return KernelGraph(shapes, ops, outputs or (inputs + len(ops) - 1,))


def session(graph: KernelGraph, seed: int = 5, prime_bits: int = 31) -> FingerprintSession:
    return FingerprintSession(graph, FingerprintSettings(seed=seed, prime_bits=prime_bits))


SQUARE, PRODUCT, SUM = program(w.op(K.SQUARE, 0)), program(w.op(K.MUL, 0, 0)), program(w.op(K.ADD, 0, 0))
#: Equal wherever the program has a value; the prover does not know that, and a fingerprint cannot tell them apart.
_SQUARED = (w.op(K.ADD, 0, 1), w.op(K.MUL, 2, 2))
ROOTS, ROOT = program(*_SQUARED, w.op(K.MUL, 3, 3), w.op(K.SQRT, 4)), program(*_SQUARED)
#: Without a picture in a finite field.
LARGEST = program(w.op(K.MAX, 0, dim=1))
SHIFTED = program(w.op(K.ADD, 0, 1), w.op(K.SUB, 2, 1), w.op(K.MAX, 3, dim=1))
SMALLER = program(w.op(K.SCALE, 0, factor=Fraction(1, 2)), w.op(K.MAX, 2, dim=1))
LARGEST_ROOTS = program(*_SQUARED, w.op(K.MUL, 3, 3), w.op(K.SQRT, 4), w.op(K.MAX, 5, dim=1))
LARGEST_ROOT = program(*_SQUARED, w.op(K.MAX, 3, dim=1))


@BOTH
def test_what_is_proved_is_accepted(accept: Policy) -> None:
    verified = verify_by_policy(session(SQUARE), PRODUCT, accept, replay_proof)
    assert isinstance(verified, VerifiedCandidate)
    assert verified.graph is PRODUCT
    assert isinstance(verified.verdict, Equivalent)
    assert verified.record.verdict == "probable"
    assert isinstance(verified.theorem, ReplayedTheorem)
    assert replay_proof(SQUARE, PRODUCT, verified.verdict.proof) == verified.theorem


@BOTH
def test_conditions_are_those_that_the_kernel_finds(accept: Policy) -> None:
    norm, fused = w.rmsnorm(b=2, k=4, n=4), w.rmsnorm_fused(b=2, k=4, n=4, grid=2, loop=2)
    verified = verify_by_policy(session(norm), fused, accept, replay_proof)
    assert isinstance(verified.verdict, Equivalent)
    said = " ".join(verified.verdict.conditions)
    assert all(part in said for part in ("program", "candidate", "divisor nonzero", "radicand nonnegative"))


@BOTH
def test_what_is_refuted_is_refused_without_a_proof(accept: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "prove", lambda program, candidate, via=(): pytest.fail("it was refuted before"))
    refused = verify_by_policy(session(SQUARE), SUM, accept, replay_proof)
    assert isinstance(refused, UnacceptedCandidate)
    assert refused.kind == "different"
    assert isinstance(refused.verdict, Different)
    assert "expected" in refused.reason


def test_what_is_not_proved_is_accepted_only_on_demand() -> None:
    refused = verify_by_policy(session(ROOTS), ROOT, Policy.EQUIVALENT, replay_proof)
    assert isinstance(refused, UnacceptedCandidate)
    assert refused.kind == "unproved"
    assert isinstance(refused.verdict, Unknown)
    assert refused.reason == refused.verdict.reason != ""
    verified = verify_by_policy(session(ROOTS), ROOT, Policy.PROBABLE, replay_proof)
    assert isinstance(verified, VerifiedCandidate)
    assert isinstance(verified.verdict, Probable)
    assert verified.theorem is None


@BOTH
def test_a_fingerprint_without_an_answer_refuses_nothing_that_is_proved(accept: Policy) -> None:
    verified = verify_by_policy(session(LARGEST), SHIFTED, accept, replay_proof)
    assert isinstance(verified, VerifiedCandidate)
    assert isinstance(verified.verdict, Equivalent)
    assert verified.record.verdict == "unknown"


@pytest.mark.parametrize(("accept", "kind"), [(Policy.EQUIVALENT, "unproved"), (Policy.PROBABLE, "unknown")])
def test_neither_a_fingerprint_nor_a_proof_is_nothing(accept: Policy, kind: str) -> None:
    refused = verify_by_policy(session(LARGEST_ROOTS), LARGEST_ROOT, accept, replay_proof)
    assert isinstance(refused, UnacceptedCandidate)
    assert refused.kind == kind
    assert isinstance(refused.verdict, Unknown)


@BOTH
def test_what_no_fingerprint_refutes_a_counterexample_does(accept: Policy) -> None:
    refused = verify_by_policy(session(LARGEST), SMALLER, accept, replay_proof)
    assert isinstance(refused, UnacceptedCandidate)
    assert refused.kind == "different"
    assert isinstance(refused.verdict, Different)
    assert refused.verdict.counterexample is not None
    assert "counterexample" in refused.reason


@BOTH
@pytest.mark.parametrize("candidate", [ROOT, ROOTS], ids=["another", "the same"])
def test_a_proof_that_the_kernel_refuses_is_worth_nothing(
    accept: Policy, candidate: KernelGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the word of the fingerprint is taken then: something is broken."""
    proof = prove(SQUARE, PRODUCT)
    monkeypatch.setattr(policy, "prove", lambda program, candidate, via=(): proof)
    refused = verify_by_policy(session(ROOTS), candidate, accept, replay_proof)
    assert isinstance(refused, UnacceptedCandidate)
    assert refused.kind == "proof-refused"
    assert "expected" in refused.reason


def test_no_number_of_a_finite_field_is_part_of_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {
        verify_by_policy(session(SQUARE, seed, bits), PRODUCT, Policy.EQUIVALENT, replay_proof).verdict
        for seed, bits in ((0, 20), (1, 31), (2, 24))
    }
    assert len(seen) == 1
    # Nor is that there was one: the same verdict without any.
    blind = session(SQUARE)
    known = blind.check
    monkeypatch.setattr(
        blind, "check", lambda candidate: structs.replace(known(candidate), verdict=Unknown("not asked"))
    )
    assert {verify_by_policy(blind, PRODUCT, Policy.EQUIVALENT, replay_proof).verdict} == seen


def test_other_inputs_are_an_error() -> None:
    with pytest.raises(GraphError, match="inputs of shapes"):
        verify_by_policy(session(SQUARE), program(w.op(K.SQUARE, 0), inputs=1), Policy.EQUIVALENT, replay_proof)

"""The subexpression oracle on the workloads, its certificates, and Z3 asked the paper's way."""

from __future__ import annotations

import random

import pytest

from mirage_formal.logic.axioms import Atom, Binding, instantiate, load_axioms
from mirage_formal.logic.certificate import audit, to_smt2
from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import AxiomSession, Satisfiability, SubexpressionAnswer, discharge
from mirage_formal.logic.terms import Expr, add, const, div, mul, sum_, unary, var
from mirage_formal.prove.abstract import certifying_normalizer, normal_form
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle, Z3Oracle
from tests.kit.proofs.expressions import (
    PARTS,
    STRANGERS,
    WORKLOADS,
    A,
    B,
    W,
    X,
    extents_product,
    query,
    random_term,
)
from tests.kit.sampling import number

#: For what a solver decides at once, on a machine that others use as well.
PATIENCE_MS = 120_000
PARTS_LIST = [(name, e) for name, parts in PARTS.items() for e in parts]
STRANGER_LIST = [(name, e) for name, parts in STRANGERS.items() for e in parts]


@pytest.mark.parametrize(("name", "e"), PARTS_LIST)
def test_parts_of_workloads_are_proved_and_certified(name: str, e: Expr) -> None:
    oracle = NormalFormOracle([WORKLOADS[name]])
    assert oracle.contains(e) is SubexpressionAnswer.PROVED
    certificate = oracle.certificate(e)
    assert certificate is not None
    text = to_smt2(certificate)
    claim = audit(text)
    assert (claim.expression, claim.target) == (e, WORKLOADS[name])
    for result in discharge(parse_script(text)):
        assert result.answer is Satisfiability.UNSAT, result


@pytest.mark.parametrize(("name", "e"), STRANGER_LIST)
def test_strangers_are_refuted(name: str, e: Expr) -> None:
    oracle = NormalFormOracle([WORKLOADS[name]])
    assert oracle.contains(e) is SubexpressionAnswer.REFUTED
    assert oracle.certificate(e) is None


def power(e: Expr, exponent: int) -> Expr:
    out = e
    for _ in range(exponent - 1):
        out = mul(e, out)
    return out


def test_parts_that_stand_in_the_target_need_no_normal_form() -> None:
    """Multiplied out the target has thousands of products; certificates of its parts have a few instances."""
    below = power(add(unary("sqrt", mul(X, X)), const(1)), 2)
    cubed = power(div(const(1), below), 3)
    target = div(const(1), add(power(add(cubed, A), 2), const(1)))
    oracle = NormalFormOracle([target])
    swapped = add(A, mul(mul(div(const(1), below), div(const(1), below)), div(const(1), below)))
    for e in (X, A, below, cubed, add(cubed, A), swapped, target):
        certificate = oracle.certificate(e)
        assert certificate is not None
        assert len(certificate.instances) < 120
        text = to_smt2(certificate)
        assert audit(text).expression is e
        for result in discharge(parse_script(text)):
            assert result.answer is Satisfiability.UNSAT, (e, result)


def test_a_certificate_that_would_be_too_long_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    target, part = mul(add(A, B), add(W, X)), mul(A, W)
    assert NormalFormOracle([target]).certificate(part) is not None
    monkeypatch.setattr(certifying_normalizer, "CERTIFICATE_INSTANCES", 3)
    oracle = NormalFormOracle([target])
    assert oracle.contains(part) is SubexpressionAnswer.PROVED
    assert oracle.certificate(part) is None


def test_no_contradiction_with_quantified_z3() -> None:
    session = AxiomSession()
    rng = random.Random(5)
    questions = [(WORKLOADS[n], e) for n, e in PARTS_LIST[::2] + STRANGER_LIST[::4]]
    while len(questions) < 70:
        target = random_term(rng, 3)
        if extents_product(target) <= 16:
            questions.append((target, query(rng, target)))
    agreed = 0
    for target, e in questions:
        ours, theirs = NormalFormOracle([target]).contains(e), session.ask_bounded(e, target, 300_000)
        assert theirs is SubexpressionAnswer.UNKNOWN or theirs is ours, f"{e} in {target}: {ours}, z3 {theirs}"
        agreed += theirs is ours
    assert agreed >= 40


@pytest.mark.slow
def test_certificates_of_random_positives_are_accepted() -> None:
    rng = random.Random(11)
    accepted = 0
    while accepted < number(120, 400):
        target = random_term(rng, 4)
        oracle = NormalFormOracle([target], max_monomials=12)
        e = query(rng, target)
        certificate = oracle.certificate(e)
        if certificate is None or e is target:
            continue
        text = to_smt2(certificate)
        claim = audit(text)
        assert (claim.expression, claim.target) == (e, target)
        for result in discharge(parse_script(text)):
            assert result.answer is Satisfiability.UNSAT, (result, text)
        accepted += 1


def test_every_axiom_holds_of_the_oracle() -> None:
    """The oracle's relation is a model of the axioms, so it refutes nothing that they prove."""
    rng = random.Random(3)
    axioms = load_axioms()
    seen = dict.fromkeys(axioms.axioms, 0)

    def holds(atom: Atom, binding: Binding) -> bool:
        left, right = instantiate(atom.left, binding), instantiate(atom.right, binding)
        if atom.relation == "=":
            forms = normal_form.NormalForms()
            return forms.of(left) == forms.of(right)
        return NormalFormOracle([right]).contains(left) is SubexpressionAnswer.PROVED

    for _ in range(60):
        for name, axiom in axioms.axioms.items():
            binding: Binding = {
                v: rng.choice((1, 2, 3, 4)) if sort == "Int" else random_term(rng, 2) for v, sort in axiom.variables
            }
            if name == "sub-trans":
                z = random_term(rng, 3)
                y = query(rng, z)
                binding = {"x": query(rng, y), "y": y, "z": z}
            if all(holds(p, binding) for p in axiom.premises):
                assert holds(axiom.conclusion, binding), (name, binding)
                seen[name] += 1
    assert min(seen.values()) >= 10, seen


def test_any_of_several_targets() -> None:
    oracle = NormalFormOracle([WORKLOADS["rms"], WORKLOADS["lora"]])
    for name in ("rms", "lora"):
        for e in PARTS[name]:
            assert oracle.contains(e) is SubexpressionAnswer.PROVED
            certificate = oracle.certificate(e)
            assert certificate is not None
            assert certificate.target in oracle.targets
    e = sum_(16, mul(A, B))
    certificate = oracle.certificate(e)
    assert certificate is not None
    assert certificate.target is WORKLOADS["lora"]
    assert oracle.contains(WORKLOADS["gated"]) is SubexpressionAnswer.REFUTED
    assert NormalFormOracle([]).contains(X) is SubexpressionAnswer.REFUTED


def test_certificates_do_not_depend_on_earlier_questions() -> None:
    target = WORKLOADS["lora"]
    fresh = [NormalFormOracle([target]).certificate(e) for e in PARTS["lora"]]
    used = NormalFormOracle([target])
    for e in (*STRANGERS["lora"], *reversed(PARTS["lora"])):
        used.contains(e)
    assert [used.certificate(e) for e in reversed(PARTS["lora"])] == fresh[::-1]


def test_counters() -> None:
    oracle = NormalFormOracle([WORKLOADS["lora"]])
    assert [oracle.contains(e) for e in (W, W, unary("exp", W), W)].count(SubexpressionAnswer.PROVED) == 3
    assert (oracle.calls, oracle.cache_hits, oracle.unknown) == (4, 2, 0)


def test_constants_are_symbols_without_arithmetic() -> None:
    half, quarter = (var(n) for n in ("half", "quarter"))
    target = mul(const(4), sum_(8, X))
    oracle = NormalFormOracle([target])
    assert oracle.contains(mul(const(4), X)) is SubexpressionAnswer.PROVED
    assert oracle.contains(mul(const(2), X)) is SubexpressionAnswer.REFUTED
    assert oracle.contains(mul(const(2), mul(const(2), X))) is SubexpressionAnswer.REFUTED
    assert oracle.contains(mul(half, quarter)) is SubexpressionAnswer.REFUTED


def test_no_cancellation_and_no_multiplicity_as_sum() -> None:
    assert NormalFormOracle([X]).contains(div(mul(X, W), W)) is SubexpressionAnswer.REFUTED
    assert NormalFormOracle([add(X, X)]).contains(sum_(2, X)) is SubexpressionAnswer.REFUTED
    assert NormalFormOracle([sum_(2, X)]).contains(add(X, X)) is SubexpressionAnswer.REFUTED
    assert NormalFormOracle([add(X, X)]).contains(add(X, X)) is SubexpressionAnswer.PROVED


def test_denominators_are_divided_exactly() -> None:
    a, b, c = (var(n) for n in "abc")
    target = div(X, mul(add(a, b), add(a, c)))
    oracle = NormalFormOracle([target])
    assert oracle.contains(div(X, add(a, b))) is SubexpressionAnswer.PROVED
    assert (
        oracle.contains(div(X, add(add(mul(a, a), mul(a, c)), add(mul(b, a), mul(b, c))))) is SubexpressionAnswer.PROVED
    )
    assert oracle.contains(div(X, add(b, c))) is SubexpressionAnswer.REFUTED
    assert oracle.contains(add(mul(a, a), mul(b, c))) is SubexpressionAnswer.PROVED
    assert oracle.contains(add(mul(a, a), mul(b, b))) is SubexpressionAnswer.REFUTED


@pytest.mark.parametrize("swap", [False, True])
def test_denominators_are_divided_with_their_multiplicities(swap: bool) -> None:
    # Which of a and b leads is up to the valuation, hence both ways.
    a, b = (var("b"), var("a")) if swap else (var("a"), var("b"))
    three = add(a, add(a, b))
    six = add(a, add(b, add(b, add(b, add(b, b)))))
    assert NormalFormOracle([div(X, mul(three, W))]).contains(div(X, three)) is SubexpressionAnswer.PROVED
    assert NormalFormOracle([div(X, mul(six, W))]).contains(div(X, three)) is SubexpressionAnswer.REFUTED
    assert (
        NormalFormOracle([div(X, mul(three, add(W, W)))]).contains(div(X, mul(three, W))) is SubexpressionAnswer.REFUTED
    )


def test_what_is_too_large_is_unknown_and_kept() -> None:
    target = X
    for n in range(14):
        target = mul(target, add(var(f"a{n}"), var(f"b{n}")))
    oracle = NormalFormOracle([target])
    assert oracle.contains(X) is SubexpressionAnswer.UNKNOWN
    assert oracle.certificate(X) is None
    assert oracle.unknown == 1
    # With another target that decides, the answer is known.
    assert NormalFormOracle([target, X]).contains(X) is SubexpressionAnswer.PROVED


def test_a_question_wider_than_the_target_is_refuted_without_multiplying_out() -> None:
    oracle = NormalFormOracle([add(mul(X, W), mul(A, B))])
    e = X
    for _ in range(200):
        e = mul(e, add(X, W))
    assert oracle.contains(e) is SubexpressionAnswer.REFUTED
    assert oracle.contains(div(X, e)) is SubexpressionAnswer.REFUTED
    assert oracle.contains(unary("exp", e)) is SubexpressionAnswer.REFUTED


def test_equal_valuations_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant(random.Random):
        def randrange(self, *args: int) -> int:  # type: ignore[override]
            return 5

    monkeypatch.setattr("mirage_formal.prove.abstract.normal_form.random.Random", Constant)
    a, b, c, d = (var(n) for n in "abcd")
    oracle = NormalFormOracle([div(X, mul(add(a, b), add(c, d)))])
    assert oracle.contains(div(X, add(a, b))) is SubexpressionAnswer.UNKNOWN
    assert oracle.unknown == 1


def test_z3_oracle_keeps_what_it_does_not_know() -> None:
    oracle = Z3Oracle([WORKLOADS["lora"], WORKLOADS["gated"]], timeout_ms=PATIENCE_MS)
    assert oracle.contains(sum_(4096, mul(X, W))) is SubexpressionAnswer.PROVED
    assert oracle.contains(sum_(4096, mul(X, W))) is SubexpressionAnswer.PROVED
    oracle.timeout_ms = 300  # for what is not proved, however long it takes
    assert oracle.contains(mul(A, B)) is not SubexpressionAnswer.REFUTED
    assert (oracle.calls, oracle.cache_hits) == (3, 1)
    strange = oracle.contains(mul(W, unary("exp", A)))
    assert strange is SubexpressionAnswer.UNKNOWN
    assert oracle.unknown >= 1
    certificate = oracle.certificate(sum_(16, mul(A, B)))
    assert certificate is not None
    assert all(r.answer is Satisfiability.UNSAT for r in discharge(parse_script(to_smt2(certificate))))

"""Certificates: accepted when right, refused by the audit when touched, and no more than their instances give."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from mirage_formal.logic import script
from mirage_formal.logic.axioms import load_axioms, parse_axioms
from mirage_formal.logic.certificate import Certificate, Instance, audit, to_smt2
from mirage_formal.logic.session import Satisfiability, discharge
from mirage_formal.logic.terms import Expr, Sum, add, div, mul, sum_, unary, var
from mirage_formal.prove.abstract.certifying_normalizer import Normaliser, certify
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.support.errors import FormatError
from tests.kit.proofs.expressions import PARTS, WORKLOADS

X, Y, Z = var("X"), var("Y"), var("Z")


def certificate_of(name: str, e: Expr) -> Certificate:
    found = NormalFormOracle([WORKLOADS[name]]).certificate(e)
    assert found is not None
    return found


LORA = certificate_of("lora", PARTS["lora"][-2])
TEXT = to_smt2(LORA)


def unsat(text: str) -> bool:
    return all(r.answer is Satisfiability.UNSAT for r in discharge(script.parse_script(text)))


def test_the_text_says_what_it_is() -> None:
    assert "(set-logic QF_UF)" in TEXT
    assert "(set-info :status unsat)" in TEXT
    assert "Abstract claim only" in TEXT
    assert TEXT.count("(check-sat)") == 1
    assert audit(TEXT).instances == len(LORA.instances)


def test_unknown_words_are_not_needed_to_read_it() -> None:
    declared = set(re.findall(r"\(declare-(?:fun|const) (\S+)", TEXT)) | set(re.findall(r"\(define-fun (\S+)", TEXT))
    used = set(re.findall(r"[^\s()]+", "".join(x for x in TEXT.splitlines(True) if x.startswith("(assert"))))
    names = set(re.findall(r":named (\S+?)\)", TEXT))
    assert used - names - declared <= {"assert", "!", "=", "not", "and", "=>", ":named"}


NONSENSE = [
    # An extra assertion that is false by itself.
    TEXT.replace("(check-sat)", "(assert (! (not (= var.X var.X)) :named add-comm.99))\n(check-sat)"),
    TEXT.replace("(check-sat)", "(assert false)\n(check-sat)"),
    TEXT.replace("(check-sat)", "(assert (! (= var.X var.W) :named add-comm.99))\n(check-sat)"),
    # The goal is trivially contradicted.
    TEXT.replace("(assert (! (not (subexpr", "(assert (! (and false (subexpr"),
    # A second goal that is easier.
    TEXT.replace("(check-sat)", "(assert (! (not (subexpr var.X var.X)) :named goal))\n(check-sat)"),
]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_refused_whatever_solvers_say(text: str) -> None:
    assert text != TEXT
    with pytest.raises(FormatError):
        audit(text)


def test_some_nonsense_convinces_solvers() -> None:
    assert unsat(NONSENSE[0])


def swapped(pattern: str, new: str, count: int = 1) -> str:
    text = re.sub(pattern, new, TEXT, count=count)
    assert text != TEXT
    return text


@pytest.mark.parametrize(
    "text",
    [
        # An instance altered.
        swapped(r"\(assert \(! \(= \(mul var\.A", "(assert (! (= (mul var.W"),
        swapped(r"\(assert \(! \(= \(mul ", "(assert (! (= (add "),
        swapped(r":named mul-comm\.", ":named add-comm."),
        swapped(r":named mul-comm\.", ":named no-axiom."),
        swapped(r":named (\S+)\.\d+\)", r":named \1.99)"),
        # The goal altered.
        swapped(r"\(not \(subexpr (\S+) (\S+)\)\)", r"(not (subexpr \1 \1))"),
        swapped(r"\(not \(subexpr (\S+) (\S+)\)\)", r"(not (subexpr \2 \1))"),
        swapped(r"\(not \(subexpr (\S+) (\S+)\)\)", r"(not (subexpr var.X \2))"),
        swapped(r"\(assert \(! \(not .*\n", ""),
        # A definition altered, dropped, or of another sort.
        swapped(r"\(sum\.4096 t", "(sum.2048 t"),
        swapped(r"\(define-fun t0 .*\n", ""),
        swapped(r"\(define-fun t0 \(\) Expr", "(define-fun t0 () Bool"),
        # Commands that a certificate has no use for.
        swapped(r"\(check-sat\)", "(push 1)\n(check-sat)"),
        swapped(r"\(set-logic QF_UF\)", "(set-logic ALL)"),
        swapped(r":status unsat", ":status sat"),
        swapped(r"\(check-sat\)\n", ""),
        TEXT + "(check-sat)\n",
        TEXT + " ",
        TEXT[:-40],
        "",
        swapped(r"var\.X", "|var.X|"),
        swapped(r"\(check-sat\)", '(echo "unsat")'),
    ],
)
def test_tampered_certificates_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        audit(text, "proof/001.smt2")


def test_an_altered_definition_is_another_claim() -> None:
    """In form, but it no longer says what the original says, and it does not follow."""
    text = swapped(r"\(sum\.4096 t5", "(sum.1024 t5")
    assert audit(text).target is not LORA.target
    assert not unsat(text)


def test_the_message_names_file_and_line() -> None:
    with pytest.raises(FormatError) as caught:
        audit(TEXT.replace("Abstract claim only", "Abstract claim  only"), "proof/001.smt2")
    assert caught.value.where == "proof/001.smt2"
    assert "line 1" in caught.value.what


def test_every_flipped_byte_is_refused() -> None:
    rng = random.Random(2)
    data = TEXT.encode()
    for _ in range(300):
        at = rng.randrange(len(data))
        flipped = bytearray(data)
        flipped[at] ^= 1 << rng.randrange(7)
        with pytest.raises(FormatError):
            audit(flipped.decode())


def test_hostile_texts_are_refused_at_once() -> None:
    for text in ("(" * 100_000, "(" * 100_000 + ")" * 100_000, TEXT + "\0", TEXT.replace("t0", "t\u2080")):
        with pytest.raises(FormatError):
            audit(text)


def test_a_certificate_written_for_another_axiom_set_is_refused() -> None:
    weaker = parse_axioms(load_axioms().text.replace("mul-comm", "mul-swap"))
    with pytest.raises(FormatError, match="no axiom has this name"):
        audit(TEXT, axioms=weaker)


def test_instances_are_needed() -> None:
    """Without an instance the text is still in form, but most no longer prove the claim."""
    needed = 0
    for number in range(len(LORA.instances)):
        instances = (*LORA.instances[:number], *LORA.instances[number + 1 :])
        text = to_smt2(replace(LORA, instances=instances))
        audit(text)
        needed += not unsat(text)
    assert needed >= len(LORA.instances) // 2


def test_another_claim_does_not_follow() -> None:
    for wrong in (replace(LORA, expression=mul(X, X)), replace(LORA, target=WORKLOADS["gated"])):
        text = to_smt2(wrong)
        audit(text)
        assert [r.answer for r in discharge(script.parse_script(text))] == [Satisfiability.SAT, Satisfiability.SAT]


def test_a_wrong_instance_is_never_written_as_right() -> None:
    """An instance that binds too little cannot be written; one that binds anything else is still true."""
    with pytest.raises(ValueError, match="zip"):
        to_smt2(Certificate(X, Y, (Instance("mul-comm", (X,)),)))
    text = to_smt2(Certificate(X, Y, (Instance("mul-comm", (X, Y)),)))
    audit(text)
    assert not unsat(text)


def test_chains_must_connect() -> None:
    target = add(mul(X, Y), Z)
    steps = [("sub-mul", {"x": X, "y": Y}), ("sub-add", {"x": mul(X, Y), "y": Z})]
    proof = certify(X, target, steps)  # type: ignore[arg-type]
    assert unsat(to_smt2(proof))
    assert [i.axiom for i in proof.instances][:3] == ["sub-mul", "sub-add", "sub-trans"]
    with pytest.raises(ValueError, match="does not begin"):
        certify(Y, target, steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not end at the target"):
        certify(X, add(mul(X, Y), X), steps)  # type: ignore[arg-type]


def test_reflexive_claims() -> None:
    proof = certify(mul(X, Y), mul(Y, X), [])
    assert proof.instances[0].axiom == "sub-refl"
    assert unsat(to_smt2(proof))


def test_sums_over_one_can_be_written() -> None:
    proof = certify(Sum(1, X), X, [])
    text = to_smt2(proof)
    assert "sum.1" in text
    assert audit(text).expression is Sum(1, X)
    assert unsat(text)


def test_names_that_need_quoting() -> None:
    odd = var("a |b(;\n")
    proof = certify(odd, unary("exp", odd), [("sub-exp", {"x": odd})])
    text = to_smt2(proof)
    assert audit(text).expression is odd
    assert unsat(text)


def test_long_sums_are_normalised_without_recursion_limits() -> None:
    e = X
    for n in range(300):
        e = add(var(f"v{n:03}"), e)
    proof = Normaliser()
    assert proof.normalise(e) is proof.normalise(proof.normalise(e))


def test_normaliser_states_true_instances_only() -> None:
    proof = Normaliser()
    proof.normalise(sum_(4, mul(add(X, Y), div(sum_(3, Z), X))))
    assert {"sum-sum", "sum-mul", "sum-div", "mul-over-add", "mul-div", "div-over-add"} & {
        i.axiom for i in proof.instances
    }
    assert all(i.axiom in load_axioms().axioms for i in proof.instances)

"""The exact prover: what it proves, what it leaves unknown, and that nothing wrong is ever proved."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction

import pytest

from mirage_formal.check.proof.added_conditions import classify_conditions
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.prove.equality.prove import prove
from mirage_formal.support.errors import GraphError
from tests.kit.graphs import workloads as w
from tests.kit.paths import REPOSITORY
from tests.kit.proofs import claims
from tests.kit.proofs.claims import Claim, Shapes

PROVE = claims.load("prove")
REFUTE = claims.load("refute")


@pytest.mark.parametrize("claim", PROVE, ids=lambda c: c.name)
def test_every_claim_of_prove_is_proved(claim: Claim) -> None:
    for program, candidate in (claim.real(), claim.tiny()):
        verdict = prove(program, candidate)
        assert isinstance(verdict, Equivalent), verdict
        assert len(verdict.proof) <= 16_000


@pytest.mark.parametrize("claim", REFUTE, ids=lambda c: c.name)
def test_no_claim_of_refute_is_proved(claim: Claim) -> None:
    for program, candidate in (claim.real(), claim.tiny()):
        assert isinstance(prove(program, candidate), Unknown)
        assert isinstance(prove(candidate, program), Unknown)


def test_there_are_enough_claims() -> None:
    assert len(PROVE) >= 100
    assert len(REFUTE) >= 100


@pytest.mark.parametrize("claim", PROVE[::7], ids=lambda c: c.name)
def test_proofs_work_in_both_directions_and_with_oneself(claim: Claim) -> None:
    program, candidate = claim.tiny()
    assert isinstance(prove(candidate, program), Equivalent)
    assert isinstance(prove(program, program), Equivalent)


def program(inputs: Shapes, *ops: Op) -> KernelGraph:
    sources = tuple(Input(n, DTensor(shape, DType.FLOAT16), row_major(shape)) for n, shape in inputs.items())
    return KernelGraph(sources, ops, (len(sources) + len(ops) - 1,))


def unary(kind: OpKind, operand: int) -> Op:
    return Op(kind, (operand,), Attrs())


def test_the_root_of_a_square_is_not_the_number() -> None:
    x = {"X": (3, 4)}
    rooted = program(x, unary(OpKind.SQUARE, 0), unary(OpKind.SQRT, 1))
    plain = program(x, Op(OpKind.SCALE, (0,), Attrs(factor=1)))  # type: ignore[arg-type]
    assert isinstance(prove(rooted, plain), Unknown)
    four = program(x, unary(OpKind.SQUARE, 0), unary(OpKind.SQUARE, 1), unary(OpKind.SQRT, 2))
    assert isinstance(prove(four, program(x, unary(OpKind.SQUARE, 0))), Equivalent)
    positive = program(x, unary(OpKind.EXP, 0), unary(OpKind.SQUARE, 1), unary(OpKind.SQRT, 2))
    assert isinstance(prove(positive, program(x, unary(OpKind.EXP, 0))), Equivalent)


def test_the_sign_of_a_root_stays_in_it() -> None:
    """Where sqrt(-x) and sqrt(x) both have a value, both are 0; neither has one where the other is above 0."""
    x = {"X": (3, 4)}
    negative = program(x, Op(OpKind.SCALE, (0,), Attrs(factor=Fraction(-1))), unary(OpKind.SQRT, 1))
    assert isinstance(prove(negative, program(x, unary(OpKind.SQRT, 0))), Unknown)


def test_a_root_of_a_product_is_taken_apart_where_a_condition_says_the_signs() -> None:
    """sqrt(x y) = sqrt(x) sqrt(y) needs x >= 0 and y >= 0: the candidate adds both."""
    two = {"X": (3, 4), "Y": (3, 4)}
    together = program(two, Op(OpKind.MUL, (0, 1), Attrs()), unary(OpKind.SQRT, 2))
    apart = program(two, unary(OpKind.SQRT, 0), unary(OpKind.SQRT, 1), Op(OpKind.MUL, (2, 3), Attrs()))
    found = prove(together, apart)
    assert isinstance(found, Equivalent)
    classified = classify_conditions(replay(together, apart, found.proof))
    assert classified.added == tuple(f"candidate, kernel operator {i}: radicand nonnegative" for i in (0, 1))
    # What both sides need counts as added too: normal forms do not say from which graph they have a sign.
    other = prove(apart, together)
    assert isinstance(other, Equivalent)
    assert len(classify_conditions(replay(apart, together, other.proof)).added) == 1
    without = json.loads(found.proof)
    assert without["atoms"] == [[0], [1]]
    without["atoms"] = []
    with pytest.raises(ProofError):
        replay(together, apart, json.dumps(without))
    # Of a product alone, no side condition says the sign of a factor.
    claimed = json.loads(found.proof)
    with pytest.raises(ProofError, match="not negative"):
        replay(together, together, json.dumps(claimed))


def test_an_index_that_does_not_nest_is_unknown_with_a_reason() -> None:
    x = {"X": (6, 4)}
    flat = Op(OpKind.RESHAPE, (0,), Attrs(shape=(4, 6)))
    regrouped = program(x, flat, Op(OpKind.SUM, (1,), Attrs(dim=1)))
    assert isinstance(prove(regrouped, regrouped), Unknown | Equivalent)
    coprime = Op(OpKind.RESHAPE, (0,), Attrs(shape=(5, 3)))
    one = program({"X": (3, 5)}, coprime, Op(OpKind.SCALE, (1,), Attrs(factor=Fraction(2))))
    verdict = prove(one, program({"X": (3, 5)}, coprime, unary(OpKind.EXP, 1)))
    assert isinstance(verdict, Unknown)
    assert "nest" in verdict.reason
    assert isinstance(prove(one, program({"X": (3, 5)}, coprime, Op(OpKind.ADD, (1, 1)))), Equivalent)


def test_a_negative_radicand_is_unknown() -> None:
    negative = program({"X": (2, 3)}, unary(OpKind.SQUARE, 0), Op(OpKind.SUB, (1, 1), Attrs()), unary(OpKind.SQRT, 2))
    assert isinstance(prove(negative, negative), Unknown | Equivalent)


def test_other_inputs_are_a_mistake() -> None:
    with pytest.raises(GraphError, match="expected inputs"):
        prove(w.rmsnorm(b=2, k=4, n=4), w.rmsnorm(b=2, k=4, n=6))
    with pytest.raises(GraphError, match="expected outputs"):
        prove(
            program({"X": (2, 3)}, Op(OpKind.SUM, (0,), Attrs(dim=0))),
            program({"X": (2, 3)}, Op(OpKind.SUM, (0,), Attrs(dim=1))),
        )


_SCRIPT = """
import hashlib
from tests.kit.proofs import claims
from mirage_formal.prove.equality.prove import prove
for claim in claims.load("prove")[::9]:
    print(hashlib.sha256(prove(*claim.real()).proof).hexdigest())
"""


def test_proofs_are_the_same_in_every_process() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            cwd=REPOSITORY,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) > 10

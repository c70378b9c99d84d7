"""Conditions that hold by their form, against the float64 reference on random divisors."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import numpy as np

from mirage_formal.check.proof.added_conditions import classify_conditions
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics import float64_reference
from tests.kit.graphs import workloads as w

K = OpKind
INPUTS = (w.tensor("x", 3, 4), w.tensor("y", 3, 4))
UNARY = (K.ABS, K.EXP, K.SIGMOID, K.SQUARE, K.RECIPROCAL, K.RELU, K.SQRT)
BINARY = (K.ADD, K.MUL, K.SUB, K.DIV)


def divisor(rng: random.Random) -> list[Op]:
    """Operators over both inputs; the last one's result is a divisor."""
    ops: list[Op] = []
    for _ in range(rng.randint(1, 5)):
        a, b = (rng.randrange(2 + len(ops)) for _ in range(2))
        constant = Fraction(rng.choice([-1, 1, 2]), 2)
        shift, scale = Op(K.SHIFT, (a,), Attrs(shift=constant)), Op(K.SCALE, (a,), Attrs(factor=constant))
        ops.append(rng.choice([Op(rng.choice(UNARY), (a,)), Op(rng.choice(BINARY), (a, b)), shift, scale]))
    return ops


def test_what_holds_by_its_form_holds() -> None:
    """Wherever everything before it has a value, a divisor that is not doubtful is not 0."""
    rng, numbers = random.Random(0), np.random.default_rng(0)
    seen = Counter[bool]()
    for _ in range(400):
        ops = divisor(rng)
        last = 1 + len(ops)
        program = KernelGraph(INPUTS, (*ops, Op(K.DIV, (0, last))), (last + 1,))
        again = (*program.ops, Op(K.ADD, (last + 1, last + 1)), Op(K.SUB, (last + 2, last + 1)))
        candidate = KernelGraph(INPUTS, again, (last + 3,))
        found = prove(program, candidate)
        if not isinstance(found, Equivalent):
            continue
        doubtful = (
            f"program, kernel operator {len(ops)}: divisor nonzero"
            in classify_conditions(replay_composed(program, candidate, found.proof)).doubtful
        )
        seen[doubtful] += 1
        before = KernelGraph(INPUTS, tuple(ops), tuple(range(2, last + 1)))
        for _ in range(0 if doubtful else 8):
            arrays = [numbers.integers(-2, 3, (3, 4)) * numbers.choice([0.0, 0.5, 1.0]) for _ in INPUTS]
            with np.errstate(all="ignore"):
                *rest, value = float64_reference.run(before, arrays)
            if all(np.isfinite(one).all() for one in (*rest, value)):
                assert (value != 0).all(), ops
    assert min(seen[True], seen[False]) > 50

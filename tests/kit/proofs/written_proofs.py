"""Proofs that edits start from: what the prover writes about equal pairs, and a prover with faults about others."""

from __future__ import annotations

import json
import random
from functools import cache

from mirage_formal.claims.equality.prove import halves, prove
from mirage_formal.graph.verdict import Equivalent
from tests.kit.proofs.claims import load
from tests.kit.proofs.hand_proofs import PAIRS, text
from tests.kit.proofs.proof_judge import Pair
from tests.kit.proofs.prover_faults import CASES, FAULTS, faulty


@cache
def true_proofs(size: str = "small") -> tuple[tuple[Pair, str], ...]:
    """The pairs of tests/prove, small or at real extents, with what the prover writes; small ones also by hand.

    A proof in two halves is two, each with its own pair.
    """
    found: list[tuple[Pair, str]] = []
    for item in load("prove"):
        program, candidate = item.tiny() if size == "small" else item.real()
        verdict = prove(program, candidate)
        assert isinstance(verdict, Equivalent), item.name
        if verdict.proof.startswith(b"["):
            _, *proofs = json.loads(verdict.proof)
            for (what, mine, theirs), proof in zip(halves(program, candidate), proofs, strict=True):
                found.append(((f"{item.name}: {what}", mine, theirs), proof))
        else:
            found.append(((item.name, program, candidate), verdict.proof.decode()))
    if size == "small":
        found += [((name, *pair), text(name)) for name, pair in PAIRS.items()]
    return tuple(found)


@cache
def _false_proof(name: str, number: int) -> tuple[Pair, str] | None:
    label, program, candidate = CASES[number]
    with faulty(name) as proof:
        made = proof(program, candidate)
    return None if made is None else ((f"{label}, {name}", program, candidate), made.decode())


def false_proofs(of: int = 1) -> tuple[tuple[Pair, str], ...]:
    """What a prover with a seeded fault writes about pairs that are not equal: each fault about every so-manieth."""
    tried = [(name, i) for turn, name in enumerate(FAULTS) for i in range(turn % of, len(CASES), of)]
    return tuple(found for name, i in tried if (found := _false_proof(name, i)) is not None)


def false_proof(rng: random.Random) -> tuple[Pair, str]:
    """Any of them: few trials need few of them."""
    while (found := _false_proof(rng.choice(tuple(FAULTS)), rng.randrange(len(CASES)))) is None:
        pass
    return found

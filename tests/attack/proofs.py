"""Proofs that somebody edited, proofs of false claims, and lemmas that somebody invented.

Nothing false may be accepted. Whether an accepted lemma is true, plain evaluation in floating point says, at random
inputs; whether an accepted proof is, its lines one by one, or that it says what it said before the edit.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np

from mirage_formal.check.proof.laws import check_lemma
from mirage_formal.check.proof.parser import Reader
from mirage_formal.check.proof.ring import ProofError, Ring
from tests.attack.lemmas import evaluated
from tests.attack.trial import Breach
from tests.kit.proofs.hand_proofs import false_proof, true_proofs
from tests.kit.proofs.proof_edits import Proof, edited
from tests.kit.proofs.proof_judge import Pair, accepts, kind, lines_are_true
from tests.kit.proofs.prover_faults import CASES


def _edits(proof: Proof, count: int, rng: random.Random) -> tuple[str, Proof]:
    """Several edits one after another, and their names; fewer where what an edit left can no longer be read."""
    labels: list[str] = []
    while len(labels) < count:
        try:
            label, proof = edited(proof, rng)
        except (LookupError, TypeError, ValueError, ZeroDivisionError):
            if not labels:
                raise
            break
        labels.append(label)
    return ", ".join(labels), proof


def edited_proof(rng: random.Random, number: int = 0) -> str:
    """One to three edits of a proof of something true."""
    pair, proof = rng.choice(true_proofs())
    old = json.loads(proof)
    labels, new = _edits(old, rng.choice((1, 1, 2, 3)), rng)
    if not accepts(pair, new):
        return "refused"
    what = kind(old, new)
    if what == "other lines" and not lines_are_true(pair, new):
        raise Breach(f"{pair[0]}: {labels}")
    return f"accepted, {what}, true"


def edited_false_proof(rng: random.Random, number: int = 0) -> str:
    """Edits upon edits of a proof of something false, or the proof as it is."""
    pair, made = false_proof(rng)
    labels, proof = _edits(json.loads(made), rng.choice((0, 1, 1, 2, 3, 4)), rng)
    if accepts(pair, proof):
        raise Breach(f"{pair[0]}: {labels}")
    return "refused"


def foreign_proof(rng: random.Random, number: int = 0) -> str:
    """A true proof for a pair that is not equal, with or without an edit."""
    (name, *_), made = rng.choice(true_proofs())
    label, program, wrong = rng.choice(CASES)
    proof: Proof = json.loads(made)
    if rng.random() < 0.5:
        _, proof = edited(proof, rng)
    if accepts((name, program, wrong), proof):
        raise Breach(f"the proof of {name} for {label}")
    return "refused"


# --- lemmas ----------------------------------------------------------------------------------------------------------


@cache
def _with_lemmas() -> tuple[tuple[Pair, Proof], ...]:
    found = ((pair, json.loads(proof)) for pair, proof in true_proofs())
    return tuple((pair, proof) for pair, proof in found if proof["lemmas"] and not proof["atoms"])


def invented_lemma(rng: random.Random, number: int = 0) -> str:
    """A lemma over a proof's tables after edits of both, or between factors that nobody related."""
    pair, proof = rng.choice(_with_lemmas())
    only = {**proof, "steps": [], "outputs": []}
    _, only = _edits(only, rng.choice((1, 1, 1, 2, 2, 3)), rng)
    if only["lemmas"] and rng.random() < 0.3:
        _mixed(only["lemmas"], only["factors"], rng)
    shapes = tuple(x.tensor.shape for x in pair[1].inputs)
    try:
        reader = Reader(Ring(_integers(only["digits"]), _integers(only["bases"])))
        for raw in only["factors"]:
            reader.entry(raw, shapes)
    except ProofError:
        return "refused with its tables"
    ring, taken = reader.ring, 0
    for number, raw in enumerate(only["lemmas"]):
        try:
            check_lemma(reader, number, raw)
        except ProofError:
            continue
        taken += 1
    if not taken:
        return "refused"
    arrays = [np.random.default_rng(rng.randrange(1 << 30)).uniform(0.3, 1.4, shape) for shape in shapes]
    for label, good in evaluated(ring, arrays, rng):
        if not good:
            raise Breach(f"{pair[0]}: a lemma of {label}")
    return "accepted, true"


def _integers(raw: Any) -> tuple[int, ...]:
    if not all(type(n) is int and 2 <= n <= 1 << 20 for n in raw):
        raise ProofError("expected integers from 2")
    return tuple(raw)


def _mixed(lemmas: list[Any], factors: list[Any], rng: random.Random) -> None:
    """A lemma about another factor of the same kind: what it should give is what some other one gives."""
    raw = rng.choice(lemmas)
    if raw[0] in ("sum", "max") and factors:
        alike = [n for n, f in enumerate(factors) if f[0] == raw[0]]
        if alike:
            chosen = rng.choice(alike)
            raw[1:3] = json.loads(json.dumps(factors[chosen][1:3]))


__all__ = ["edited_false_proof", "edited_proof", "foreign_proof", "invented_lemma"]

"""Replay of equivalence proofs by the proof kernel, and the obligations that are left to the solvers.

Light to import: the pipeline replays every proof before it writes it. sympy is loaded by ``crosscheck_proof`` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from mirage_formal.check.proof.added_conditions import classify_composed_conditions, classify_conditions
from mirage_formal.check.proof.digits import mixed_radix_obligations
from mirage_formal.check.proof.elaborate import Elaboration
from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof.replay import Theorem
from mirage_formal.check.proof.sympy_crosscheck import SympyAnswer, crosscheck_theorem
from mirage_formal.check.proof_composition import ComposedTheorem, replay_composed
from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import DigitLemma
from mirage_formal.support.errors import FormatError

LEMMAS: Final[tuple[DigitLemma, ...]] = ("injective", "onto")


@dataclass(frozen=True, slots=True)
class MixedRadixObligation:
    """One half of the mixed-radix lemma for digits of given extents, as SMT-LIB text that must be unsatisfiable."""

    extents: tuple[int, ...]
    lemma: DigitLemma
    text: str


@dataclass(frozen=True, slots=True)
class ReplayedTheorem:
    """Theorem of a replayed proof, given that its obligations are unsatisfiable.

    Attributes:
        theorem: Theorem of the proof kernel.
        conditions: Side conditions of program and candidate: the equality holds wherever these hold.
        added: Those of the candidate that the program does not have.
        doubtful: Whether some condition is not always true by its form.
        obligations: Obligations in the order of extents and lemma.
    """

    theorem: Theorem
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    doubtful: bool
    obligations: tuple[MixedRadixObligation, ...]


def replay_with_obligations(program: KernelGraph, candidate: KernelGraph, proof: bytes) -> ReplayedTheorem:
    """Replay a proof.

    Sound: the kernel elaborates both graphs itself and applies every step; the digit lemmas that it used, and no
    others, become obligations here, whatever anybody wrote down about them.

    Raises:
        ProofError: A step does not hold; names it.
    """
    return describe_theorem(replay_composed(program, candidate, proof))


def describe_theorem(theorem: Theorem) -> ReplayedTheorem:
    """Return the obligations of a theorem for the solvers, and its side conditions.

    Raises:
        ProofError: A condition beyond the end of a padded input does not follow from the others.
    """
    texts: list[MixedRadixObligation] = []
    for extents in sorted(theorem.digit_facts):
        halves = mixed_radix_obligations(extents)
        texts += [MixedRadixObligation(extents, lemma, halves[lemma]) for lemma in LEMMAS]
        assert len(halves) == len(LEMMAS)
    conditions = theorem.conditions
    if isinstance(theorem, ComposedTheorem):
        found = classify_composed_conditions(theorem.kernels, theorem.padding, theorem.own)
        conditions = tuple(dict.fromkeys((*theorem.padding.read[0][0].conditions, *theorem.own)))
    else:
        found = classify_conditions(theorem)
    return ReplayedTheorem(theorem, conditions, found.added, bool(found.doubtful), tuple(texts))


def own_conditions(program: KernelGraph) -> tuple[str, ...]:
    """Return the definedness conditions of unchanged operators, by the kernel's reading of each alone.

    Raises:
        ProofError: An operator has no meaning there.
    """
    types, found = kernel_types(program), list[str]()
    for number, op in enumerate(program.ops):
        given = [types[i] for i in op.operands]
        inputs = tuple(Input(f"x{i}", tensor, row_major(tensor.shape)) for i, tensor in enumerate(given))
        alone = KernelGraph(inputs, (replace(op, operands=tuple(range(len(given)))),), (len(given),))
        held = Elaboration(Terms(), alone, "program").conditions
        found += [one.replace("kernel operator 0", f"kernel operator {number}") for one in held]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class ProofCrosscheck:
    """Opinion of sympy on a proof's closing identities; it accepts no identity, it can only object.

    Attributes:
        confirmed: Number of identities that sympy confirms.
        undecided: Reason for each identity that it cannot decide.
    """

    confirmed: int
    undecided: tuple[str, ...]


def crosscheck_proof(proved: ReplayedTheorem) -> ProofCrosscheck:
    """Check every closing identity of a replayed proof with sympy.

    Raises:
        FormatError: It finds one of them wrong.
    """
    found = crosscheck_theorem(proved.theorem)
    for number, one in enumerate(found):
        if one.answer is SympyAnswer.REFUTED:
            raise FormatError(f"closing identity {number}: expected equal polynomials, sympy finds them different")
    confirmed = sum(one.answer is SympyAnswer.CONFIRMED for one in found)
    return ProofCrosscheck(confirmed, tuple(one.reason for one in found if one.answer is SympyAnswer.UNDECIDED))

"""Proofs in two halves: of the graph between pads and slices (or other element moves), and of these moves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from mirage_formal.check.proof.elaborate import Elaboration
from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof.replay import Theorem
from mirage_formal.check.proof.replay import replay as replay_one
from mirage_formal.check.proof.ring import ProofError, require
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.remainder_tiles.split import split_pads_and_slices
from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import MAX_PROOF_BYTES

_PARTS: Final = 3
#: Last entry of the list if the candidate's other data movement operators are stripped as well.
_MOVES: Final = "moves"


@dataclass(frozen=True, slots=True)
class ComposedTheorem(Theorem):
    """Theorem of two composed proofs.

    Attributes:
        kernels: P' = C', see ``replay_composed``.
        padding: slices(P'(pads)) = P.
        own: The candidate's conditions, in the order in which C' has them.
    """

    kernels: Theorem = field(kw_only=True, compare=False, repr=False)
    padding: Theorem = field(kw_only=True, compare=False, repr=False)
    own: tuple[str, ...] = field(kw_only=True, compare=False, repr=False)


def replay_composed(program: KernelGraph, candidate: KernelGraph, proof: bytes | str) -> Theorem:
    """Check a proof that a candidate and a program compute the same outputs: one proof, or a graph P' and two proofs.

    Sound: the candidate is slices(C'(pads)), taken apart here. The first proof says that P' = C', for all inputs of the
    shapes that the pads make of the candidate's, which are the program's; the second that slices(P'(pads)) = P, with
    the same pads and slices. What is equal for all inputs is equal for padded ones. So the outputs are equal wherever
    the conditions of all of these hold: those of C' at padded inputs are the candidate's, those of P' there are the
    second proof's.

    Raises:
        ProofError: A proof is not one; ``where`` names the part, and the lemma or step at fault.
    """
    text = proof if isinstance(proof, str) else proof.decode("utf-8", "replace")
    if not text.startswith("["):
        return replay_one(program, candidate, proof)
    limit = 2 * _PARTS * MAX_PROOF_BYTES
    require(len(text) <= limit, f"expected at most {limit} characters, got {len(text)}")
    try:
        parts = json.loads(text)
        moves = isinstance(parts, list) and parts[_PARTS:] == [_MOVES]
        good = isinstance(parts, list) and len(parts) == _PARTS + moves and all(isinstance(part, str) for part in parts)
        require(good, "expected a proof, or a list of a graph and two proofs as texts")
        middle = from_json(parts[0].encode(), "graph in the proof")
    except RecursionError as error:
        raise ProofError("expected a list of texts, got brackets nested too deep", "proof") from error
    except (ValueError, FormatError) as error:
        raise ProofError(f"expected JSON, got {str(error)[:200]}", "proof") from error
    mine, theirs = ([x.tensor.signature for x in graph.inputs] for graph in (program, candidate))
    require(mine == theirs, f"expected inputs of the program's shapes {mine}, got {theirs}")
    found = split_pads_and_slices(candidate, moves=moves)
    if found is None:
        raise ProofError("expected pads of inputs or slices of results around the candidate's kernels", "candidate")
    wrapping, inner = found
    kernels = _part("kernels", middle, inner, parts[1])
    padding = _part("padding", program, wrapping.around(program.inputs, middle), parts[2])
    own = Elaboration(Terms(), candidate, "candidate").conditions
    padded = (f"padded program, {one.removeprefix('candidate, ')}" for one in padding.read[0][1].conditions)
    return ComposedTheorem(
        tuple(dict.fromkeys((*padding.read[0][0].conditions, *own, *padded))),
        kernels.steps + padding.steps,
        kernels.lemmas + padding.lemmas,
        kernels.digit_facts | padding.digit_facts,
        kernels.closings + padding.closings,
        kernels.read,
        kernels=kernels,
        padding=padding,
        own=tuple(own),
    )


def _part(name: str, program: KernelGraph, candidate: KernelGraph, proof: str) -> Theorem:
    try:
        return replay_one(program, candidate, proof)
    except ProofError as error:
        raise ProofError(error.what, f"{name}, {error.where}") from error


__all__ = ["ComposedTheorem", "replay_composed"]

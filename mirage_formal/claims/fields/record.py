"""What a fingerprint writes into the verification log: everything that an independent re-draw needs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from mirage_formal.graph.verdict import Verdict


class Redraw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Elements drawn anew because a radicand was no residue or a denominator was 0.

    Attributes:
        attempt: Number of the draw that the elements come from; all entries of one attempt belong together.
        input: Which input.
        field: "p" or "q".
        shape: Extents of the mask; 1 where it is constant along an axis of the input.
        mask: Base64 of the mask's bits in row-major order, most significant bit first, zero-padded to bytes.
        cause: Why.
    """

    attempt: int
    input: int
    field: str
    shape: tuple[int, ...]
    mask: str
    cause: str


class InputDigest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SHA-256 of one part of one input, after all redraws."""

    input: int
    field: str
    sha256: str


class Draw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One round.

    Attributes:
        round: Its number, from 0.
        omega: The root of unity, of order q in Z_p.
        opaque_keys: The two words that key each opaque function, by operator.
        redraws: In the order in which they are applied.
        inputs: Digests of all input parts that either program reads.
        expected: Digests of the program's outputs; empty if it has none at this point.
        got: Digests of the candidate's outputs.
    """

    round: int
    omega: int
    opaque_keys: dict[str, tuple[int, int]]
    redraws: tuple[Redraw, ...]
    inputs: tuple[InputDigest, ...]
    expected: tuple[str, ...]
    got: tuple[str, ...]


class FieldConfirmation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """galois' word that p and q are prime, with a primitive root of Z_p."""

    galois: str
    primitive_root: int


class FingerprintRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log of one fingerprint; docs/fingerprint.md gives the meaning of every field.

    Attributes:
        scheme: Name of the generation rule.
        seed: The logged seed.
        prime_bits: Size of p.
        p: Prime of the values.
        q: Prime of the exponents, p = 2q + 1.
        rounds: Rounds asked for.
        attempts: Redraws allowed per round.
        lax: Widest class of the operators of program and candidate that matter: linear, division, exponential, root,
            opaque; "none" if one of them has no picture in the fields.
        verdict: "probable", "different" or "unknown".
        reason: Why unknown, or empty.
        bound_log2: The error bound of all rounds together, or None.
        bound_reason: Why there is no bound ("vacuous: ...", "sqrt is outside the theorem"), or empty.
        confirmation: galois' word on the fields, if it was asked.
        draws: The rounds done.
    """

    scheme: str
    seed: int
    prime_bits: int
    p: int
    q: int
    rounds: int
    attempts: int
    lax: str
    verdict: str
    reason: str
    bound_log2: float | None
    bound_reason: str
    confirmation: FieldConfirmation | None
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class FingerprintResult:
    """A verdict with its log."""

    verdict: Verdict
    record: FingerprintRecord

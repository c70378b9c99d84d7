"""The fingerprint of a verification log: everything that an independent re-draw needs; docs/fingerprint.md."""

from __future__ import annotations

from typing import Literal

from mirage_formal.records.run import Count, Log2, Positive, Record, Release, Sha256

#: A part of a field element.
Field = Literal["p", "q"]


class Redraw(Record, frozen=True):
    """Elements drawn anew because a radicand was no residue or a denominator was 0.

    Attributes:
        attempt: Number of the draw that the elements come from; all entries of one attempt belong together.
        input: Which input.
        shape: Extents of the mask; 1 where it is constant along an axis of the input.
        mask: Base64 of the mask's bits in row-major order, most significant bit first, zero-padded to bytes.
        cause: Why.
    """

    attempt: Positive
    input: Count
    field: Field
    shape: tuple[Positive, ...]
    mask: str
    cause: str


class InputDigest(Record, frozen=True):
    """SHA-256 of one part of one input, after all redraws."""

    input: Count
    field: Field
    sha256: Sha256


class Draw(Record, frozen=True):
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

    round: Count
    omega: Count
    opaque_keys: dict[str, tuple[Count, Count]]
    redraws: tuple[Redraw, ...]
    inputs: tuple[InputDigest, ...]
    expected: tuple[Sha256, ...]
    got: tuple[Sha256, ...]


class FieldConfirmation(Record, frozen=True):
    """Word of earlier versions that galois found p and q, in a run that did not ask it; nothing rests on it."""

    galois: Release
    primitive_root: Count


class FingerprintRecord(Record, frozen=True):
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
        verdict: "different" only before it is written: what is refuted is in no verification log.
        reason: Why unknown, or empty.
        bound_log2: The error bound of all rounds together, or None.
        bound_reason: Why there is no bound ("vacuous: ...", "sqrt is outside the theorem"), or empty.
        draws: The rounds done.
        confirmation: None, but in logs of earlier versions.
    """

    scheme: str
    seed: Count
    prime_bits: Count
    p: Count
    q: Count
    rounds: Count
    attempts: Count
    lax: str
    verdict: Literal["probable", "different", "unknown"]
    reason: str
    bound_log2: Log2 | None
    bound_reason: str
    draws: tuple[Draw, ...]
    confirmation: FieldConfirmation | None = None

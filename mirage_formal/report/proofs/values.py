"""Values of a shown proof."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_formal.report.proofs.formulas import Formula


@dataclass(frozen=True, slots=True)
class Place:
    """An operator of one of the two graphs of a proof.

    Attributes:
        graph: "program" or "candidate".
        node: The id of its node in the graph's levels; empty where it is in a graph that is not drawn.
        label: Its name for readers.
    """

    graph: str
    node: str
    label: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a replayed proof: a tensor and its element.

    Attributes:
        number: Its number in the proof object.
        law: Description of the step.
        minor: Whether it only renames, splits or folds digits, or moves elements.
        head: The tensor's element at its position.
        left: The operator applied to the elements of earlier steps.
        right: The normal form of its element.
        operands: Numbers of the steps that it reads.
        places: Operators of both graphs that compute this tensor.
    """

    number: int
    law: str
    minor: bool
    head: Formula
    left: Formula
    right: Formula
    operands: tuple[int, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Lemma:
    """A checked lemma of a law: both sides, equal for all values of their free digits."""

    number: int
    law: str
    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity checked at an output: the program's element and the candidate's."""

    program: Formula
    candidate: Formula
    how: str


@dataclass(frozen=True, slots=True)
class ProofPart:
    """Steps, lemmas and closing identities of one proof object.

    Attributes:
        name: Name of the part, or empty where there is only one.
        summary: Sentences on how sums are split.
        shown: Whether formulas were made; else ``steps``, ``lemmas`` and ``identities`` are empty.
    """

    name: str
    summary: tuple[str, ...]
    steps: tuple[Step, ...]
    lemmas: tuple[Lemma, ...]
    identities: tuple[Identity, ...]
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof object that the checker's proof kernel has replayed while the report was made.

    Attributes:
        parts: Its halves by name, mostly one.
        conditions: Side conditions of program and candidate.
        added: Those of the candidate that the program does not have.
        bytes: Size of the proof object.
        lemmas_open: Number of halves of the mixed-radix lemma, which ``check`` has solvers refute.
    """

    parts: tuple[ProofPart, ...]
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    bytes: int
    lemmas_open: int

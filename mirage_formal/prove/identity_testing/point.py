"""One round of a fingerprint: a point of Z_p x Z_q at which several programs all have a value.

Where a denominator is 0 or a radicand is no residue, a program has no value. The inputs concerned are then redrawn,
within a budget; no value is ever replaced by an invented one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import numpy as np
from msgspec import Struct

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OPAQUE, Lax, OpKind
from mirage_formal.graph.types import DTensor, Shape
from mirage_formal.graph.verdict import Unknown
from mirage_formal.prove.identity_testing.cone_of_influence import Cone, Mask, trace_cone
from mirage_formal.prove.identity_testing.degree_bounds import OutsideTheorem, QuotientBounds, bound_degrees
from mirage_formal.prove.identity_testing.draw import (
    LARGE,
    collapse_mask,
    draw_digest,
    input_name,
    input_residues,
    mask_residues,
    stream,
)
from mirage_formal.prove.identity_testing.modular_arithmetic import Residues, Words
from mirage_formal.prove.identity_testing.tape_evaluation import (
    FieldPoint,
    UndefinedStep,
    Unrepresentable,
    opaque_key,
    run_tape,
)
from mirage_formal.prove.identity_testing.value_cache import ValueCache
from mirage_formal.records.fingerprint import Redraw
from mirage_formal.semantics.straight_line_trace import (
    BinaryStep,
    LoadStep,
    Needs,
    NotLax,
    ResiduePart,
    Tape,
    UnaryStep,
    lax_class,
    needed_parts,
    needed_steps,
    record_tape,
)


class LaxProgram(Struct, frozen=True):
    """A program that has a meaning in the fields.

    Attributes:
        tape: Its code.
        wanted: The parts of each step that its outputs need.
        growth: Its degrees and exponentials.
        lax: The widest class of its operators.
        reads: The input parts that it reads.
        opaque: The opaque functions that it applies, by those whose keys they use.
        output_shapes: Shapes of its outputs.
    """

    tape: Tape
    wanted: Needs
    growth: QuotientBounds | OutsideTheorem
    lax: Lax
    reads: frozenset[tuple[int, ResiduePart]]
    opaque: frozenset[OpKind]
    output_shapes: tuple[Shape, ...]

    def roots(self, before: tuple[int, ResiduePart] | None = None) -> list[tuple[int, ResiduePart, Mask]]:
        """Return the radicands computed before a step and part (or all), with full masks."""
        found: list[tuple[int, ResiduePart, Mask]] = []
        for number, step, parts in needed_steps(self.tape, self.wanted):
            for part in parts:
                if before is not None and (number, part) >= before:
                    return found
                if isinstance(step, UnaryStep) and step.kind is OpKind.SQRT:
                    found.append((step.a, part, np.ones(step.shape, dtype=np.bool_)))
        return found


def lax_program(graph: KernelGraph) -> LaxProgram | NotLax:
    """Return a µGraph prepared to run at points of the fields, or the reason why it cannot.

    Raises:
        GraphError: The graph is not well-formed.
    """
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    if isinstance(wanted, NotLax):
        return wanted
    steps = list(needed_steps(tape, wanted))
    return LaxProgram(
        tape,
        wanted,
        bound_degrees(tape, wanted),
        lax_class(tape, wanted),
        frozenset(
            (step.index, step.drawn(part)) for _, step, parts in steps if isinstance(step, LoadStep) for part in parts
        ),
        frozenset(
            opaque_key(step.kind)
            for _, step, _ in steps
            if isinstance(step, UnaryStep | BinaryStep) and step.kind in OPAQUE
        ),
        tuple(tape.steps[number].shape for number in tape.outputs),
    )


@dataclass(slots=True)
class Point:
    """One round's point: its inputs as far as they were read, and the redraws.

    Values are shared between copies and never written in place.

    Attributes:
        seed: The seed of all draws.
        attempts: The most redraws.
        number: The round.
        place: The fields, omega and the keys.
        inputs: The types of the inputs.
        values: The input parts that were read.
        digests: Their digests.
        redraws: The log of redraws.
        attempt: The number of redraws so far.
        kept: The cache of values that programs computed at the point in its present state.
    """

    seed: int
    attempts: int
    number: int
    place: FieldPoint
    inputs: tuple[DTensor, ...]
    values: dict[tuple[int, ResiduePart], Residues] = field(default_factory=dict)
    digests: dict[tuple[int, ResiduePart], str] = field(default_factory=dict)
    redraws: tuple[Redraw, ...] = ()
    attempt: int = 0
    kept: ValueCache = field(default_factory=ValueCache)

    def copy(self) -> Point:
        """Return a copy whose redraws do not affect this point."""
        return Point(
            self.seed,
            self.attempts,
            self.number,
            self.place,
            self.inputs,
            dict(self.values),
            dict(self.digests),
            self.redraws,
            self.attempt,
            self.kept,
        )

    def read(self, index: int, part: ResiduePart) -> Residues:
        """Return one part of one input; a mask has part P alone."""
        key = (index, part)
        if key not in self.values:
            self.values[key] = self._drawn(index, part, 0)
        return self.values[key]

    def digest(self, index: int, part: ResiduePart) -> str:
        """Return the SHA-256 of one part of one input."""
        key = (index, part)
        if key not in self.digests:
            self.digests[key] = draw_digest(self.read(index, part))
        return self.digests[key]

    @contextmanager
    def concurrent_digests(self, reads: Iterable[tuple[int, ResiduePart]]) -> Iterator[None]:
        """Compute the digests of large input parts in another thread, while this one evaluates a program.

        They count if nothing is drawn anew meanwhile.

        Args:
            reads: The parts that the program reads.
        """
        large = [key for key in sorted(reads) if prod(self.inputs[key[0]].shape) >= LARGE]
        if not large:
            yield
            return
        from concurrent.futures import ThreadPoolExecutor  # small programs do without it

        with ThreadPoolExecutor(1) as other:
            digests = {key: other.submit(draw_digest, self.read(*key)) for key in large}
            yield
            if self.attempt == 0:
                self.digests.update({key: digest.result() for key, digest in digests.items()})

    def redraw(self, masks: Cone, cause: str) -> None:
        """Draw new values for the masked elements of each input, and log the masks with their cause."""
        self.attempt += 1
        self.kept = ValueCache()
        for (index, part), mask in sorted(masks.items(), key=lambda item: item[0]):
            small = collapse_mask(mask)
            fresh = self._drawn(index, part, self.attempt)
            self.values[index, part] = np.where(small, fresh, self.read(index, part))
            self.digests.pop((index, part), None)
            bits = b64encode(np.packbits(small).tobytes()).decode("ascii")
            entry = Redraw(self.attempt, index, part.letter, small.shape, bits, cause)
            self.redraws = (*self.redraws, entry)

    def _drawn(self, index: int, part: ResiduePart, attempt: int) -> Residues:
        source = stream(self.seed, self.number, input_name(index, part, attempt))
        tensor = self.inputs[index]
        if not tensor.dtype.floating:
            return mask_residues(source, tensor.shape)
        return input_residues(source, tensor.shape, self.place.fields[part].m)


def _elements_to_redraw(failure: UndefinedStep, programs: list[LaxProgram], current: int) -> Cone:
    """Return the input elements to redraw after a failure in ``programs[current]``.

    These are preferably elements that no valid radicand of any program depends on, so that valid ones stay valid (the
    rows of a norm are independent). Otherwise they are those that no other element of the failing step depends on.
    Otherwise they are all that the failing elements depend on.


    """
    program = programs[current]
    at = (failure.step, failure.part)
    bad = trace_cone(program.tape, program.wanted, [(*at, failure.bad)])
    beside = trace_cone(program.tape, program.wanted, [(*at, ~failure.bad)])
    good = dict(beside)
    _unite_cones(good, trace_cone(program.tape, program.wanted, program.roots(before=(failure.reader, failure.part))))
    for other in programs[:current]:
        _unite_cones(good, trace_cone(other.tape, other.wanted, other.roots()))
    for spared in (good, beside):
        rest = {key: mask & ~spared[key] if key in spared else mask for key, mask in bad.items()}
        rest = {key: mask for key, mask in rest.items() if mask.any()}
        if rest:
            return rest
    return bad


def _unite_cones(into: Cone, other: Cone) -> None:
    for key, mask in other.items():
        into[key] = into[key] | mask if key in into else mask


def evaluate_programs(
    point: Point, programs: list[LaxProgram], known: dict[int, tuple[Words, ...]] | None = None
) -> list[tuple[Words, ...]] | Unknown:
    """Return the outputs of all programs at the point, after as many redraws as necessary.

    Args:
        point: The point, changed in place.
        programs: The programs to run, in order.
        known: Outputs already computed at the point in its present state, by position in ``programs``.
    """
    while True:
        outputs: list[tuple[Words, ...]] = []
        doomed: Cone = {}
        causes: list[str] = []
        # All programs run even if the first has no value: one redraw then mends all of them at once.
        for current, program in enumerate(programs):
            if known and current in known:
                outputs.append(known[current])
                continue
            found = run_tape(program.tape, program.wanted, point.place, point.read, point.kept)
            if isinstance(found, Unrepresentable):
                return Unknown(found.reason)
            if isinstance(found, UndefinedStep):
                _unite_cones(doomed, _elements_to_redraw(found, programs, current))
                causes.append(found.reason)
            else:
                outputs.append(found)
        if not causes:
            return outputs
        cause = ", ".join(dict.fromkeys(causes))
        if point.attempt >= point.attempts:
            return Unknown(f"{cause}, still after {point.attempt} redraws")
        point.redraw(doomed, cause)
        known = None

"""Fingerprints: program and candidate at random points of Z_p x Z_q (paper, section 5.3; docs/fingerprint.md).

Inputs are uniformly random and omega is a random element of order q, all from a logged seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import SPECS, Lax
from mirage_formal.graph.verdict import Different, Probable, Unknown, Verdict
from mirage_formal.prove.identity_testing.degree_bounds import Bound, error_bound
from mirage_formal.prove.identity_testing.draw import SCHEME, draw_digest, field_point
from mirage_formal.prove.identity_testing.modular_arithmetic import Words
from mirage_formal.prove.identity_testing.point import LaxProgram, Point, evaluate_programs, lax_program
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.records.fingerprint import Draw, FingerprintRecord, InputDigest
from mirage_formal.semantics.straight_line_trace import BinaryStep, Matmul, NotLax, ResiduePart, Tape, UnaryStep
from mirage_formal.support.errors import GraphError, UnsupportedError


class FingerprintSettings(Struct, frozen=True):
    """The settings of a fingerprint.

    Attributes:
        seed: A non-negative number; everything random follows from it.
        prime_bits: Size of p, 16 to 31.
        rounds: Independent draws that must agree, at least 1.
        attempts: Redraws allowed per round before the answer is Unknown.
        max_elements: Largest tensor that is evaluated; beyond it the answer is Unknown. A tensor of 2^25 elements takes
            256 MiB, and a product of two such holds about ten at a time.
        max_multiplications: Most multiplications of elements by one evaluation of either side: those of matrix
            products, and the equivalent of quotients, functions and roots; beyond it the answer is Unknown. None is no
            bound. 2^30 take about two seconds.
    """

    seed: int = 0
    prime_bits: int = 31
    rounds: int = 1
    attempts: int = 128
    max_elements: int = 1 << 25
    max_multiplications: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("rounds", 1), ("attempts", 0)):
            if getattr(self, name) < least:
                raise UnsupportedError(f"expected at least {least}, got {getattr(self, name)}", where=name)


class FingerprintResult(Struct, frozen=True):
    """Verdict of a fingerprint test, with the record of its rounds."""

    verdict: Verdict
    record: FingerprintRecord


_NAMES: Final[Mapping[type[Verdict], Literal["probable", "different", "unknown"]]] = {
    Probable: "probable",
    Different: "different",
    Unknown: "unknown",
}


#: Multiplications of matrix products that take as long as a step takes for one element, by its class: quotients,
#: exponentials and keyed functions take about 20 ns, a root, which is a power modulo a prime, about 200.
_STEPS: Final = {
    **dict.fromkeys((Lax.LINEAR, Lax.NONE), 0),
    **dict.fromkeys((Lax.DIVISION, Lax.EXPONENTIAL, Lax.OPAQUE), 64),
    Lax.ROOT: 256,
}


def _multiplications(tape: Tape) -> int:
    """Return the multiplications of a tape's matrix products, with its other steps converted to multiplications."""
    many = 0
    for step in tape.steps:
        if isinstance(step, Matmul):
            many += prod(step.shape) * tape.steps[step.a].shape[-1]
        elif isinstance(step, UnaryStep | BinaryStep):
            many += prod(step.shape) * _STEPS[SPECS[step.kind].lax]
    return many


class _ProgramPoint(Struct, frozen=True):
    """A point at which the program has a value, with the program's outputs there."""

    point: Point
    outputs: tuple[Words, ...]


class FingerprintSession:
    """A session that fingerprints many candidates for one program: the program runs once at each point.

    A candidate that has no value where the program has one gets points of its own, at which the program runs again.
    """

    def __init__(self, program: KernelGraph, settings: FingerprintSettings) -> None:
        """Prepare; draws nothing yet.

        Raises:
            GraphError: The program is not well-formed.
            UnsupportedError: ``prime_bits`` is out of range.
        """
        self.program = program
        self.settings = settings
        self.pair = field_pair(settings.prime_bits)
        self._lax = lax_program(program)
        self._inputs = tuple(source.tensor for source in program.inputs)
        self._rounds: dict[int, _ProgramPoint | Unknown] = {}

    def evaluate_program(self) -> None:
        """Evaluate the program at the points of its rounds ahead of the first candidate, as ``check`` would."""
        program = self._lax
        if isinstance(program, NotLax) or self._beyond_limits((program,)) is not None:
            return
        for number in range(self.settings.rounds):
            base = self._base(number, program)
            if isinstance(base, Unknown):
                return
            for index, part in sorted(program.reads):
                base.point.digest(index, part)

    def check(self, candidate: KernelGraph) -> FingerprintResult:
        """Compare a candidate with the program.

        Sound: Probable is returned only if all outputs agreed, element by element in Z_p, at every round's point, and
        both programs had a value there. Different is returned only with an element in which they differ there. An
        operator without a picture, or a point that is not found within the budget, gives Unknown.

        Raises:
            GraphError: The candidate is not well-formed, or its inputs or outputs have other shapes than the program's.
        """
        given = tuple(source.tensor for source in candidate.inputs)
        wanted, got = ([tensor.signature for tensor in side] for side in (self._inputs, given))
        if wanted != got:
            raise GraphError(f"expected inputs of shapes [{', '.join(wanted)}], got [{', '.join(got)}]")
        other = lax_program(candidate)
        for side, name in ((self._lax, "program"), (other, "candidate")):
            if isinstance(side, NotLax):
                return self._result(Unknown(f"the {name} is not LAX: {side.reason}"), "none", Bound(None, ""), ())
        assert isinstance(self._lax, LaxProgram)
        assert isinstance(other, LaxProgram)
        self._check_outputs(self._lax, other)
        if (reason := self._beyond_limits((self._lax, other))) is not None:
            return self._result(Unknown(reason), "none", Bound(None, ""), ())
        lax = max(self._lax.lax, other.lax, key=list(Lax).index)
        bound = error_bound(self._lax.growth, other.growth, self.pair, self.settings.rounds)
        draws: list[Draw] = []
        for number in range(self.settings.rounds):
            verdict, draw = self._round(number, self._lax, other)
            if draw is not None:
                draws.append(draw)
            if verdict is not None:
                return self._result(verdict, lax, bound, tuple(draws))
        return self._result(Probable(self.settings.rounds, bound.log2, bound.reason), lax, bound, tuple(draws))

    def _beyond_limits(self, sides: Sequence[LaxProgram]) -> str | None:
        """Return why programs are not evaluated: they exceed a limit of the settings; None if they do not."""
        largest = max(prod(step.shape) for side in sides for step in side.tape.steps)
        if largest > self.settings.max_elements:
            return f"a tensor of {largest:,} elements is larger than the {self.settings.max_elements:,} evaluated"
        many, most = max(_multiplications(side.tape) for side in sides), self.settings.max_multiplications
        if most is not None and many > most:
            return f"{many:,} multiplications are more than the {most:,} that are made beside a proof"
        return None

    def _check_outputs(self, program: LaxProgram, other: LaxProgram) -> None:
        if program.output_shapes != other.output_shapes:
            raise GraphError(
                f"expected outputs of shapes {[list(shape) for shape in program.output_shapes]}, "
                f"got {[list(shape) for shape in other.output_shapes]}"
            )

    def _base(self, number: int, program: LaxProgram) -> _ProgramPoint | Unknown:
        """Return a round's point at which the program has a value, with its outputs; Unknown if none is found."""
        if number not in self._rounds:
            settings = self.settings
            place = field_point(settings.seed, number, self.pair)
            point = Point(settings.seed, settings.attempts, number, place, self._inputs)
            with point.concurrent_digests(program.reads):
                outputs = evaluate_programs(point, [program])
            self._rounds[number] = outputs if isinstance(outputs, Unknown) else _ProgramPoint(point, outputs[0])
        return self._rounds[number]

    def _round(self, number: int, program: LaxProgram, other: LaxProgram) -> tuple[Verdict | None, Draw | None]:
        """Return a verdict that ends the comparison, or None if the round agreed, and the round's log."""
        base = self._base(number, program)
        if isinstance(base, Unknown):
            return base, None
        point = base.point.copy()
        found = evaluate_programs(point, [program, other], known={0: base.outputs})
        if isinstance(found, Unknown):
            return found, _draw_record(point, program, other, (), ())
        # What was read first for this candidate serves the next ones too, as long as nothing was drawn anew.
        if point.attempt == base.point.attempt:
            base.point.values.update(point.values)
        expected, got = found
        draw = _draw_record(point, program, other, expected, got)
        if point.attempt == base.point.attempt:
            base.point.digests.update(point.digests)
        return _first_difference(self.settings.seed, expected, got), draw

    def _result(self, verdict: Verdict, lax: Lax | str, bound: Bound, draws: tuple[Draw, ...]) -> FingerprintResult:
        settings = self.settings
        record = FingerprintRecord(
            scheme=SCHEME,
            seed=settings.seed,
            prime_bits=settings.prime_bits,
            p=self.pair.p,
            q=self.pair.q,
            rounds=settings.rounds,
            attempts=settings.attempts,
            lax=str(lax.value) if isinstance(lax, Lax) else lax,
            verdict=_NAMES[type(verdict)],
            reason=verdict.reason if isinstance(verdict, Unknown) else "",
            bound_log2=bound.log2,
            bound_reason=bound.reason,
            draws=draws,
        )
        return FingerprintResult(verdict, record)


def _first_difference(seed: int, expected: tuple[Words, ...], got: tuple[Words, ...]) -> Different | None:
    for output, (want, have) in enumerate(zip(expected, got, strict=True)):
        differs = want != have
        if np.any(differs):
            at = np.unravel_index(int(np.argmax(differs)), want.shape)
            index = tuple(int(i) for i in at)
            return Different(seed, output, index, int(want[index]), int(have[index]))
    return None


def _draw_record(
    point: Point, program: LaxProgram, other: LaxProgram, expected: tuple[Words, ...], got: tuple[Words, ...]
) -> Draw:
    """Return the log of one round."""
    read = sorted(program.reads | other.reads)
    keys = {kind.value: point.place.keys[kind] for kind in sorted(program.opaque | other.opaque)}
    return Draw(
        round=point.number,
        omega=point.place.omega,
        opaque_keys=keys,
        redraws=point.redraws,
        inputs=tuple(InputDigest(i, ResiduePart(part).letter, point.digest(i, part)) for i, part in read),
        expected=tuple(draw_digest(value) for value in expected),
        got=tuple(draw_digest(value) for value in got),
    )


def fingerprint(program: KernelGraph, candidate: KernelGraph, settings: FingerprintSettings) -> FingerprintResult:
    """Compare one candidate with its program; for several candidates use a ``FingerprintSession``.

    Raises:
        GraphError: A graph is not well-formed, or the shapes of inputs or outputs differ.
        UnsupportedError: Settings out of range.
    """
    return FingerprintSession(program, settings).check(candidate)

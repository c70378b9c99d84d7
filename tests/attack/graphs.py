"""Wrong µGraphs and wrong Programs: no verdict that they are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent, Unknown
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.run.verify.decide import decide_equality
from mirage_formal.support.errors import MirageError
from tests.attack.trial import Breach
from tests.kit.graphs.mutants import Decision, differs, single_mutants
from tests.kit.kernels import program_interpreter
from tests.kit.kernels import safety_programs as programs
from tests.kit.kernels.safety_programs import mutants
from tests.kit.proofs.hand_proofs import true_proofs
from tests.kit.proofs.proof_judge import accepts


@cache
def _changes(number: int, side: int) -> tuple[tuple[str, KernelGraph], ...]:
    (_, *pair), _ = true_proofs()[number]
    return tuple(single_mutants(pair[side]))


def _changed(rng: random.Random) -> tuple[str, KernelGraph, KernelGraph, str] | None:
    """A pair of tests/prove of which one side has one or two changes, and the proof of the pair as it was."""
    number, side = rng.randrange(len(true_proofs())), rng.randrange(2)
    (name, *pair), proof = true_proofs()[number]
    changes = _changes(number, side)
    if not changes:
        return None
    label, graph = rng.choice(changes)
    if rng.random() < 0.3 and (more := list(single_mutants(graph))):
        second, graph = rng.choice(more)
        label += f" + {second}"
    if faults(graph) or _interface(graph) != _interface(pair[side]):
        return None
    pair[side] = graph
    return f"{name}: {label}", pair[0], pair[1], proof


def _interface(graph: KernelGraph) -> object:
    types = kernel_types(graph)
    return [x.tensor.shape for x in graph.inputs], [types[number].shape for number in graph.outputs]


def _said(program: KernelGraph, candidate: KernelGraph) -> Decision:
    try:
        return differs(program, candidate)
    except MirageError:
        return Decision.UNCLEAR


def kept_proof(rng: random.Random, number: int = 0) -> str:
    """The proof of a pair of which one graph was changed."""
    found = _changed(rng)
    if found is None:
        return "not well-formed"
    label, program, candidate, proof = found
    if not accepts((label, program, candidate), proof):
        return "refused"
    if _said(program, candidate) is Decision.DIFFERENT:
        raise Breach(label)
    return "accepted, the same in float64"


def verdict(rng: random.Random, number: int = 0) -> str:
    """What verify says about a pair of which one graph was changed, against float64."""
    found = _changed(rng)
    if found is None:
        return "not well-formed"
    label, program, candidate, _ = found
    decision = _said(program, candidate)
    match decide_equality(program, candidate, seed=1):
        case Equivalent(proof):
            if decision is Decision.DIFFERENT:
                raise Breach(f"Equivalent: {label}")
            if not accepts((label, program, candidate), proof.decode()):
                return "the checker refuses what the prover wrote"
            return "equivalent"
        case Different():
            if decision is Decision.SAME:
                raise Breach(f"Different: {label}")
            return "different"
        case Unknown():
            return "unknown, different in float64" if decision is Decision.DIFFERENT else "unknown"
        case other:
            raise AssertionError(other)


_PROGRAMS: tuple[Callable[[], Program], ...] = (
    lambda: programs.gemm(16, 64, 192),
    lambda: programs.softmax(2, 200),
    lambda: programs.elementwise(4, 80),
    lambda: programs.generic(8, 20, 12, 2),
    lambda: programs.ring(4, 2),
)


@cache
def _broken(number: int) -> tuple[tuple[str, Program], ...]:
    return tuple(mutants(_PROGRAMS[number]()))


def broken_program(rng: random.Random, number: int = 0) -> str:
    """A Program with a small mistake: Safe only if running every thread shows nothing."""
    label, program = rng.choice(_broken(rng.randrange(len(_PROGRAMS))))
    if not isinstance(discharge_safety(program, second=False).verdict, Safe):
        return "not safe"
    if wrong := program_interpreter.fault(program):
        raise Breach(f"{program.name}, {label}: {wrong}")
    return "safe, and no fault when run"


__all__ = ["broken_program", "kept_proof", "verdict"]

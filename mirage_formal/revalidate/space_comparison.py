"""Comparison of a run with an enumeration of its space that uses no code of the engines.

A survivor is a complete graph that equals the program at a random point of the checker's fields. A graph without a
value there, for example because a radicand is no residue, is compared over the reals, in float64 at random inputs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from mirage_formal.check.check_steps import step
from mirage_formal.check.fingerprint.field_interpreter import UndefinedValueError, evaluate_steps
from mirage_formal.check.fingerprint.fingerprint import random_point
from mirage_formal.check.inlining import inline_threads
from mirage_formal.check.run_check import Run, decode_graph
from mirage_formal.graph.canonical import canonical_with_digest, digest
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verdict import Different, Probable
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from mirage_formal.records import SEARCH_FILE
from mirage_formal.revalidate.space_enumeration import EnumerationStopped, SpaceEnumeration
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.known_incompleteness import is_equal, missing_reason, needs_cancellation
from mirage_formal.search.preprocess import preprocess
from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import ENUMERATED_OPERATORS, ENUMERATED_STATES, ENUMERATION_S

_LIMITS: Final = (ENUMERATED_STATES, ENUMERATION_S)
#: Candidates that a line names.
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class SpaceNotEnumerated:
    """Answer that is none: the space was not enumerated, or not to its end, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class EnumeratedSpace:
    """Result of an enumeration.

    Attributes:
        states: Configurations of kernels, and sets of operators of block graphs and of kernel graphs.
        graphs: Complete graphs.
        over_reals: Those of them that were compared over the reals.
        survivors: Those that equal the program, in canonical form, by digest.
    """

    states: int
    graphs: int
    over_reals: int
    survivors: dict[str, KernelGraph]


@dataclass(frozen=True, slots=True)
class SpaceComparison:
    """Result of a comparison in which no survivor is missing without a reason.

    Attributes:
        states: Number of states enumerated.
        graphs: Number of complete graphs among them.
        survivors: Number of survivors.
        run_states: Number of states that the run counts; it passes over those that it prunes or remembers.
        found: Number of distinct candidates of the run.
        missing: Numbers of survivors that the run lacks, by reason.
        outside: Digests of candidates of the run that are no survivors: they are not in the space, as a variant of a
            candidate may be, or the fields do not see that they are equal.
    """

    states: int
    graphs: int
    survivors: int
    run_states: int
    found: int
    missing: dict[str, int]
    outside: tuple[str, ...]


def find_equal_graphs(
    program: KernelGraph, space: SearchSpace, seed: int, limits: tuple[int, float] = _LIMITS
) -> EnumeratedSpace | SpaceNotEnumerated:
    """Enumerate a space, and return the graphs that equal a program of predefined operators.

    Sound: a limit that is reached, or a program without a value in the fields, gives no survivors but a reason.

    Args:
        program: The program.
        space: The space.
        seed: Seed of the random point.
        limits: Most states, and seconds of processor time.
    """
    drawn = FingerprintSession(program, FingerprintSettings(seed=seed)).check(program)
    if not isinstance(drawn.verdict, Probable):
        return SpaceNotEnumerated(f"the program has no value in the fields: {drawn.record.reason}")
    point, source = random_point(program, drawn.record)
    wanted = evaluate_steps(program, point, source)
    enumeration = SpaceEnumeration(program, space, limits)
    survivors: dict[str, KernelGraph] = {}
    graphs = over_reals = 0
    try:
        for graph in enumeration.graphs():
            graphs += 1
            try:
                outputs = evaluate_steps(graph, point, source)
                equal = all(np.array_equal(a, b) for a, b in zip(outputs, wanted, strict=True))
            except (UndefinedValueError, FormatError):
                over_reals += 1
                equal = is_equal(program, graph)
            if equal:
                form, name = canonical_with_digest(graph)
                survivors[name] = form
    except EnumerationStopped as stopped:
        return SpaceNotEnumerated(str(stopped))
    return EnumeratedSpace(enumeration.states, graphs, over_reals, survivors)


def compare_with_space(run: Run) -> SpaceComparison | SpaceNotEnumerated:
    """Enumerate the space of a run of one of the two engines here, and compare the survivors with its candidates.

    Sound: a survivor that the run lacks is refused, unless a predicate of ``search/known_incompleteness.py`` explains
    it, the search did not end, or no fingerprint decides about it. What the guided engine leaves out has more names
    than predicates, so what none of them explains is counted there, and not refused.

    Raises:
        CheckFailed: The exhaustive engine lost a survivor, or a candidate differs from the program.
    """
    who = run.record.identity
    if who.engine not in ("exhaustive", "guided"):
        return SpaceNotEnumerated("its candidates are not those of a search here")
    try:
        fields = {name: msgspec.json.decode(value) for name, value in run.record.space.items()}
        space = msgspec.convert(fields, SearchSpace)
    except msgspec.ValidationError as error:
        return SpaceNotEnumerated(f"its bounds are not those of this version: {error}")
    if who.engine == "guided" and space.most_operators > ENUMERATED_OPERATORS:
        return SpaceNotEnumerated(f"guided search of up to {space.most_operators} operators")
    with step(run.root / SEARCH_FILE, "space enumerated again"):
        sought = preprocess(run.program)
        found = find_equal_graphs(sought.program, space, who.seed)
        if isinstance(found, SpaceNotEnumerated):
            return found
        ours = {digest(_inlined(sought.wrapped(graph))): graph for graph in found.survivors.values()}
        records = {one.digest: decode_graph(one.graph) for unit in run.units for one in unit.candidates}
        theirs = {digest(_inlined(graph)): name for name, graph in records.items()}
        session = FingerprintSession(sought.program, FingerprintSettings(seed=who.seed))
        missing: Counter[str] = Counter()
        for name, graph in ours.items():
            if name not in theirs:
                reason = _missing_reason(run, session, graph)
                if reason is None:
                    text = to_text(graph).strip().replace("\n", "; ")
                    raise FormatError(f"expected candidate {name[:12]}, which is in the space, got none: {text}")
                missing[reason] += 1
        outside = sorted(name for form, name in theirs.items() if form not in ours)
        whole = FingerprintSession(run.program, FingerprintSettings(seed=who.seed))
        for name in outside:
            if isinstance(whole.check(records[name]).verdict, Different):
                raise FormatError(f"candidate {name[:12]}: expected one that equals the program, got one that differs")
    return SpaceComparison(
        found.states, found.graphs, len(ours), run.summary.states, len(records), dict(missing), tuple(outside)
    )


def describe_space(found: SpaceComparison | SpaceNotEnumerated) -> list[str]:
    """Return a comparison as lines of text."""
    if isinstance(found, SpaceNotEnumerated):
        return [f"space not enumerated again: {found.reason}"]
    lines = [
        f"space enumerated again: {found.states:,} states (the run: {found.run_states:,}), {found.graphs:,} complete"
        f" graphs, {found.survivors:,} survivors (the run: {found.found:,})"
    ]
    lines += [f"survivors that the run lacks, {reason}: {count:,}" for reason, count in sorted(found.missing.items())]
    if found.outside:
        some = ", ".join(name[:12] for name in found.outside[:_SHOWN])
        lines.append(f"candidates that are no survivors of the space: {len(found.outside):,}, such as {some}")
    return lines


def _inlined(graph: KernelGraph) -> KernelGraph:
    """Return a graph with thread graphs inlined, as the space has it."""
    ops = (replace(op, graph=inline_threads(op.graph)[0]) if isinstance(op, GraphDefined) else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def _missing_reason(run: Run, session: FingerprintSession, graph: KernelGraph) -> str | None:
    """Return the reason why a run may lack a survivor, None if there is none."""
    who, summary = run.record.identity, run.summary
    if summary.status != "complete" or summary.units_failed or summary.stats.get("cut", 0):
        return "because the search did not end"
    if not isinstance(session.check(graph).verdict, Probable):
        return "about which no fingerprint decides"
    if who.engine == "guided":
        reason = missing_reason(session.program, graph)
        return "for no reason that has a predicate" if reason is None else f"left out by name ({reason.value})"
    return "left out by name (cancels)" if who.prune and needs_cancellation(session.program, graph) else None


__all__ = [
    "EnumeratedSpace",
    "SpaceComparison",
    "SpaceNotEnumerated",
    "compare_with_space",
    "describe_space",
    "find_equal_graphs",
]

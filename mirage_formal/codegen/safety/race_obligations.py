"""Obligations about memory: conflicts in shared memory, single writers and coverage of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement

from mirage_formal.codegen.program.access import GRID, Access, Mode, ProgramAccesses
from mirage_formal.codegen.program.program import Param, Program
from mirage_formal.codegen.safety.access_disjointness import PairAnalysis, extents, is_trivially_unsatisfiable
from mirage_formal.codegen.safety.enumerate import check_liveness, count_points, covers_all
from mirage_formal.codegen.safety.happens_before import (
    Interpreter,
    ThreadRelation,
    TimelineError,
    all_nodes,
    copies_among_others,
    distinct_blocks,
    unordered_pairs,
)
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    Finding,
    Obligation,
    ObligationKind,
    UndecidedObligation,
)
from mirage_formal.codegen.safety.pipeline_obligations import item_copies

#: The most accesses that write one parameter for which pairs are listed one by one.
MAX_WRITES = 512


def conflict_obligations(program: Program, listing: ProgramAccesses) -> Iterator[Obligation]:
    """Yield one obligation for each two accesses to shared memory that are unordered.

    Sound: ``unordered_pairs`` lists every pair that can happen in either order (with loops that synchronise run, so
    with the very groups, waits, barriers and items of each iteration) except those whose bounds are disjoint. The
    producer does the same in every block.
    """
    pairs = PairAnalysis(program, ("tid",), whole=True)
    found: dict[tuple[int, int], ThreadRelation] = {}
    run = Interpreter()
    apart = _apart_by_number(pairs, run.timeline.distinct)
    try:
        for blocks in distinct_blocks(listing.tree, extents(program)):
            run = Interpreter(copies_among_others, decided=blocks.decided, earlier=run)
            timeline = run.follow(listing.tree)
            produced = Interpreter(all_nodes, earlier=run).follow(listing.producer)
            copies = item_copies(program, produced, timeline)
            for pair, who in unordered_pairs(timeline, apart, copies).items():
                found[pair] = found.get(pair, ThreadRelation(0)) | who
    except TimelineError as error:
        yield Obligation(
            ObligationKind.CONFLICT, "", "shared memory", "accesses are ordered", None, UndecidedObligation(str(error))
        )
        return
    for (first, second), who in sorted(found.items()):
        a, b = run.timeline.distinct[first], run.timeline.distinct[second]
        path = a.context.path if a.context.path == b.context.path else f"{a.context.path} & {b.context.path}"
        subject = a.target.name if a.target == b.target else f"{a.target.name}, {b.target.name}"
        claim = f"{_threads(a, b, who)} never touch the same byte by {a.mode} and {b.mode} with nothing between them"
        yield _pair_obligation(pairs, a, b, who, Obligation(ObligationKind.CONFLICT, path, subject, claim))


def _threads(a: Access, b: Access, who: ThreadRelation) -> str:
    if Mode.TILE in (a.mode, b.mode):
        return "items of the producer" if a.mode is b.mode else "the producer and a thread"
    if Mode.MATRIX in (a.mode, b.mode) or (who & ThreadRelation.OTHERS and who & ThreadRelation.SAME):
        return "threads"
    return "two threads" if who & ThreadRelation.OTHERS else "a thread's own accesses"


def _apart_by_number(pairs: PairAnalysis, distinct: list[Access]) -> Callable[[int, int], bool]:
    """Return ``pairs.apart`` as a cached function of two accesses' positions in ``distinct``."""

    @cache
    def apart(first: int, second: int) -> bool:
        return pairs.apart(distinct[first], distinct[second])

    return apart


def _pair_obligation(pairs: PairAnalysis, a: Access, b: Access, who: ThreadRelation, stated: Obligation) -> Obligation:
    """Return the obligation of two accesses: its query, and the finding if no solver is needed."""
    query = pairs.query(a, b, who)
    finding: Finding | None = pairs.decide_by_bounds(a, b, who)
    if finding is None and is_trivially_unsatisfiable(query):
        finding = DischargedObligation(DischargeMethod.INTERVAL)
    return replace(stated, query=query, finding=finding)


def liveness_obligations(program: Program, listing: ProgramAccesses) -> Iterator[Obligation]:
    """Yield one obligation for each statement that reads shared memory; ``check_liveness`` settles it."""
    names: dict[str, list[str]] = {}
    for access in listing.accesses:
        if not access.mode.writes and not isinstance(access.target, Param):
            listed = names.setdefault(access.context.path, [])
            if access.target.name not in listed:
                listed.append(access.target.name)
    for path, finding in check_liveness(program, listing).items():
        claim = "what is read was written last through the same buffer"
        yield Obligation(ObligationKind.LIVE, path, ", ".join(names[path]), claim, None, finding)


def writer_obligations(program: Program, listing: ProgramAccesses) -> Iterator[Obligation]:
    """Yield the obligations that every written parameter has single writers and is covered."""
    for param in program.params:
        if param.written:
            accesses = [access for access in listing.accesses if access.target == param and access.mode.writes]
            yield from _param(program, param, accesses)


@dataclass(slots=True)
class _Injectivity:
    """State of the analysis: whether all writes so far are to different elements."""

    so_far: bool = True


def _param(program: Program, param: Param, accesses: list[Access]) -> Iterator[Obligation]:
    pairs = PairAnalysis(program, ("tid", *GRID), whole=False)
    exact = _Injectivity()
    if len(accesses) > MAX_WRITES:
        many = UndecidedObligation(f"more than {MAX_WRITES} statements write it")
        yield Obligation(ObligationKind.SINGLE_WRITER, "", param.name, "one writer for each element", None, many)
        return
    for a, b in combinations_with_replacement(accesses, 2):
        found = _single_writer(pairs, param, a, b, exact)
        if found is not None:
            yield found
    finding = _coverage(program, param, accesses, exact.so_far)
    claim = "every element is written"
    query = None
    if finding == DischargedObligation(DischargeMethod.RADIX) and len(accesses) == 1:
        # What the count rests on: no element is written twice.
        query = pairs.query(accesses[0], accesses[0], ThreadRelation.OTHERS | ThreadRelation.SAME)
    yield Obligation(ObligationKind.COVERAGE, "", param.name, claim, query, finding)


def _single_writer(pairs: PairAnalysis, param: Param, a: Access, b: Access, exact: _Injectivity) -> Obligation | None:
    if a is not b and pairs.apart(a, b):
        return None
    path = a.context.path if a is b else f"{a.context.path} & {b.context.path}"
    claim = "two threads, of one block or two, never write the same element"
    found = _pair_obligation(
        pairs, a, b, ThreadRelation.OTHERS, Obligation(ObligationKind.SINGLE_WRITER, path, param.name, claim)
    )
    if a is b:
        exact.so_far &= pairs.exact(a)
    else:
        exact.so_far &= isinstance(
            pairs.decide_by_bounds(a, b, ThreadRelation.OTHERS | ThreadRelation.SAME), DischargedObligation
        )
    return found


def _coverage(program: Program, param: Param, accesses: list[Access], exact: bool) -> Finding:
    """Return the finding whether every element of a parameter is written.

    Sound: writes that are in bounds (their own obligations) and all of different elements cover a parameter if they
    are as many as its elements; else all are looked at.
    """
    if exact:
        counts = [
            count_points(access.context.guards, [*extents(program).items(), *access.context.loops])
            for access in accesses
        ]
        written = [number * access.count for number, access in zip(counts, accesses, strict=True) if number is not None]
        if len(written) == len(accesses) and sum(written) == param.elements:
            return DischargedObligation(DischargeMethod.RADIX)
    return covers_all(accesses, extents(program), param.elements)

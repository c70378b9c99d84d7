"""Obligations of a joined launch: its tickets, and what its second kernel reads of the first one's results.

Each of the two Programs has its own obligations, which hold whoever runs its blocks. These are about the results that
one hands over to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.joined_launches.block_groups import GROUP, ROUND, BlockGroups, JoinedProgram
from mirage_formal.codegen.program.access import GRID, Access, list_accesses
from mirage_formal.codegen.program.integers import conjuncts, fold, intermediates, variables
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Program
from mirage_formal.codegen.safety.arith import INT_MAX
from mirage_formal.codegen.safety.enumerate import (
    MAX_POINTS,
    AccessPoints,
    TooManyPointsError,
    access_points,
    evaluate_at,
    variable_grids,
)
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    Finding,
    Obligation,
    ObligationKind,
    UndecidedObligation,
    ViolatedObligation,
)

#: The most points of all accesses to one tensor; beyond, nothing is decided.
MAX_ACCESSES = 1 << 26
_ENUMERATION = DischargeMethod.ENUMERATION

Numbers = NDArray[np.int64]


def joined_obligations(joined: JoinedProgram) -> tuple[Obligation, ...]:
    """Return the obligations of a joined launch beside those of its two Programs.

    Sound: a Program has no statement that ends a thread, so every thread of every block reaches the ticket, behind all
    that it does for the first kernel; it publishes its writes before that. A group's counter is 0 at first, and each
    block adds one to it, once. So the ticket that the last of the group's blocks takes is their number less one, no
    other block takes it, and only then is the counter set to 0, where no block of the launch adds to it any more. That
    block reads what others of its group published before their tickets; that it reads nothing else of the launch is
    decided here, on the Programs' indices. No block waits for another one, so the launch ends whatever their order is.

    Between two blocks of a Program in one block of the launch all copies are complete and all threads meet, and each
    block of a Program reads of shared memory only what it wrote itself (``ObligationKind.LIVE``).
    """
    faults = tuple(joined.faults())
    if faults:
        finding = ViolatedObligation(DischargeMethod.FORM, (), faults[0])
        return (Obligation(ObligationKind.ARRIVAL, "", joined.name, faults[0], None, finding),)
    return (*_arrivals(joined), *_handovers(joined))


# --- tickets ---------------------------------------------------------------------------------------------------------


def _arrivals(joined: JoinedProgram) -> Iterator[Obligation]:
    groups = joined.groups
    claim = f"each of {groups.count} counters gets {groups.blocks} tickets, one of each block of its group"
    yield Obligation(ObligationKind.ARRIVAL, "", "mf_counters", claim, None, _tickets(joined))
    claim = f"the groups' {groups.rounds} blocks each are all blocks of {joined.then.name}, once"
    yield Obligation(ObligationKind.HANDOVER, "", joined.then.name, claim, None, _runs(joined))


def _tickets(joined: JoinedProgram) -> Finding:
    """Return the finding whether every group has a counter, and as many blocks as are counted.

    Sound: the group of every block is computed here, from the expression that is printed.
    """
    groups = joined.groups
    if variables(groups.group) - {*GRID}:
        return ViolatedObligation(DischargeMethod.FORM, (), "the group is not a function of the block")
    try:
        found = _of_blocks(joined.first, groups.group)
        computed = _is_computed(groups.group, variable_grids(tuple(zip(GRID, joined.first.grid, strict=True))))
    except TooManyPointsError:
        return UndecidedObligation("too many blocks")
    if not computed:
        return ViolatedObligation(_ENUMERATION, (), "the group is not computed within 0..2^31-1")
    if found.min() < 0 or found.max() >= groups.count:
        return ViolatedObligation(
            _ENUMERATION, _block_at(joined.first, (found < 0) | (found >= groups.count)), "no counter"
        )
    counts = np.bincount(found, minlength=groups.count)
    if (counts != groups.blocks).any():
        wrong = int((counts != groups.blocks).argmax())
        return ViolatedObligation(_ENUMERATION, ((GROUP, wrong),), f"{int(counts[wrong])} blocks arrive at its counter")
    return DischargedObligation(_ENUMERATION)


def _runs(joined: JoinedProgram) -> Finding:
    """Return the finding whether the groups' blocks of the second kernel are all of its blocks, each once.

    Sound: the blocks of every group and round are computed here, from the expressions that are printed.
    """
    found = _run_blocks(joined)
    if not isinstance(found, np.ndarray):
        return found
    blocks = prod(joined.then.grid)
    counts = np.bincount(found.ravel(), minlength=blocks)
    if (counts != 1).any():
        wrong = int((counts != 1).argmax())
        return ViolatedObligation(_ENUMERATION, (("block", wrong),), f"it is run {int(counts[wrong])} times")
    return DischargedObligation(_ENUMERATION)


def _run_blocks(joined: JoinedProgram) -> Numbers | Finding:
    """Return the number of the block of the second kernel that each group runs in each round."""
    groups, (x, y, z) = joined.groups, joined.then.grid
    if any(variables(one) - {GROUP, ROUND} for one in groups.then_block):
        return ViolatedObligation(DischargeMethod.FORM, (), "a block is not a function of the group and the round")
    try:
        at = variable_grids(((GROUP, groups.count), (ROUND, groups.rounds)))
    except TooManyPointsError:
        return UndecidedObligation("too many blocks")
    if not all(_is_computed(one, at) for one in groups.then_block):
        return ViolatedObligation(_ENUMERATION, (), "a block is not computed within 0..2^31-1")
    shape = (groups.count, groups.rounds)
    bx, by, bz = (np.broadcast_to(evaluate_at(one, at), shape) for one in groups.then_block)
    if min(one.min() for one in (bx, by, bz)) < 0 or bx.max() >= x or by.max() >= y or bz.max() >= z:
        return ViolatedObligation(_ENUMERATION, (), "a block lies outside of the grid")
    return np.asarray(bx + x * (by + y * bz))


def _is_computed(e: IntExpr, at: Mapping[str, Numbers]) -> bool:
    """Return whether no intermediate value leaves 0..2^31-1, and no divisor is 0."""
    parts = intermediates(e)
    values = [evaluate_at(part, at) for part in parts]
    divisors = [evaluate_at(p.b, at) for p in parts if isinstance(p, IntBin) and p.op in (IntOp.DIV, IntOp.MOD)]
    return all(v.min() >= 0 and v.max() <= INT_MAX for v in values) and all(v.min() > 0 for v in divisors)


def _of_blocks(program: Program, e: IntExpr) -> Numbers:
    """Return the values of an expression for all blocks, by their numbers: x counts fastest."""
    x, y, z = program.grid
    grids = variable_grids((("bz", z), ("by", y), ("bx", x)))
    return np.broadcast_to(evaluate_at(e, grids), (z, y, x)).ravel()


def _block_at(program: Program, where: NDArray[np.bool_]) -> tuple[tuple[str, int], ...]:
    number, (x, y, _) = int(where.argmax()), program.grid
    return (("bx", number % x), ("by", number // x % y), ("bz", number // x // y))


# --- what is handed over ---------------------------------------------------------------------------------------------


def _handovers(joined: JoinedProgram) -> Iterator[Obligation]:
    """Yield one obligation for each tensor that is handed over."""
    of_reads, of_writes = list_accesses(joined.then), list_accesses(joined.first)
    runs = _run_blocks(joined)
    for name, source in joined.groups.handed:
        claim = f"each block reads only elements that blocks of its group wrote to {source}"
        reads = [one for one in of_reads.accesses if one.target.name == name and one.target in joined.then.params]
        writes = [one for one in of_writes.accesses if one.target.name == source and one.target in joined.first.params]
        finding: Finding
        if isinstance(runs, np.ndarray):
            finding = _reads_own_group(joined, (reads, writes), runs)
        else:
            finding = UndecidedObligation("its blocks are not those of the groups")
        yield Obligation(ObligationKind.HANDOVER, "", name, claim, None, finding)


def _reads_own_group(joined: JoinedProgram, accesses: tuple[list[Access], list[Access]], runs: Numbers) -> Finding:
    """Return the finding whether what each block of the second kernel reads was written by blocks of its own group.

    Sound: every access of every thread and iteration is looked at, with its conditions. Each element is written by one
    thread (``ObligationKind.SINGLE_WRITER``), so its group is known.
    """
    reads, writes = accesses
    if not reads:
        return DischargedObligation(_ENUMERATION)
    groups = joined.groups
    group_of_run = np.full(prod(joined.then.grid), -2, np.int64)  # what no group runs breaks an obligation of its own
    group_of_run[runs.ravel()] = np.repeat(np.arange(groups.count), groups.rounds)
    elements = reads[0].target.elements
    try:
        written = np.full(elements, -1, np.int64)
        group_of_block = _of_blocks(joined.first, groups.group)
        for access, points in _all_points(joined.first, writes):
            touched = points.index[:, None] + np.arange(access.count)
            if touched.size and (touched.min() < 0 or touched.max() >= elements):
                return UndecidedObligation("a write is out of bounds")
            written[touched] = group_of_block[_numbers(joined.first, points)][:, None]
        for access, points in _all_points(joined.then, reads):
            touched = points.index[:, None] + np.arange(access.count)
            if touched.size and (touched.min() < 0 or touched.max() >= elements):
                return UndecidedObligation("a read is out of bounds")
            wrong = (written[touched] != group_of_run[_numbers(joined.then, points)][:, None]).any(axis=1)
            if wrong.any():
                at = int(wrong.argmax())
                model = [(name, int(values[at])) for name, values in points.at.items()]
                return ViolatedObligation(
                    _ENUMERATION, (*model, ("index", int(points.index[at]))), "another group wrote it, or none"
                )
    except (TooManyPointsError, IndexError):
        return UndecidedObligation("too many threads, blocks and iterations")
    return DischargedObligation(_ENUMERATION)


def _numbers(program: Program, points: AccessPoints) -> Numbers:
    x, y, _ = program.grid
    return points.at["bx"] + x * (points.at["by"] + y * points.at["bz"])


def _all_points(program: Program, accesses: Sequence[Access]) -> Iterator[tuple[Access, AccessPoints]]:
    """Yield all points of accesses in parts that are not too large.

    Raises:
        TooManyPointsError: There are more than ``MAX_ACCESSES``.
    """
    for access in accesses:
        guards = conjuncts(access.context.guards)
        names = variables(access.index).union(*map(variables, guards))
        loops = [(name, extent) for name, extent in access.context.loops if name in names]
        sizes = [("tid", program.threads)] if "tid" in names else []
        grid = list(zip(GRID, program.grid, strict=True))
        if prod(extent for _, extent in (*grid, *sizes, *loops)) > MAX_ACCESSES:
            raise TooManyPointsError
        for fixed, free in _parts(grid, prod(extent for _, extent in (*sizes, *loops))):
            given: Mapping[str, IntExpr] = {name: Int(value) for name, value in fixed}
            own = Access(access.context, access.mode, access.target, fold(access.index, given), access.count)
            points = access_points(own, [*free, *sizes, *loops], [fold(guard, given) for guard in guards])
            more = {name: np.full(points.index.shape, value, np.int64) for name, value in fixed}
            yield access, AccessPoints(points.index, {**points.at, **more})


def _parts(
    grid: list[tuple[str, int]], inner: int
) -> Iterator[tuple[tuple[tuple[str, int], ...], list[tuple[str, int]]]]:
    """Yield values of some axes of the grid, and the axes that are free, so that parts have few points."""
    if inner * prod(extent for _, extent in grid) <= MAX_POINTS or not grid:
        yield (), grid
        return
    (name, extent), rest = grid[-1], grid[:-1]
    for value in range(extent):
        for fixed, free in _parts(rest, inner):
            yield ((name, value), *fixed), free


__all__ = ["MAX_ACCESSES", "BlockGroups", "joined_obligations"]

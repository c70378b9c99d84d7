"""Obligations settled by enumeration of every thread, block and iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.access import (
    GRID,
    MAX_THREADS,
    Access,
    Branch,
    Loop,
    Mode,
    Node,
    ProgramAccesses,
)
from mirage_formal.codegen.program.integers import conjuncts, fold, variables
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Program, Var
from mirage_formal.codegen.safety.happens_before import (
    Interpreter,
    LoopAccess,
    TimelineError,
    all_nodes,
    decided_guards,
    distinct_blocks,
    shared_memory_statements,
    shares_bytes,
)
from mirage_formal.codegen.safety.mixed_radix import Digit, to_digits
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    Finding,
    UndecidedObligation,
    ViolatedObligation,
)
from mirage_formal.codegen.safety.pipeline_obligations import steps_with_copies

#: The most points that one question enumerates.
MAX_POINTS = 1 << 22
#: The most blocks for which shared memory is enumerated; beyond, conditions on the block are taken at their worst.
MAX_BLOCKS = 16

Values = NDArray[np.int64]
Extents = Sequence[tuple[str, int]]


class TooManyPointsError(Exception):
    """There are more points than the limit of an enumeration."""


def variable_grids(extents: Extents) -> dict[str, Values]:
    """Return the values of every variable along an axis of its own."""
    if prod(extent for _, extent in extents) > MAX_POINTS:
        raise TooManyPointsError
    grids = np.ix_(*(np.arange(extent, dtype=np.int64) for _, extent in extents))
    return {name: grid for (name, _), grid in zip(extents, grids, strict=True)}


def evaluate_at(e: IntExpr, at: Mapping[str, Values]) -> Values:
    """Return an expression's values at all points.

    Operands of ``/ % ^`` are not negative (arithmetic obligations guarantee it).
    """
    match e:
        case Int(value):
            return np.asarray(value, dtype=np.int64)
        case Var(name):
            return at[name]
        case IntBin(op, a, b):
            return _operate(op, evaluate_at(a, at), evaluate_at(b, at))


def _operate(op: IntOp, x: Values, y: Values) -> Values:
    found: NDArray[np.int64] | NDArray[np.bool_]
    match op:
        case IntOp.ADD:
            found = x + y
        case IntOp.SUB:
            found = x - y
        case IntOp.MUL:
            found = x * y
        case IntOp.DIV:
            found = x // np.maximum(y, 1)
        case IntOp.MOD:
            found = x % np.maximum(y, 1)
        case IntOp.XOR:
            found = x ^ y
        case IntOp.LT:
            found = x < y
        case IntOp.EQ:
            found = x == y
        case IntOp.AND:
            found = (x != 0) & (y != 0)
    return np.asarray(found, dtype=np.int64)


def count_points(guards: Iterable[IntExpr], extents: Extents, most: int = MAX_POINTS) -> int | None:
    """Return the number of points that meet all conditions; None if more than ``most`` would be enumerated."""
    groups: list[tuple[set[str], list[IntExpr]]] = []
    for guard in conjuncts(guards):
        names, members = set(variables(guard)), [guard]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names |= group[0]
            members += group[1]
        groups.append((names, members))
    total = prod(extent for name, extent in extents if not any(name in names for names, _ in groups))
    for names, members in groups:
        own = [(name, extent) for name, extent in extents if name in names]
        found = _count_by_digits(members[0], own) if len(members) == 1 else None
        found = _count_by_enumeration(members, own, most) if found is None else found
        if found is None:
            return None
        total *= found
    return total


def _count_by_digits(guard: IntExpr, extents: Extents) -> int | None:
    """Return the number of points that meet ``a < c`` or ``a / k < c``, if a numbers the points; else None.

    Sound: whole variables whose coefficients are 1 and the products of the extents below them are the digits of a
    mixed-radix number, which takes every value below its size at one point; ``a / k < c`` is ``a < c * k``.
    """
    match guard:
        case IntBin(IntOp.LT, IntBin(IntOp.DIV, a, Int(k)), Int(bound)) if k > 0 and bound >= 0:
            return _count_by_digits(IntBin(IntOp.LT, a, Int(k * bound)), extents)
        case IntBin(IntOp.LT, a, Int(bound)) if bound >= 0:
            x = to_digits(a, dict(extents))
        case _:
            return None
    if x is None or x.constant:
        return None
    size, names = 1, list[str]()
    for coefficient, atom in x.terms:
        if not isinstance(atom, Digit) or coefficient != size or atom.div != 1 or atom.mod != atom.size:
            return None
        size *= atom.mod
        names += [name for name, _ in atom.string]
    return min(bound, size) if sorted(names) == sorted(name for name, extent in extents if extent > 1) else None


def _count_by_enumeration(guards: Sequence[IntExpr], extents: Extents, most: int) -> int | None:
    """Return the number of points that meet conditions on these variables; None if there are too many to enumerate.

    If there are too many, a variable that all conditions share is set to each of its values. The conditions may then
    share no variable, and separate into few points each. That is done once, so that the work stays bounded.



    Sound: the points of all values of one variable together are all points, each once.
    """
    if prod(extent for _, extent in extents) <= most:
        at, shape = variable_grids(extents), tuple(extent for _, extent in extents)
        met = np.ones(shape, dtype=bool)
        for guard in guards:
            met &= np.broadcast_to(evaluate_at(guard, at) != 0, shape)
        return int(met.sum())
    shared = set.intersection(*(set(variables(guard)) for guard in guards))
    own = [(extent, name) for name, extent in extents if name in shared and 1 < extent <= MAX_THREADS]
    if not own or most < MAX_POINTS:
        return None
    size, chosen = max(own)
    rest, total = [item for item in extents if item[0] != chosen], 0
    for value in range(size):
        found = count_points([fold(guard, {chosen: Int(value)}) for guard in guards], rest, MAX_POINTS // size)
        if found is None:
            return None
        total += found
    return total


@dataclass(frozen=True, slots=True)
class AccessPoints:
    """The points at which an access happens: its index and each variable's value."""

    index: Values
    at: dict[str, Values]


def access_points(access: Access, extents: Extents, guards: Iterable[IntExpr]) -> AccessPoints:
    """Return the points of some variables at which an access happens, under these conditions."""
    grids = variable_grids(extents)
    shape = tuple(extent for _, extent in extents)
    met = np.ones(shape, dtype=bool)
    for guard in guards:
        met &= np.broadcast_to(evaluate_at(guard, grids) != 0, shape)
    index = np.broadcast_to(evaluate_at(access.index, grids), shape)[met]
    return AccessPoints(index, {name: np.broadcast_to(grid, shape)[met] for name, grid in grids.items()})


# --- shared memory ---------------------------------------------------------------------------------------------------


def check_liveness(program: Program, listing: ProgramAccesses) -> dict[str, Finding]:
    """Return, for each path of a statement that reads shared memory, whether the last writes used the same buffer.

    Sound: all threads' accesses are followed in program order, statement by statement (loops that write and read the
    same bytes iteration by iteration), and each unit of shared memory remembers through which buffer it was written
    last. Where conflicts are excluded (their own obligations), every order that can happen gives the same: the copies
    of an item count as done where the consumers await it, for until then nobody else touches the bytes. Conditions
    on the block are looked at block by block, or, with too many blocks, taken to fail for writes and to hold for reads.
    Of blocks that differ in nothing but in conditions of branches that one class of them shares, one is looked at
    (``distinct_blocks``).
    """
    extents = dict(zip(GRID, program.grid, strict=True))
    try:
        assignments = [_integers(blocks.block) for blocks in distinct_blocks(listing.tree, extents)]
    except TimelineError as error:
        return {path: UndecidedObligation(str(error)) for path in _readers(listing)}
    deciding = assignments[0].keys()
    names = _shared_names(listing, frozenset(decided_guards(listing.tree, deciding)))
    used = [name for name in GRID if extents[name] > 1 and name in names]
    if deciding & {*used}:
        used, assignments = [name for name in GRID if name in deciding or name in used], [{}]
    if used and prod(extents[name] for name in used) <= MAX_BLOCKS:
        every = [dict(zip(used, blocks, strict=True)) for blocks in product(*(range(extents[n]) for n in used))]
        assignments = [known | more for known in assignments for more in every]
    findings: dict[str, Finding] = {}
    run, touched = Interpreter(), dict[int, NDArray[np.int64] | None]()
    for blocks in assignments:
        run = Interpreter(_reads_and_writes, {name: Int(value) for name, value in blocks.items()}, earlier=run)
        for path, finding in _check_block(program, listing, blocks, run, touched).items():
            if isinstance(findings.get(path, DischargedObligation(DischargeMethod.ENUMERATION)), DischargedObligation):
                findings[path] = finding
    return findings


def _integers(block: Mapping[str, IntExpr]) -> dict[str, int]:
    return {name: value.value for name, value in block.items() if isinstance(value, Int)}


def _shared_names(listing: ProgramAccesses, deciding: frozenset[IntExpr]) -> frozenset[str]:
    """Return the variables of shared-memory accesses, except those in conditions that decide about synchronisation."""
    found: frozenset[str] = frozenset()
    for node in (*listing.tree, *listing.producer):
        for leaf in shared_memory_statements(node):
            for access in leaf.accesses:
                guards = (guard for guard in conjuncts(access.context.guards) if guard not in deciding)
                found |= variables(access.index).union(*map(variables, guards))
    return found


def _check_block(
    program: Program,
    listing: ProgramAccesses,
    blocks: Mapping[str, int],
    run: Interpreter,
    touched: dict[int, NDArray[np.int64] | None],
) -> dict[str, Finding]:
    try:
        values: dict[str, IntExpr] = {name: Int(value) for name, value in blocks.items()}
        timeline = run.follow(listing.tree)
        produced = Interpreter(all_nodes, values, earlier=run).follow(listing.producer)
    except TimelineError as error:
        return {path: UndecidedObligation(str(error)) for path in _readers(listing)}
    fixed = {**{name: 0 for name, extent in zip(GRID, program.grid, strict=True) if extent == 1}, **blocks}
    memory = _Memory(program, fixed, touched)
    findings: dict[str, Finding] = dict.fromkeys(_readers(listing), DischargedObligation(DischargeMethod.ENUMERATION))
    for step in steps_with_copies(timeline, produced):
        try:
            finding = memory.follow(step)
        except TooManyPointsError:
            return {
                path: UndecidedObligation(f"{step.access.context.path}: too many threads and iterations")
                for path in findings
            }
        if not isinstance(finding, DischargedObligation) and isinstance(
            findings[step.access.context.path], DischargedObligation
        ):
            findings[step.access.context.path] = finding
    return findings


def _readers(listing: ProgramAccesses) -> Iterator[str]:
    for node in listing.tree:
        for leaf in shared_memory_statements(node):
            for access in leaf.accesses:
                if not access.mode.writes:
                    yield access.context.path


def _reads_and_writes(node: Node) -> bool:
    """Return whether a loop reads and writes buffers that alias, so that its iterations depend on each other."""
    match node:
        case Loop() | Branch():
            found = [access for leaf in shared_memory_statements(node) for access in leaf.accesses]
            written = {access.target for access in found if access.mode.writes}
            read = {access.target for access in found if not access.mode.writes}
            return any(shares_bytes(a, b) for a in written for b in read)
        case _:
            return False


class _Memory:
    """The buffer through which each unit of shared memory was written last; elements consist of whole units."""

    def __init__(
        self, program: Program, fixed: Mapping[str, int], touched: dict[int, NDArray[np.int64] | None]
    ) -> None:
        self._program = program
        self._fixed = fixed
        self._unit = min((buffer.dtype.bytes for buffer in program.shared), default=1)
        self._owner = np.zeros(program.shared_bytes // self._unit + 1, dtype=np.int32)
        self._ids = {buffer.name: number + 1 for number, buffer in enumerate(program.shared)}
        self._touched = touched
        self._partial = False

    def follow(self, step: LoopAccess) -> Finding:
        access = step.access
        if step.number not in self._touched:
            self._touched[step.number] = self._units(access)
        units = self._touched[step.number]
        owner = self._ids[access.target.name]
        if units is None:
            return (
                DischargedObligation(DischargeMethod.ENUMERATION)
                if access.mode.writes
                else UndecidedObligation("its index depends on the block")
            )
        if access.mode.writes:
            self._owner[units] = owner
        elif (self._owner[units] != owner).any():
            if self._partial:
                return UndecidedObligation("shared memory is written under conditions on the block")
            return self._fault(access, owner)
        return DischargedObligation(DischargeMethod.ENUMERATION)

    def _free(self, access: Access) -> tuple[Extents, list[IntExpr], list[IntExpr]]:
        """Return the variables of an access's points, the conditions on them, and the conditions on the block."""
        threads = [] if access.mode is Mode.TILE else [("tid", self._program.threads)]
        extents = [*threads, *access.context.loops, *((name, 1) for name in self._fixed)]
        blocks = {name for name in GRID if name not in self._fixed}
        guards = conjuncts(access.context.guards)
        own = [guard for guard in guards if not variables(guard) & blocks]
        return extents, own, [guard for guard in guards if variables(guard) & blocks]

    def _units(self, access: Access) -> NDArray[np.int64] | None:
        extents, own, foreign = self._free(access)
        if variables(access.index) - {name for name, _ in extents} or (foreign and access.mode.writes):
            self._partial = True
            return None
        index = access_points(access, extents, own).index
        first = np.unique(index) * access.target.dtype.bytes + getattr(access.target, "offset", 0)
        units = np.unique((first[:, None] + np.arange(0, access.bytes, self._unit)).ravel() // self._unit)
        # What lies outside breaks its own obligation.
        return units[(units >= 0) & (units < self._owner.size)]

    def _fault(self, access: Access, owner: int) -> ViolatedObligation:
        extents, own, _ = self._free(access)
        points = access_points(access, extents, own)
        first = points.index * access.target.dtype.bytes + getattr(access.target, "offset", 0)
        touched = (first[:, None] + np.arange(0, access.bytes, self._unit)) // self._unit
        units = np.clip(touched, 0, self._owner.size - 1)
        wrong = self._owner[units] != owner
        position = int(wrong.any(axis=1).argmax())
        seen = int(self._owner[units[position][int(wrong[position].argmax())]])
        model = [(name, int(grid[position])) for name, grid in points.at.items()]
        model = [(name, self._fixed.get(name, value)) for name, value in model]
        what = f"written last through {self._program.shared[seen - 1].name}" if seen else "never written before"
        return ViolatedObligation(DischargeMethod.ENUMERATION, (*model, ("index", int(points.index[position]))), what)


# --- parameters ------------------------------------------------------------------------------------------------------


def covers_all(accesses: Sequence[Access], extents: Mapping[str, int], elements: int) -> Finding:
    """Return the finding whether the accesses together touch every element of a parameter."""
    seen = np.zeros(elements, dtype=bool)
    try:
        for access in accesses:
            names = variables(access.index).union(*map(variables, access.context.guards))
            loops = [(name, extent) for name, extent in access.context.loops if name in names]
            grid = [(name, extents[name]) for name in ("tid", *GRID) if name in names]
            index = access_points(access, [*grid, *loops], conjuncts(access.context.guards)).index
            touched = (index[:, None] + np.arange(access.count)).ravel()
            if touched.size and (touched.min() < 0 or touched.max() >= elements):
                return UndecidedObligation("out of bounds")
            seen[touched] = True
    except TooManyPointsError:
        return UndecidedObligation("too many threads, blocks and iterations")
    if seen.all():
        return DischargedObligation(DischargeMethod.ENUMERATION)
    return ViolatedObligation(
        DischargeMethod.ENUMERATION, (("index", int(seen.argmin())),), f"{int((~seen).sum())} elements are not written"
    )

"""Definite assignment: every element of a register array that is read was written before by the same thread.

The statements of a Program are listed as reads and writes of register arrays, each with its loops and conditions. A
read is matched with the writes before it: earlier statements in the same iteration of the common loops, and writes of
earlier iterations. (Reads of shared memory have an obligation of their own: see ``live``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, assert_never

import numpy as np

from mirage_formal.codegen.program.integers import add, conjuncts, fold, less_than, make_binary, negate, variables
from mirage_formal.codegen.program.program import (
    Acquire,
    Apply,
    Await,
    Barrier,
    Combine,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    GridWait,
    If,
    Int,
    IntBin,
    IntExpr,
    IntOp,
    LaunchDependents,
    LoadMatrix,
    Mma,
    Pack,
    Program,
    Real,
    Reg,
    Registers,
    Release,
    Select,
    SetReg,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    TileCopy,
    Value,
    Var,
    WaitGroups,
    WarpgroupMma,
    WarpgroupWait,
    Where,
)
from mirage_formal.codegen.safety.access_disjointness import extents, query_variables
from mirage_formal.codegen.safety.arith import Query
from mirage_formal.codegen.safety.enumerate import MAX_POINTS, Values, evaluate_at, variable_grids
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    Finding,
    Obligation,
    ObligationKind,
    UndecidedObligation,
    ViolatedObligation,
)
from mirage_formal.graph.types import DType

#: The most points that are enumerated; more are left to a solver.
MOST_POINTS: Final = 1 << 18
#: The most writes in a query, each iteration counted.
MOST_WRITES: Final = 2048
#: The variable for the register that is read, among those that one statement reads.
REGISTER: Final = "register"


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop, distinguished by its position from other loops of the same variable."""

    path: str
    var: str
    extent: int


@dataclass(frozen=True, slots=True)
class _Event:
    """A read or a write of ``used`` registers from ``index`` on.

    Attributes:
        order: Its place among all events, in the order of the text.
        path: The statement.
        index: The first register.
        used: The number of registers.
        loops, guards: The enclosing loops and conditions, outermost first.
    """

    order: int
    path: str
    index: IntExpr
    used: int
    loops: tuple[_Loop, ...]
    guards: tuple[IntExpr, ...]


@dataclass(slots=True)
class _Array:
    """A register array from its declaration on; each iteration of the loops around the declaration has a new one.

    Attributes:
        name: Its name.
        path: The declaration.
        count: Its number of registers.
        depth: The number of loops around its declaration.
        defined: Whether it is declared with values.
        reads: The reads of it.
        writes: The writes of it.
    """

    name: str
    path: str
    count: int
    depth: int
    defined: bool
    reads: list[_Event] = field(default_factory=list)
    writes: list[_Event] = field(default_factory=list)


def assignment_obligations(program: Program) -> Iterator[Obligation]:
    """Yield one obligation for each register array that is read, and one for each read that only a solver can settle.

    Sound: every read of a register is listed (``_Lister`` visits every value of every statement). It holds if each
    register that it reads, in each iteration of its loops in which its conditions hold, is one that some write has
    written before: earlier in the text with the loops that both stand in at the same iteration, or at an earlier one,
    and with the write's own conditions true of the same thread and block. Loops around the declaration are at the same
    iteration, since there the array is a new one. Operations of a whole warp read what each of its threads has, and
    are reads of every thread. Points that are too many to look at are a question, or are undecided.
    """
    for array in _Lister().arrays(program):
        if not array.reads:
            continue
        claim = "every register that is read was written before"
        means, open_ = DischargeMethod.FORM, list[Obligation]()
        for read in () if array.defined else array.reads:
            query, finding = _settle_read(program, array, read)
            match finding:
                case DischargedObligation(how):
                    means = how if how is not DischargeMethod.FORM else means
                case _:
                    what = f"{claim}: {read.used} from {array.path} on" if read.used > 1 else claim
                    open_.append(Obligation(ObligationKind.ASSIGNMENT, read.path, array.name, what, query, finding))
        yield Obligation(ObligationKind.ASSIGNMENT, array.path, array.name, claim, None, DischargedObligation(means))
        yield from open_


# --- reads and writes ------------------------------------------------------------------------------------------------


class _Lister:
    """A lister of the reads and writes of every register array of a well-formed Program."""

    def __init__(self) -> None:
        self.found: list[_Array] = []
        self.order = 0
        self.path = ""
        self.loops: tuple[_Loop, ...] = ()
        self.guards: tuple[IntExpr, ...] = ()
        self.scope: dict[str, _Array] = {}

    def arrays(self, program: Program) -> list[_Array]:
        self.body(program.body, "")
        return self.found

    def body(self, body: Iterable[Stmt], at: str) -> None:
        outside = self.scope
        self.scope = dict(outside)
        for position, stmt in enumerate(body):
            self.path = f"{at}/{position}" if at else str(position)
            self.statement(stmt)
        self.scope = outside

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Registers(name, count, words, initial):
                defined = initial is not None and not words
                self.scope[name] = _Array(name, self.path, count, len(self.loops), defined)
                self.found.append(self.scope[name])
            case For(var, extent, body):
                loops, path = self.loops, self.path
                self.loops = (*loops, _Loop(path, var, extent))
                self.body(body, f"{path}:for {var}")
                self.loops = loops
            case If(condition, body):
                guards, path = self.guards, self.path
                self.guards = (*guards, *conjuncts((condition,)))
                self.body(body, f"{path}:if")
                self.guards = guards
            case SetReg(array, index, value):
                self.value(value)
                self.write(array, index, 1)
            case Pack(words, index, low, high):
                self.value(low)
                self.value(high)
                self.write(words, index, 1)
            case SharedWrite(values=stored) | GlobalWrite(values=stored):
                for value in stored:
                    self.value(value)
            case SharedVector(array, at, _, _, count) | GlobalVector(array, at, _, _, count):
                self.write(array, at, count)
            case LoadMatrix() | Mma() | WarpgroupMma() | WarpgroupWait() | ShuffleReduce():
                self.exchange(stmt)
            case CopyAsync() | Commit() | WaitGroups() | Barrier() | GridWait() | LaunchDependents():
                pass
            case Acquire() | TileCopy() | Await() | Release():
                pass  # of no registers; the first two stand in the producer, which has none
            case _:
                assert_never(stmt)

    def exchange(self, stmt: LoadMatrix | Mma | WarpgroupMma | WarpgroupWait | ShuffleReduce) -> None:
        """Follow a collective of a warp or warpgroup."""
        match stmt:
            case LoadMatrix(words, at, _, _, count):
                self.write(words, at, count)
            case Mma(d, d_at, a, a_at, b, b_at, dtype):
                each = 2 if dtype is DType.FLOAT32 else 1
                self.read(a, a_at, 4 * each)
                self.read(b, b_at, 2 * each)
                self.read(d, d_at, 4)
                self.write(d, d_at, 4)
            case WarpgroupMma(d, d_at, a, a_at, columns=columns, depth=depth):
                if not stmt.a_panel:
                    self.read(a, a_at, depth // 4)
                if stmt.accumulate:
                    self.read(d, d_at, columns // 2)
                self.write(d, d_at, columns // 2)
            case WarpgroupWait(d, d_at, columns):
                self.read(d, d_at, columns // 2)
            case ShuffleReduce(array, at):
                self.read(array, at, 1)
                self.write(array, at, 1)
            case _:
                assert_never(stmt)

    def value(self, value: Value) -> None:
        match value:
            case Real() | SharedRead() | GlobalRead():
                pass
            case Reg(array, index):
                self.read(array, index, 1)
            case Apply(_, a):
                self.value(a)
            case Combine(_, a, b):
                self.value(a)
                self.value(b)
            case Select(condition, a, b):
                guards = self.guards
                self.guards = (*guards, *conjuncts((condition,)))
                self.value(a)
                self.guards = (*guards, negate(condition))
                self.value(b)
                self.guards = guards
            case Where(mask, a, b):
                for part in (mask, a, b):
                    self.value(part)
            case _:
                assert_never(value)

    def read(self, name: str, index: IntExpr, used: int) -> None:
        self.scope[name].reads.append(self.event(index, used))

    def write(self, name: str, index: IntExpr, used: int) -> None:
        self.scope[name].writes.append(self.event(index, used))

    def event(self, index: IntExpr, used: int) -> _Event:
        self.order += 1
        return _Event(self.order, self.path, index, used, self.loops, self.guards)


# --- what a read is settled by ---------------------------------------------------------------------------------------


def _settle_read(program: Program, array: _Array, read: _Event) -> tuple[Query | None, Finding | None]:
    """Return the finding about a read, or the query that is left for a solver.

    Sound: see ``_covers_directly`` and ``_register_bits``, which look at writes further up only, and
    ``_enumerate_read``, which looks at all.
    """
    before = [write for write in array.writes if write.order < read.order]
    if any(_covers_directly(write, read) for write in before):
        return None, DischargedObligation(DischargeMethod.FORM)
    done = 0
    for write in before:
        shared = _shared_loops(write, read)
        own = {loop.var for loop in write.loops[shared:]}
        if all(guard in read.guards and not variables(guard) & own for guard in write.guards):
            done |= _register_bits(write, shared) or 0
    wanted = _register_bits(read, 0)
    if wanted is not None and not wanted & ~done:
        return None, DischargedObligation(DischargeMethod.ENUMERATION)
    sizes = {**extents(program), **{loop.var: loop.extent for loop in read.loops}}
    near = [_Write.same_iteration(write, read) for write in before]
    plain = [write for write in near if not write.guards]
    if _enumerate_read(read, (), plain, sizes) == DischargedObligation(DischargeMethod.ENUMERATION):
        return None, DischargedObligation(DischargeMethod.ENUMERATION)
    every = near + [far for write in array.writes for far in _Write.earlier(write, read, array.depth)]
    found = _enumerate_read(read, read.guards, every, sizes)
    if found is not None:
        return None, found
    query = _uncovered_query(read, every, sizes)
    return (
        (None, UndecidedObligation("too many iterations to look at, or to ask about"))
        if query is None
        else (query, None)
    )


def _shared_loops(a: _Event, b: _Event) -> int:
    """Return the number of loops that enclose both events."""
    both = zip(a.loops, b.loops, strict=False)
    return next((n for n, (x, y) in enumerate(both) if x != y), min(len(a.loops), len(b.loops)))


def _covers_directly(write: _Event, read: _Event) -> bool:
    """Return whether an earlier write of the same iteration writes the read registers wherever the read happens.

    Sound: all loops of the write are around the read too, so equal expressions have equal values in both.
    """
    return (
        write.index == read.index
        and write.used >= read.used
        and write.loops == read.loops[: len(write.loops)]
        and set(write.guards) <= set(read.guards)
    )


def _register_bits(event: _Event, shared: int) -> int | None:
    """Return the registers of all iterations of an event's inner loops, as a bit set; None if not determined.

    Sound: None if the index has a variable of an outer loop, or is no sum of multiples of variables.
    """
    own = {loop.var: loop.extent for loop in event.loops[shared:]}
    parts = _multiples(event.index)
    if parts is None or not own.keys() >= parts.keys() - {""}:
        return None
    found = ((1 << event.used) - 1) << parts.pop("", 0)
    for var, factor in parts.items():
        each, found = found, 0
        for number in range(own[var]):
            found |= each << factor * number
    return found


def _multiples(e: IntExpr) -> dict[str, int] | None:
    """Return an expression as a sum of multiples of variables, "" for the constant; None if it is no such sum."""
    match e:
        case Int(value):
            return {"": value} if value >= 0 else None
        case Var(name):
            return {name: 1}
        case IntBin(IntOp.ADD, a, b):
            x, y = _multiples(a), _multiples(b)
            return None if x is None or y is None else {n: x.get(n, 0) + y.get(n, 0) for n in {**x, **y}}
        case IntBin(IntOp.MUL, a, Int(factor)) if factor >= 0:
            x = _multiples(a)
            return None if x is None else {name: part * factor for name, part in x.items()}
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Write:
    """A write in relation to a read.

    Attributes:
        index, used: The registers that are written.
        bound: Existentially quantified variables of the write, with their extents.
        guards: The conditions under which it has happened, beyond the read's conditions.
    """

    index: IntExpr
    used: int
    bound: tuple[tuple[str, int], ...]
    guards: tuple[IntExpr, ...]

    @staticmethod
    def same_iteration(write: _Event, read: _Event) -> _Write:
        """Return an earlier statement's write in the same iteration of the common loops."""
        return _Write._instance(write, read, _shared_loops(write, read))

    @staticmethod
    def earlier(write: _Event, read: _Event, depth: int) -> Iterator[_Write]:
        """Yield a write's instances in earlier iterations of each common loop inside the array's declaration."""
        for place in range(depth, _shared_loops(write, read)):
            found = _Write._instance(write, read, place)
            var = write.loops[place].var
            first = less_than(Var(var + SECOND), Var(var))
            yield _Write(found.index, found.used, found.bound, (first, *found.guards))

    @staticmethod
    def _instance(write: _Event, read: _Event, same: int) -> _Write:
        """Return a write with the outermost loops at the read's iteration, and any iteration of the others."""
        own = write.loops[same:]
        renamed: dict[str, IntExpr] = {loop.var: Var(loop.var + SECOND) for loop in own}
        guards = tuple(fold(guard, renamed) for guard in write.guards)
        return _Write(
            fold(write.index, renamed),
            write.used,
            tuple((loop.var + SECOND, loop.extent) for loop in own),
            tuple(guard for guard in dict.fromkeys(guards) if guard not in read.guards),
        )


SECOND: Final = "~2"


def _enumerate_read(
    read: _Event, guards: Sequence[IntExpr], writes: Sequence[_Write], sizes: Mapping[str, int]
) -> Finding | None:
    """Return the finding, by enumeration, whether some write covers the read at every point where conditions hold.

    Sound: all values of every variable of the read, of the conditions and of the writes are looked at, and of the
    writes' own loops. None where that is too many.
    """
    used = variables(read.index).union(*map(variables, guards))
    for write in writes:
        used |= variables(write.index).union(*map(variables, write.guards)) - {name for name, _ in write.bound}
    free = [(name, sizes[name]) for name in sorted(used)]
    points = prod(extent for _, extent in free)
    if points * max([prod(n for _, n in write.bound) for write in writes], default=1) > min(MOST_POINTS, MAX_POINTS):
        return None
    shape = tuple(extent for _, extent in free)
    grids = {name: np.broadcast_to(grid, shape).reshape(-1) for name, grid in variable_grids(free).items()}
    met = _where_all_hold(guards, grids, (points,))
    at = {name: grid[met][:, None] for name, grid in grids.items()}
    count = int(met.sum())
    first = np.broadcast_to(evaluate_at(read.index, at), (count, 1))
    covered = np.zeros((read.used, count), dtype=bool)
    for write in writes:
        size = prod(extent for _, extent in write.bound)
        own = {
            name: np.broadcast_to(grid, [n for _, n in write.bound]).reshape(1, -1)
            for name, grid in variable_grids(write.bound).items()
        }
        happened = _where_all_hold(write.guards, at | own, (count, size))
        begin = np.broadcast_to(evaluate_at(write.index, at | own), (count, size))
        for number in range(read.used):
            reached = (begin <= first + number) & (first + number < begin + write.used) & happened
            covered[number] |= reached.any(axis=1)
    if covered.all():
        return DischargedObligation(DischargeMethod.ENUMERATION)
    number, place = (int(n) for n in np.argwhere(~covered)[0])
    model = [(name, int(grid[place, 0])) for name, grid in at.items()]
    return ViolatedObligation(
        DischargeMethod.ENUMERATION, (*model, ("index", int(first[place, 0]) + number)), "never written before"
    )


def _where_all_hold(
    conditions: Iterable[IntExpr], at: Mapping[str, Values], shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return the points at which all conditions hold."""
    met = np.ones(shape, dtype=bool)
    for condition in conditions:
        met &= np.broadcast_to(evaluate_at(condition, at) != 0, shape)
    return met


def _uncovered_query(read: _Event, writes: Sequence[_Write], sizes: Mapping[str, int]) -> Query | None:
    """Return the query for a point at which the read happens and no write covers it; None if it would be too large."""
    if sum(prod(extent for _, extent in write.bound) for write in writes) > MOST_WRITES:
        return None
    sizes = {**sizes, REGISTER: read.used}
    wanted = add(read.index, Var(REGISTER)) if read.used > 1 else read.index
    true = [*conjuncts(read.guards)]
    for write in writes:
        for chosen in _assignments(write.bound):
            begin = fold(write.index, chosen)
            parts = [
                *(fold(guard, chosen) for guard in write.guards),
                less_than(begin, add(wanted, Int(1))),
                less_than(wanted, add(begin, Int(write.used))),
            ]
            happened: IntExpr = Int(1)
            for part in parts:
                happened = make_binary(IntOp.AND, happened, part)
            true.append(negate(happened))
    kept = [e for e in dict.fromkeys(true) if not (isinstance(e, Int) and e.value)]
    names = frozenset().union(*map(variables, kept), variables(wanted))
    return Query(query_variables(names, sizes), tuple(kept), show=(("index", wanted),))


def _assignments(bound: Sequence[tuple[str, int]]) -> Iterator[dict[str, IntExpr]]:
    """Yield all assignments of values to some variables."""
    if not bound:
        yield {}
        return
    (name, extent), *rest = bound
    for value in range(extent):
        for others in _assignments(rest):
            yield {name: Int(value), **others}


__all__ = ["assignment_obligations"]

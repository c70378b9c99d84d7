"""Listing of a Program's memory accesses with their conditions and loops, and checks of well-formedness."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import assert_never

from mirage_formal.codegen.program.integers import add, fold, less_than, multiply, negate, variables
from mirage_formal.codegen.program.program import (
    MOST_TILE_ROWS,
    PANEL,
    PANEL_UNIT,
    TILE_COLUMNS,
    WARPGROUP_COLUMNS,
    WARPGROUP_ROWS,
    Acquire,
    Apply,
    Await,
    Barrier,
    BinaryFn,
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
    Param,
    Pipeline,
    Program,
    Real,
    Reg,
    Registers,
    Release,
    Select,
    SetReg,
    SharedBuffer,
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
from mirage_formal.graph.types import DType

GRID = ("bx", "by", "bz")
WARP = 32
WARPGROUP = 4 * WARP
MAX_THREADS = 1024
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")
VECTOR_BYTES = frozenset((1, 2, 4, 8, 16))
COPY_BYTES = frozenset((4, 8, 16))
#: The most bytes that an mbarrier can expect.
MAX_ITEM_BYTES = 2**20 - 1
#: The path of the producer's statements, before their positions.
PRODUCER = "producer"


class Mode(StrEnum):
    """The kind of a memory access."""

    READ = "read"
    WRITE = "write"
    #: A write from its issue until a wait and a barrier.
    ASYNC = "asynchronous write"
    #: A row of a matrix that all lanes of the warp, or all threads of the warpgroup, read.
    MATRIX = "matrix read"
    #: A write by the producer, from its issue until the consumers have awaited its item.
    TILE = "copy of a tile"

    @property
    def writes(self) -> bool:
        """Return whether the access changes memory."""
        return self in (Mode.WRITE, Mode.ASYNC, Mode.TILE)


@dataclass(frozen=True, slots=True)
class Context:
    """The position of a statement.

    Attributes:
        path: Positions in bodies.
        loops: Variables and extents of the enclosing loops, outermost first.
        guards: Conditions that are nonzero at the statement.
        unrolled: Variables of enclosing loops that are unrolled.
        divergent: Whether an enclosing condition may differ between threads.
    """

    path: str = ""
    loops: tuple[tuple[str, int], ...] = ()
    guards: tuple[IntExpr, ...] = ()
    unrolled: frozenset[str] = frozenset()
    divergent: bool = False

    def under(self, *guards: IntExpr) -> Context:
        """Return the same position under further conditions."""
        return replace(self, guards=(*self.guards, *guards))


@dataclass(frozen=True, slots=True)
class Access:
    """An access to ``count`` elements of a buffer or parameter, starting at ``index``."""

    context: Context
    mode: Mode
    target: SharedBuffer | Param
    index: IntExpr
    count: int

    @property
    def bytes(self) -> int:
        """Return the number of bytes accessed."""
        return self.count * self.target.dtype.bytes

    @property
    def address(self) -> IntExpr:
        """Return the first byte: within shared memory, or within the parameter."""
        offset = self.target.offset if isinstance(self.target, SharedBuffer) else 0
        return add(multiply(self.index, self.target.dtype.bytes), Int(offset))


@dataclass(frozen=True, slots=True)
class ExpressionUse:
    """An integer expression that a statement evaluates; its arithmetic must stay in range."""

    context: Context
    role: str
    expression: IntExpr


@dataclass(frozen=True, slots=True)
class RegisterUse:
    """A use of ``used`` elements of a register array from ``index`` on; ``count`` is the size of the array."""

    context: Context
    array: str
    index: IntExpr
    used: int
    count: int


@dataclass(frozen=True, slots=True)
class TileUse:
    """A copy of a tile; each of its rows must lie in one row of the parameter, and its place has an alignment."""

    context: Context
    copy: TileCopy


@dataclass(frozen=True, slots=True)
class StatementAccesses:
    """A statement's accesses to shared memory, in program order; ``tile`` is the statement if it copies a tile."""

    accesses: tuple[Access, ...]
    tile: TileCopy | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """A statement that orders others: a barrier, a commit or wait of asynchronous copies, or one about an item."""

    statement: Barrier | Commit | WaitGroups | Acquire | Await | Release


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop and its body."""

    var: str
    extent: int
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """A condition and the body that it guards."""

    path: str
    condition: IntExpr
    body: tuple[Node, ...]


Node = StatementAccesses | Sync | Loop | Branch


class Content(Enum):
    """Contents of a register array: float32 values, or 32-bit words of two 16-bit values."""

    FLOATS = "floats"
    WORDS = "words"


@dataclass(slots=True)
class ProgramAccesses:
    """Everything that a Program does that can be unsafe.

    Attributes:
        faults: Place, subject and text of each malformed name, type or number.
        unruly: The same for control flow: a collective statement where threads may diverge, or a register index that is
            not constant after unrolling. Such a Program is not safe, but can be printed.
        uses: The integer expressions that are evaluated.
        registers: The uses of register arrays.
        accesses: The memory accesses.
        uniform: Conditions that must be the same for all threads.
        tiles: The producer's copies of tiles.
        tree: The statements that access or synchronise shared memory, with their loops and branches.
        producer: The same of the producer.
    """

    faults: list[tuple[str, str, str]] = field(default_factory=list)
    unruly: list[tuple[str, str, str]] = field(default_factory=list)
    uses: list[ExpressionUse] = field(default_factory=list)
    registers: list[RegisterUse] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    uniform: list[ExpressionUse] = field(default_factory=list)
    tiles: list[TileUse] = field(default_factory=list)
    tree: tuple[Node, ...] = ()
    producer: tuple[Node, ...] = ()


def list_accesses(program: Program) -> ProgramAccesses:
    """Return the listing of a Program's accesses and faults of form, for its safety proof and for the printer.

    Sound: every statement and every value in it is visited; what a statement's description in
    codegen/program/program.py forbids by form alone is a fault or unruly, and such a Program is not safe.
    """
    walker = _Walker(program)
    walker.header()
    walker.found.tree = walker.body(program.body, Context(), {})
    if walker.unfenced and walker.warpgroups:
        walker.fault(Context(), program.name, "expected fenced barriers beside products of warpgroups")
    walker.found.producer = walker.produce()
    return walker.found


class _Walker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.found = ProgramAccesses()
        self.shared: Mapping[str, SharedBuffer] = {buffer.name: buffer for buffer in program.shared}
        self.params: Mapping[str, Param] = {param.name: param for param in program.params}
        self.pipelines: Mapping[str, Pipeline] = {pipeline.name: pipeline for pipeline in program.pipelines}
        self.pending: list[Access] = []
        self.coordinates: tuple[str, ...] = ("tid", *GRID)
        #: Whether a ``GridWait`` is still to come: until then, results of the previous launch are not visible.
        self.early = program.dependent
        #: Whether there is a barrier that is not fenced, or a product of warpgroups.
        self.unfenced = self.warpgroups = False
        #: Register arrays of products that are not complete: the accumulators, and their left operand.
        self.deferred: dict[str, str] = {}

    def fault(self, at: Context, subject: str, what: str) -> None:
        self.found.faults.append((at.path, subject, what))

    def header(self) -> None:
        program, top = self.program, Context()
        names = [program.name, *self.coordinates, *(b.name for b in program.shared), *(p.name for p in program.params)]
        names += [p.name for p in program.pipelines] + [f"map{number}" for number in range(len(program.maps))]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.fault(top, name, "expected distinct names of the kernel, its buffers, parameters and pipelines")
        self.roles(top)
        if not 1 <= program.threads <= MAX_THREADS:
            self.fault(top, program.name, f"expected 1..{MAX_THREADS} threads, got {program.threads}")
        if not all(1 <= n <= most for n, most in zip(program.grid, (2**31 - 1, 65535, 65535), strict=True)):
            self.fault(top, program.name, f"expected a grid of at least one block, got {program.grid}")
        for buffer in program.shared:
            if buffer.offset < 0 or buffer.elements < 1 or buffer.offset % buffer.dtype.bytes:
                self.fault(top, buffer.name, "expected elements, at an offset that is a multiple of their size")
        for param in program.params:
            if param.elements < 1 or param.align < param.dtype.bytes or param.align & (param.align - 1):
                self.fault(top, param.name, "expected elements and an alignment that is a power of two")
            if param.given and param.written:
                self.fault(top, param.name, "expected a parameter that is written, or one that no launch writes")

    def roles(self, top: Context) -> None:
        """Check the numbers of the producer, the pipelines and the consumers."""
        program = self.program
        if bool(program.producer) is not bool(program.pipelines):
            self.fault(top, program.name, "expected a producer and pipelines, or none of both")
        if program.producer and (program.threads % WARPGROUP or program.launch_threads > MAX_THREADS):
            what = f"expected whole warpgroups of consumers, with the producer at most {MAX_THREADS} threads"
            self.fault(top, program.name, f"{what}, got {program.threads} and {program.launch_threads}")
        for pipeline in program.pipelines:
            if _IDENTIFIER.fullmatch(pipeline.name) is None:
                self.fault(top, pipeline.name, "expected a name of a pipeline")
            if pipeline.slots < 1 or not 1 <= pipeline.bytes <= MAX_ITEM_BYTES:
                what = f"expected at least one slot and 1..{MAX_ITEM_BYTES} bytes"
                self.fault(top, pipeline.name, f"{what}, got {pipeline.slots} and {pipeline.bytes}")

    def taken(self, at: Context, scope: Mapping[str, tuple[int, Content]]) -> Set[str]:
        """Return the names that a new declaration must not have."""
        loops = (name for name, _ in at.loops)
        return {"tid", *self.coordinates, *loops, *scope, *self.shared, *self.params, *self.pipelines}

    # --- statements ---

    def body(self, body: tuple[Stmt, ...], at: Context, scope: Mapping[str, tuple[int, Content]]) -> tuple[Node, ...]:
        inner, before = dict(scope), dict(self.deferred)
        nodes: list[Node] = []
        for position, stmt in enumerate(body):
            here = replace(at, path=f"{at.path}{'/' if at.path else ''}{position}")
            match stmt:
                case Registers(name, count, words):
                    if name in self.taken(here, inner) or count < 1:
                        self.fault(here, name, "expected a new name and at least one element")
                    inner[name] = (count, Content.WORDS if words else Content.FLOATS)
                case For():
                    nodes.append(self.loop(stmt, here, inner))
                case If():
                    nodes.append(self.branch(stmt, here, inner))
                case GridWait():
                    if at.path or not self.early:
                        self.fault(here, "GridWait", "expected once, outside of loops and conditions")
                    self.early = False
                case LaunchDependents():
                    if at.path or self.early:
                        what = "expected outside of loops and conditions, behind the wait for the launch before"
                        self.fault(here, "LaunchDependents", what)
                case Barrier() | Commit() | WaitGroups() | Await() | Release():
                    nodes.append(self.synchronisation(stmt, here))
                case Acquire() | TileCopy():
                    self.fault(here, type(stmt).__name__, "expected in the producer")
                case _:
                    self.pending = []
                    self.simple(stmt, here, inner)
                    if self.pending:
                        nodes.append(StatementAccesses(tuple(self.pending)))
        if self.deferred != before:
            self.fault(at, next(iter({**before, **self.deferred})), "expected the wait for a product in its own body")
            self.deferred = before
        return tuple(nodes)

    def produce(self) -> tuple[Node, ...]:
        """Return the tree of the producer's statements.

        Sound: one thread runs them and has no registers, so nothing in them is collective, and their variables are
        those of the block and of their loops. It waits for the launch before by itself: until it does, it reads only
        parameters that are given.
        """
        self.coordinates = GRID
        self.early = self.program.dependent
        return self.production(self.program.producer, Context(PRODUCER))

    def production(self, body: tuple[Stmt, ...], at: Context) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for position, stmt in enumerate(body):
            here = replace(at, path=f"{at.path}/{position}")
            match stmt:
                case For():
                    inside = self.inside(stmt, here, {})
                    nodes.append(Loop(stmt.var, max(stmt.extent, 1), self.production(stmt.body, inside)))
                case GridWait():
                    if at.loops or not self.early:
                        self.fault(here, "GridWait", "expected once, outside of loops, and in the body too")
                    self.early = False
                case Acquire():
                    self.item(stmt, here)
                    nodes.append(Sync(stmt))
                case TileCopy():
                    self.item(stmt, here)
                    self.pending = []
                    self.tile(stmt, here)
                    nodes.append(StatementAccesses(tuple(self.pending), stmt))
                case _:
                    what = "expected loops, acquisitions, copies of tiles and a wait for the launch before"
                    self.fault(here, type(stmt).__name__, f"{what} in the producer")
        return tuple(nodes)

    def item(self, stmt: Acquire | TileCopy | Await | Release, at: Context) -> None:
        """Check the pipeline of a statement, and that the item is the same in all threads and blocks."""
        self.use(at, "item", stmt.item)
        if stmt.pipeline not in self.pipelines:
            self.fault(at, stmt.pipeline, "expected a pipeline of that name")
        if variables(stmt.item) - {name for name, _ in at.loops}:
            self.fault(at, stmt.pipeline, "expected an item that depends on variables of loops alone")

    def tile(self, stmt: TileCopy, at: Context) -> None:
        """List what a copy of a tile reads and writes: chunks of 8 elements, all by one thread.

        Sound: the chunks of a row of 64 are permuted within it, and every chunk of every row is listed, so these are
        the bytes that are written. A tile's own chunks are distinct. That a row of it lies in one row of the parameter
        is an obligation (``tiles``), for the tensor map fills with zeros what lies beyond; so is an even place.
        """
        self.use(at, f"position in {stmt.buffer}", stmt.at)
        self.use(at, f"source in {stmt.param}", stmt.source)
        buffer, param = self.shared.get(stmt.buffer), self.params.get(stmt.param)
        if buffer is None or param is None or buffer.dtype is not param.dtype or buffer.offset % (2 * PANEL_UNIT):
            what = f"expected a buffer at a multiple of {2 * PANEL_UNIT} bytes and a parameter of one type"
            self.fault(at, stmt.buffer, f"{what}, got {stmt.param}")
            return
        self.halves(at, stmt.buffer, buffer.dtype.bytes)
        if stmt.rows % 8 or not 8 <= stmt.rows <= MOST_TILE_ROWS:
            self.fault(at, stmt.buffer, f"expected a multiple of 8 up to {MOST_TILE_ROWS} rows, got {stmt.rows}")
            return
        if stmt.stride % 8 or stmt.stride < TILE_COLUMNS or param.elements % stmt.stride:
            what = f"expected whole rows of at least {TILE_COLUMNS} elements, a multiple of 8"
            self.fault(at, stmt.param, f"{what}, got {stmt.stride}")
            return
        self.found.tiles.append(TileUse(at, stmt))
        row, chunk = Var("tile.row"), Var("tile.chunk")  # names that no loop can have
        inside = replace(at, loops=(*at.loops, (row.name, stmt.rows), (chunk.name, TILE_COLUMNS // 8)))
        index = add(multiply(stmt.at, PANEL_UNIT), multiply(row, TILE_COLUMNS))
        self.access(inside, Mode.TILE, stmt.buffer, add(index, multiply(chunk, 8)), 8, shared=True)
        source = add(add(stmt.source, multiply(row, stmt.stride)), multiply(chunk, 8))
        self.access(inside, Mode.READ, stmt.param, source, 8, shared=False)

    def synchronisation(self, stmt: Barrier | Commit | WaitGroups | Await | Release, at: Context) -> Node:
        """Check a statement that orders others.

        Sound: products that are not complete still read shared memory, so neither a barrier nor the release of a slot
        lies before the wait for them.
        """
        self.collective(at, type(stmt).__name__)
        if isinstance(stmt, Await | Release):
            self.item(stmt, at)
            if isinstance(stmt, Release) and self.deferred:
                self.fault(at, "Release", "expected behind the wait for products of warpgroups")
        if isinstance(stmt, Barrier):
            self.unfenced |= not stmt.fenced
            if self.deferred:
                self.fault(at, "Barrier", "expected behind the wait for products of warpgroups")
        if isinstance(stmt, WaitGroups) and stmt.left < 0:
            self.fault(at, "WaitGroups", f"expected at least 0 groups, got {stmt.left}")
        return Sync(stmt)

    def loop(self, stmt: For, at: Context, scope: Mapping[str, tuple[int, Content]]) -> Node:
        return Loop(stmt.var, max(stmt.extent, 1), self.body(stmt.body, self.inside(stmt, at, scope), scope))

    def inside(self, stmt: For, at: Context, scope: Mapping[str, tuple[int, Content]]) -> Context:
        """Return the position inside a loop."""
        if stmt.var in self.taken(at, scope) or stmt.extent < 1 or _IDENTIFIER.fullmatch(stmt.var) is None:
            self.fault(at, stmt.var, "expected a new variable and an extent of at least 1")
        unrolled = at.unrolled | {stmt.var} if stmt.unroll else at.unrolled - {stmt.var}
        path = f"{at.path}:for {stmt.var}"
        return replace(at, path=path, loops=(*at.loops, (stmt.var, max(stmt.extent, 1))), unrolled=unrolled)

    def branch(self, stmt: If, at: Context, scope: Mapping[str, tuple[int, Content]]) -> Node:
        self.use(at, "condition", stmt.condition)
        if stmt.uniform:
            self.found.uniform.append(ExpressionUse(at, "condition", stmt.condition))
        inside = replace(at.under(stmt.condition), path=f"{at.path}:if", divergent=at.divergent or not stmt.uniform)
        return Branch(at.path, stmt.condition, self.body(stmt.body, inside, scope))

    def collective(self, at: Context, what: str, *, warp: bool = False) -> None:
        if at.divergent:
            self.found.unruly.append((at.path, what, "expected uniform control flow"))
        if warp and self.program.threads % WARP:
            self.fault(at, what, f"expected whole warps, got {self.program.threads} threads")

    def simple(self, stmt: Stmt, at: Context, scope: Mapping[str, tuple[int, Content]]) -> None:
        match stmt:
            case SetReg(array, index, value):
                self.value(value, at, scope)
                self.register(at, scope, array, index, 1, Content.FLOATS)
            case Pack(words, index, low, high, dtype):
                self.value(low, at, scope)
                self.value(high, at, scope)
                self.register(at, scope, words, index, 1, Content.WORDS)
                self.halves(at, words, dtype.bytes)
            case SharedWrite(name, index, values) | GlobalWrite(name, index, values):
                for value in values:
                    self.value(value, at, scope)
                self.access(at, Mode.WRITE, name, index, len(values), shared=isinstance(stmt, SharedWrite))
            case SharedVector(buffer=name) | GlobalVector(param=name):
                self.vector(stmt, name, at, scope)
            case CopyAsync():
                self.copy(stmt, at)
            case LoadMatrix() | Mma() | WarpgroupMma() | WarpgroupWait() | ShuffleReduce():
                self.exchange(stmt, at, scope)
            case (
                Registers() | For() | If() | Barrier() | Commit() | WaitGroups() | GridWait() | LaunchDependents()
            ) | (Acquire() | TileCopy() | Await() | Release()):
                raise AssertionError(stmt)  # taken by ``body``
            case _:
                assert_never(stmt)

    def exchange(
        self,
        stmt: LoadMatrix | Mma | WarpgroupMma | WarpgroupWait | ShuffleReduce,
        at: Context,
        scope: Mapping[str, tuple[int, Content]],
    ) -> None:
        """List what a collective of a warp or warpgroup reads and writes."""
        self.collective(at, type(stmt).__name__, warp=True)
        match stmt:
            case LoadMatrix(words, to, name, index, count):
                if count not in (1, 2, 4):
                    self.fault(at, name, f"expected 1, 2 or 4 matrices, got {count}")
                lanes = less_than(IntBin(IntOp.MOD, Var("tid"), Int(WARP)), Int(8 * count))
                self.use(at, f"index of {name}", index)
                self.access(at.under(lanes), Mode.MATRIX, name, index, 8, shared=True)
                self.register(at, scope, words, to, count, Content.WORDS)
                if name in self.shared:
                    self.halves(at, name, self.shared[name].dtype.bytes)
            case Mma(d, d_at, a, a_at, b, b_at, dtype):
                held, each = (Content.FLOATS, 2) if dtype is DType.FLOAT32 else (Content.WORDS, 1)
                self.register(at, scope, d, d_at, 4, Content.FLOATS)
                self.register(at, scope, a, a_at, 4 * each, held)
                self.register(at, scope, b, b_at, 2 * each, held)
            case WarpgroupMma():
                self.warpgroup(stmt, at, scope)
            case WarpgroupWait(d, d_at, columns):
                self.deferred.pop(d, None)
                self.register(at, scope, d, d_at, columns // 2, Content.FLOATS)
            case ShuffleReduce(array, to, fn, mask):
                self.register(at, scope, array, to, 1, Content.FLOATS)
                if fn not in (BinaryFn.ADD, BinaryFn.MAX) or not 1 <= mask < WARP:
                    self.fault(at, array, "expected add or max, and a mask in 1..31")
            case _:
                assert_never(stmt)

    def warpgroup(self, stmt: WarpgroupMma, at: Context, scope: Mapping[str, tuple[int, Content]]) -> None:
        """List what a product of warpgroups reads: each thread of the group reads all of its matrices.

        Sound: a write that such a read must see comes before a barrier (a conflict otherwise, for a matrix read counts
        as anybody's), and every barrier is fenced. The product has ended when the statement has, or when a wait in the
        same body has. No barrier lies between, so it ends in the epoch in which it began, in which no write may meet
        what it reads; nor does a statement that touches its registers.
        """
        self.warpgroups = True
        if self.program.threads % WARPGROUP:
            self.fault(at, "WarpgroupMma", f"expected whole warpgroups, got {self.program.threads} threads")
        if stmt.columns not in WARPGROUP_COLUMNS or stmt.depth < 1 or stmt.depth % 16:
            what = f"expected {WARPGROUP_COLUMNS} columns and a depth of whole steps of 16"
            self.fault(at, stmt.d, f"{what}, got {stmt.columns} and {stmt.depth}")
            return
        self.halves(at, stmt.d, stmt.dtype.bytes)
        self.register(at, scope, stmt.d, stmt.d_at, stmt.columns // 2, Content.FLOATS)
        held = "" if stmt.a_panel else stmt.a
        matrices = [(stmt.b, stmt.b_at, stmt.columns, stmt.b_panel, stmt.b_across)]
        if stmt.a_panel:
            matrices.append((stmt.a, stmt.a_at, WARPGROUP_ROWS, stmt.a_panel, stmt.a_across))
        else:
            self.register(at, scope, stmt.a, stmt.a_at, stmt.depth // 4, Content.WORDS)
        for name, first, outer, panel, across in matrices:
            self.use(at, f"position in {name}", first)
            buffer = self.shared.get(name)
            if buffer is None or buffer.dtype is not stmt.dtype or buffer.offset % (2 * PANEL_UNIT) or panel < 1:
                self.fault(at, name, f"expected a buffer of {stmt.dtype} at a multiple of {2 * PANEL_UNIT} bytes")
                continue
            rows, cols = (stmt.depth, outer) if across else (outer, stmt.depth)
            # The chunks of a row of 64 are permuted within it, so it is read as a whole; names that no loop can have.
            extents = (("matrix.panel", -(-cols // PANEL)), ("matrix.row", rows), ("matrix.chunk", PANEL // 8))
            index = multiply(add(first, multiply(Var("matrix.panel"), panel)), PANEL_UNIT)
            index = add(index, multiply(Var("matrix.row"), PANEL))
            index = add(index, multiply(Var("matrix.chunk"), 8))
            inside = replace(at, loops=(*at.loops, *extents))
            self.access(inside, Mode.MATRIX, name, index, 8, shared=True)
        if stmt.deferred:
            self.deferred[stmt.d] = held

    def vector(
        self, stmt: SharedVector | GlobalVector, name: str, at: Context, scope: Mapping[str, tuple[int, Content]]
    ) -> None:
        if stmt.count < 2:
            self.fault(at, name, f"expected at least 2 elements at once, got {stmt.count}")
        self.access(at, Mode.READ, name, stmt.index, stmt.count, shared=isinstance(stmt, SharedVector))
        self.register(at, scope, stmt.array, stmt.at, stmt.count, Content.FLOATS)

    def copy(self, stmt: CopyAsync, at: Context) -> None:
        self.use(at, "valid", stmt.valid)
        buffer, param = self.shared.get(stmt.buffer), self.params.get(stmt.param)
        if buffer is None or param is None or buffer.dtype is not param.dtype:
            self.fault(at, stmt.buffer, f"expected a buffer and a parameter of one type, got {stmt.param}")
            return
        if stmt.bytes not in COPY_BYTES:
            self.fault(at, stmt.buffer, f"expected a copy of 4, 8 or 16 bytes, got {stmt.bytes}")
            return
        count = stmt.bytes // buffer.dtype.bytes
        self.access(at, Mode.ASYNC, stmt.buffer, stmt.index, count, shared=True)
        self.use(at, f"index of {stmt.param}", stmt.source)
        self.access(at.under(stmt.valid), Mode.READ, stmt.param, stmt.source, count, shared=False)

    def halves(self, at: Context, subject: str, size: int) -> None:
        if size != 2:
            self.fault(at, subject, "expected elements of 16 bits")

    # --- values, expressions, accesses ---

    def value(self, value: Value, at: Context, scope: Mapping[str, tuple[int, Content]]) -> None:
        match value:
            case Real():
                pass
            case Reg(array, index):
                self.register(at, scope, array, index, 1, Content.FLOATS)
            case SharedRead(name, index):
                self.access(at, Mode.READ, name, index, 1, shared=True)
            case GlobalRead(name, index):
                self.access(at, Mode.READ, name, index, 1, shared=False)
            case Apply(_, a):
                self.value(a, at, scope)
            case Combine(_, a, b):
                self.value(a, at, scope)
                self.value(b, at, scope)
            case Select(condition, a, b):
                self.use(at, "condition", condition)
                self.value(a, at.under(condition), scope)
                self.value(b, at.under(negate(condition)), scope)
            case Where(mask, a, b):
                for part in (mask, a, b):
                    self.value(part, at, scope)
            case _:
                assert_never(value)

    def use(self, at: Context, role: str, e: IntExpr) -> None:
        unknown = variables(e) - {*self.coordinates} - {name for name, _ in at.loops}
        for name in sorted(unknown):
            self.fault(at, name, f"expected a variable of an enclosing loop in the {role}")
        self.found.uses.append(ExpressionUse(at, role, e))

    def register(
        self, at: Context, scope: Mapping[str, tuple[int, Content]], name: str, e: IntExpr, used: int, holds: Content
    ) -> None:
        self.use(at, f"index of {name}", e)
        if name in self.deferred or name in self.deferred.values():
            self.fault(at, name, "expected behind the wait for the product of warpgroups that has it")
        declared = scope.get(name)
        if declared is None or declared[1] is not holds:
            self.fault(at, name, f"expected a register array of {holds.value} that is declared before")
            return
        once = {var: Int(0) for var, extent in at.loops if extent == 1}
        if variables(fold(e, once)) - at.unrolled:
            self.found.unruly.append((at.path, name, "expected an index that is constant after unrolling"))
            return
        self.found.registers.append(RegisterUse(at, name, e, used, declared[0]))

    def access(self, at: Context, mode: Mode, name: str, index: IntExpr, count: int, *, shared: bool) -> None:
        if mode not in (Mode.MATRIX, Mode.TILE):
            self.use(at, f"index of {name}", index)
        target: SharedBuffer | Param | None = self.shared.get(name) if shared else self.params.get(name)
        if target is None:
            self.fault(at, name, f"expected a {'shared buffer' if shared else 'parameter'} of that name")
            return
        if count < 1 or count * target.dtype.bytes not in VECTOR_BYTES:
            self.fault(at, name, f"expected 1, 2, 4, 8 or 16 bytes at once, got {count * target.dtype.bytes}")
            return
        if isinstance(target, Param) and target.written is not mode.writes:
            self.fault(at, name, "expected a parameter that is either read or written")
            return
        if isinstance(target, Param) and self.early and not target.given:
            self.fault(at, name, "expected to be touched behind the wait for the launch before, which may write it")
        found = Access(at, mode, target, index, count)
        self.found.accesses.append(found)
        if shared:
            self.pending.append(found)

"""Programs, the low-level IR: one kernel as loops, copies, products and barriers, before it is printed as CUDA C++.

A Program states the actions of every thread of a block; there is one Program per graph-defined kernel. Index arithmetic
is exact integers over ``tid``, ``bx``, ``by``, ``bz`` and loop variables. So safety obligations (in bounds, no
unsynchronised conflict) can be stated about the very expressions that are printed.

Values are float32 in registers; shared and device memory hold elements of the buffer's dtype, converted on access. An
element of a mask is 0 or 1 in registers, and a byte in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirage_formal.graph.ops import FUNCTIONS, OpKind
from mirage_formal.graph.types import DType

# --- integer expressions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Int:
    """An integer constant."""

    value: int


@dataclass(frozen=True, slots=True)
class Var:
    """A variable: ``tid`` (thread of the block), ``bx``/``by``/``bz`` (block of the grid), or that of a For around."""

    name: str


class IntOp(StrEnum):
    """Integer operators; DIV and MOD round towards zero, operands are never negative; comparisons give 0 or 1."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"
    XOR = "^"
    LT = "<"
    EQ = "=="
    AND = "&&"


@dataclass(frozen=True, slots=True)
class IntBin:
    """A binary operation: a op b.

    Every intermediate value lies in 0..2^31-1 (an obligation), except that of SUB's user, which must too.
    """

    op: IntOp
    a: IntExpr
    b: IntExpr


IntExpr = Int | Var | IntBin


# --- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Real:
    """A float32 constant."""

    value: float


@dataclass(frozen=True, slots=True)
class Reg:
    """A read of an element of a register array of floats; indices must become constants when loops are unrolled."""

    array: str
    index: IntExpr


@dataclass(frozen=True, slots=True)
class SharedRead:
    """A read of an element of a shared buffer."""

    buffer: str
    index: IntExpr


@dataclass(frozen=True, slots=True)
class GlobalRead:
    """A read of an element of a parameter in device memory."""

    param: str
    index: IntExpr


class KernelFn(StrEnum):
    """Functions of one float32 that are no operators of the graph."""

    NEG = "neg"
    RSQRT = "rsqrt"
    #: Rounded to float16 (bfloat16) and back.
    ROUND_HALF = "round_half"
    ROUND_BFLOAT = "round_bfloat"


#: A function of one float32, one of ``UNARY_FUNCTIONS``; operators of the graph are called by their own names.
UnaryFn = OpKind | KernelFn
_ROUND: Final = {OpKind.ROUND_FLOAT16: KernelFn.ROUND_HALF, OpKind.ROUND_BFLOAT16: KernelFn.ROUND_BFLOAT}


_OPERATORS: Final = tuple(kind for kind in OpKind if kind in FUNCTIONS or kind is OpKind.LOGICAL_NOT)


def unary_fn(kind: OpKind) -> UnaryFn:
    """Return the name that a Program has for an elementwise operator of one operand: its own, or that of a rounding."""
    assert kind in _OPERATORS, kind
    return _ROUND.get(kind, kind)


#: All functions of one float32, by their names.
UNARY_FUNCTIONS: Final[Mapping[str, UnaryFn]] = MappingProxyType(
    {fn.value: fn for fn in (*KernelFn, *map(unary_fn, _OPERATORS))}
)


class BinaryFn(StrEnum):
    """Functions of two float32; operators of the graph are called by their own names, but for the extremes.

    The extremes of a NaN and anything are NaN. Comparisons give 1 where they hold and 0 elsewhere, also of a NaN.
    """

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAX = "max"
    MIN = "min"
    #: The quotient, and 0 times the dividend where the divisor is 0.
    DIV_NO_NAN = "div_no_nan"
    EQ = "eq"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


def binary_fn(kind: OpKind) -> BinaryFn:
    """Return the function that computes an elementwise operator of two operands."""
    named = {OpKind.MAXIMUM: BinaryFn.MAX, OpKind.MINIMUM: BinaryFn.MIN}
    return named[kind] if kind in named else BinaryFn(kind.value)


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of one value."""

    fn: UnaryFn
    a: Value


@dataclass(frozen=True, slots=True)
class Combine:
    """A function of two values."""

    fn: BinaryFn
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Select:
    """A selection: ``a`` where the condition is nonzero, else ``b``; only the chosen one is read."""

    condition: IntExpr
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Where:
    """A masked selection: ``a`` where the mask is not 0, else ``b``.

    All three are read, but the unselected value has no influence.
    """

    mask: Value
    a: Value
    b: Value


Value = Real | Reg | SharedRead | GlobalRead | Apply | Combine | Select | Where


# --- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registers:
    """A declaration of a register array for the enclosing body: ``count`` floats, or 32-bit words of two halves."""

    name: str
    count: int
    words: bool = False
    #: Every float starts with this value; None leaves them undefined. Words are always undefined at first.
    initial: float | None = None


@dataclass(frozen=True, slots=True)
class For:
    """A loop: body for var = 0 .. extent-1, in order; ``unroll`` makes register indices constants."""

    var: str
    extent: int
    body: tuple[Stmt, ...]
    unroll: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """A conditional: body where the condition is nonzero.

    A barrier or collective operation may be inside only if it is uniform.

    Attributes:
        condition: The condition.
        body: The statements.
        uniform: Whether the condition is the same for all threads of the block.
    """

    condition: IntExpr
    body: tuple[Stmt, ...]
    uniform: bool = False


@dataclass(frozen=True, slots=True)
class SetReg:
    """A register assignment: array[index] = value."""

    array: str
    index: IntExpr
    value: Value


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack: words[index] = two halves of the kernel's element type, ``low`` in the lower bits."""

    words: str
    index: IntExpr
    low: Value
    high: Value
    dtype: DType


@dataclass(frozen=True, slots=True)
class SharedWrite:
    """A store: buffer[index .. index+len-1] = values, converted.

    Several values are one vector store, aligned to its size.
    """

    buffer: str
    index: IntExpr
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class GlobalWrite:
    """A store: param[index .. index+len-1] = values, converted.

    Several values are one vector store, aligned to its size.
    """

    param: str
    index: IntExpr
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class SharedVector:
    """A vector load: array[at .. at+count-1] = buffer[index .. ], aligned to its size."""

    array: str
    at: IntExpr
    buffer: str
    index: IntExpr
    count: int


@dataclass(frozen=True, slots=True)
class GlobalVector:
    """A vector load: array[at .. at+count-1] = param[index .. ], aligned to its size."""

    array: str
    at: IntExpr
    param: str
    index: IntExpr
    count: int


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """An asynchronous copy (cp.async): buffer[index ..] = param[source ..], both aligned to the bytes copied.

    Attributes:
        valid: A condition; where it is 0, the bytes are filled with zeros and nothing is read.
        bytes: 4, 8 or 16.
    """

    buffer: str
    index: IntExpr
    param: str
    source: IntExpr
    valid: IntExpr = Int(1)
    bytes: int = 16


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a group of this thread's asynchronous copies (cp.async.commit_group)."""


@dataclass(frozen=True, slots=True)
class WaitGroups:
    """A wait until at most ``left`` of this thread's newest groups are still in flight (cp.async.wait_group)."""

    left: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier of all threads of the block (``__syncthreads``); shared memory written before is visible after.

    Attributes:
        fenced: Whether it is visible to products of warpgroups too (fence.proxy.async).
    """

    fenced: bool = False


@dataclass(frozen=True, slots=True)
class LoadMatrix:
    """An ldmatrix: words[at .. at+count-1] = count 8x8 matrices of 16-bit elements, collective over a warp.

    The lane l of a warp gives in ``index`` the element offset of row l % 8 of matrix l / 8 (for l < 8 * count; the
    other lanes' are not used but must be valid); each row is 8 elements, 16-byte aligned. ``transposed`` as ldmatrix.
    """

    words: str
    at: IntExpr
    buffer: str
    index: IntExpr
    count: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Mma:
    """An m16n8k16 product: d[d_at .. +3] += a[a_at .. +3] x b[b_at .. +1], float32 accumulators, warp-collective.

    Fragments as in the PTX ISA (mma.m16n8k16 row.col); ``dtype`` is the operands' element type. Of float32 they are
    floats, a[a_at .. +7] and b[b_at .. +3]: with g = lane / 4 and t = lane % 4, a[i] is row g + 8 (i / 2 % 2), inner
    position 2t + i % 2 + 8 (i / 4), as accumulators of two tiles have them, and b[i] inner 2t + i % 2 + 8 (i / 2),
    column g.
    """

    d: str
    d_at: IntExpr
    a: str
    a_at: IntExpr
    b: str
    b_at: IntExpr
    dtype: DType


@dataclass(frozen=True, slots=True)
class WarpgroupMma:
    """A product of 64 x depth and depth x columns elements by 4 warps (wgmma m64nNk16, N = columns): d += a x b.

    It is collective over a warpgroup: warps 4 g .. 4 g + 3 of a block. It is complete at its end, or if ``deferred`` at
    the ``WarpgroupWait`` of its accumulators: until then no statement touches these or the words of its left operand,
    and there is no barrier.

    Warp w of the group has rows 16 w .. 16 w + 15: d[d_at + 4 j .. +3] are accumulators of columns 8 j .. 8 j + 7, as
    of an ``Mma``. In registers, a[a_at + 4 k .. +3] are its left fragments of inner positions 16 k .. 16 k + 15.

    A matrix in shared memory consists of panels of 64 columns. Its element (outer o, inner i) is buffer[e ^ 8 (e / 64 %
    8)], e = 512 (at + panel (c / 64)) + 64 r + c % 64, where (r, c) is (o, i), or (i, o) if it lies ``across``.

    Attributes:
        d, d_at: The accumulators.
        a, a_at: Words of fragments and the first of them; or the buffer of a matrix and its ``at``.
        b, b_at: The buffer of a matrix of outer dim ``columns``, and its ``at``.
        columns: One of ``WARPGROUP_COLUMNS``.
        depth: The inner extent, a multiple of 16.
        dtype: The operands' element type, of 16 bits.
        a_panel, b_panel: Units of 512 elements from a panel to the next; 0 for an operand in registers.
        a_across, b_across: Whether rows, as stored, are the inner dim.
        accumulate: Whether the accumulators are added to; else d = a x b, and what they held does not count.
        deferred: Whether it may be complete later.
    """

    d: str
    d_at: IntExpr
    a: str
    a_at: IntExpr
    b: str
    b_at: IntExpr
    columns: int
    depth: int
    dtype: DType
    a_panel: int
    a_across: bool
    b_panel: int
    b_across: bool
    accumulate: bool = True
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class WarpgroupWait:
    """A wait until the warpgroup's products are complete (wgmma.wait_group), one of ``columns`` in d[d_at ..] too."""

    d: str
    d_at: IntExpr
    columns: int


#: Columns of products of warpgroups.
WARPGROUP_COLUMNS: Final = (8, 16, 32, 64, 128, 256)
#: Rows of such a product, columns of a panel in shared memory, and elements of the unit of positions there.
WARPGROUP_ROWS: Final = 64
PANEL: Final = 64
PANEL_UNIT: Final = 512


@dataclass(frozen=True, slots=True)
class ShuffleReduce:
    """A warp shuffle: array[at] = fn(array[at], array[at] of lane ^ mask), collective over a warp; ADD or MAX."""

    array: str
    at: IntExpr
    fn: BinaryFn
    mask: int


@dataclass(frozen=True, slots=True)
class GridWait:
    """A wait until the previous launch has ended and its writes are visible (griddepcontrol.wait).

    A kernel that has one may be started while the previous launch still runs (``Program.dependent``). It stands once,
    outside of loops and conditions. Of device memory, only parameters that are ``given`` are accessed before it.
    """


@dataclass(frozen=True, slots=True)
class LaunchDependents:
    """A permission to start the next launch once all blocks have reached it (griddepcontrol.launch_dependents).

    It stands outside of loops and conditions, after ``GridWait`` if there is one. It orders no memory: a kernel that is
    started in this way waits itself.
    """


@dataclass(frozen=True, slots=True)
class Acquire:
    """A wait of the producer until an item's slot is free: until all consumers have released item - slots, if any.

    It announces the bytes of the item (mbarrier.arrive.expect_tx).
    """

    pipeline: str
    item: IntExpr


@dataclass(frozen=True, slots=True)
class TileCopy:
    """An asynchronous copy of a tile of ``TILE_COLUMNS`` columns by the tensor memory accelerator, part of an item.

    For r < rows and c < TILE_COLUMNS, buffer[e ^ 8 (e / 64 % 8)] = param[source + stride r + c], where e = 512 at + 64
    r + c: a panel of a matrix that ``WarpgroupMma`` reads. Elements are of 16 bits. The parameter is seen as a matrix
    with rows of ``stride`` elements, and each row of the tile lies in one of these.

    Attributes:
        pipeline, item: The item that it belongs to; it is complete behind the ``Await`` of this item.
        buffer, at: The buffer, and where the tile begins, in units of 512 elements; a multiple of 2.
        param, source: The parameter, and its first element that is copied.
        rows: Rows of the tile, a multiple of 8 and at most 256.
        stride: Elements from a row to the next.
    """

    pipeline: str
    item: IntExpr
    buffer: str
    at: IntExpr
    param: str
    source: IntExpr
    rows: int
    stride: int


@dataclass(frozen=True, slots=True)
class Await:
    """A wait of the consumers until all bytes of an item have arrived; they are visible to products of warpgroups."""

    pipeline: str
    item: IntExpr


@dataclass(frozen=True, slots=True)
class Release:
    """The return of an item's slot to the producer, by each warp of consumers once all of its lanes are there."""

    pipeline: str
    item: IntExpr


Stmt = (
    Registers
    | For
    | If
    | SetReg
    | Pack
    | SharedWrite
    | GlobalWrite
    | SharedVector
    | GlobalVector
    | CopyAsync
    | Commit
    | WaitGroups
    | Barrier
    | LoadMatrix
    | Mma
    | WarpgroupMma
    | WarpgroupWait
    | ShuffleReduce
    | GridWait
    | LaunchDependents
    | Acquire
    | TileCopy
    | Await
    | Release
)

#: Columns of the tile of a ``TileCopy``: 128 bytes of 16-bit elements.
TILE_COLUMNS: Final = 64
#: The most rows of one.
MOST_TILE_ROWS: Final = 256
#: Threads of the producer, of which the first one runs its statements.
PRODUCER_THREADS: Final = 128


def all_statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield all statements, those in loops and conditions included."""
    for statement in body:
        yield statement
        if isinstance(statement, For | If):
            yield from all_statements(statement.body)


# --- kernels ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor in device memory: it spans ``elements`` elements (row-major, contiguous unless strides say more).

    Attributes:
        written: Whether the kernel writes it; a parameter is either read or written, never both.
        align: The pointer's alignment in bytes that the kernel relies on; the launcher checks it.
        given: Whether no launch of the call writes it, so that it may be read before ``GridWait``.
    """

    name: str
    dtype: DType
    elements: int
    written: bool
    align: int = 16
    given: bool = False


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A buffer in shared memory at a byte offset; buffers may overlap if they are never live at the same time."""

    name: str
    dtype: DType
    elements: int
    offset: int

    @property
    def bytes(self) -> int:
        """Return the size of the buffer in bytes."""
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A ring of slots that items pass through in order, from the producer to all threads of the body, its consumers.

    Item i is in slot i % slots: it is acquired and copied by the producer, then awaited and released by the consumers.

    Attributes:
        name: Its name in the source.
        slots: The number of slots.
        bytes: The bytes of an item, those of all its copies.
    """

    name: str
    slots: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The view of a parameter by which copies of tiles find their rows: the driver encodes it for each address."""

    param: str
    rows: int
    stride: int


@dataclass(frozen=True, slots=True)
class Program:
    """One kernel.

    Attributes:
        name: Its name in the source, a C identifier.
        params: Parameters in the order of the launch arguments.
        shared: All shared buffers; ``shared_bytes`` is the dynamic shared memory of a launch.
        grid, threads: Blocks, and the threads of each that run the body; ``launch_threads`` counts the producer's too.
        alone: Whether a multiprocessor has room for one block at a time, which then gets all registers. A compiler does
            not know the shared memory of a launch, and keeps registers for other blocks unless it is told.
        producer: The statements of a thread of its own that fills the pipelines: loops, ``Acquire``, ``TileCopy`` and
            ``GridWait``. Its variables are those of blocks and of its loops.
        pipelines: The pipelines. Where there is a producer, a ``Barrier`` is one of the body's threads.
    """

    name: str
    params: tuple[Param, ...]
    shared: tuple[SharedBuffer, ...]
    grid: tuple[int, int, int]
    threads: int
    body: tuple[Stmt, ...]
    alone: bool = False
    producer: tuple[Stmt, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()

    @property
    def launch_threads(self) -> int:
        """Return the threads of a block: those of the body, and a warpgroup for the producer if there is one."""
        return self.threads + (PRODUCER_THREADS if self.producer else 0)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """Return the tensor maps of the producer's copies, launch arguments behind the parameters, each once."""
        copies = (one for one in all_statements(self.producer) if isinstance(one, TileCopy))
        return tuple(dict.fromkeys(TensorMap(one.param, one.rows, one.stride) for one in copies))

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block needs."""
        return max((buffer.offset + buffer.bytes for buffer in self.shared), default=0)

    @property
    def dependent(self) -> bool:
        """Return whether the kernel may start while the previous launch still runs; it waits for that one itself."""
        return any(isinstance(statement, GridWait) for statement in self.body)

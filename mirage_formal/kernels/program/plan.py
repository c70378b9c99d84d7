"""Plans: how one graph-defined kernel will run, before it is written as loops and copies.

A block graph is flattened into primitive operators over numbered tensors (its input iterators keep their numbers). A
plan says for each tensor where it lives (device memory, shared memory, registers, or nowhere because its readers
compute it), for each operator how it is computed, in which order, and where all threads meet.

Tensors in registers are seen as matrices: the last dim is their columns, all dims before it their rows. Where one of
these is reduced, a tensor is a stack of matrices, one for each of the dim's positions: its planes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Final

from mirage_formal.graph.types import Dim3, DimMap, DType, Shape
from mirage_formal.graph.views import Place
from mirage_formal.kernels.program.flat import FlatOp
from mirage_formal.kernels.program.program import Barrier, Commit, WaitGroups


class Phase(StrEnum):
    """When a tensor is computed: once before the loop, in every iteration, or once after the loop."""

    BEFORE = "before"
    LOOP = "loop"
    AFTER = "after"


# --- where tensors live ----------------------------------------------------------------------------------------------


class Axis(StrEnum):
    """A dimension of a stack of matrices in registers."""

    PLANE = "plane"
    ROW = "row"
    COL = "col"


@dataclass(frozen=True, slots=True)
class Digit:
    """(tid / div) % extent times ``stride`` is added to the coordinate along ``axis``."""

    div: int
    extent: int
    axis: Axis
    stride: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A thread holds ``extent`` elements that are ``stride`` apart along ``axis``."""

    axis: Axis
    extent: int
    stride: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """Which thread holds which elements of a matrix.

    Threads that differ in a digit that is not listed hold the same elements. ``slots`` number a thread's registers, the
    last one fastest.

    Attributes:
        threads: Threads of the block.
        digits: Digits of the thread's number.
        slots: The elements of one thread.
        fragment: Whether whole matrices lie as the accumulators of m16n8k16 products do.
        plane: The dim whose positions are planes; None for a single matrix, which has every dim but the last in its
            rows.
    """

    threads: int
    digits: tuple[Digit, ...]
    slots: tuple[Slot, ...]
    fragment: bool = False
    plane: int | None = None

    @property
    def count(self) -> int:
        """Registers of one thread."""
        return prod(slot.extent for slot in self.slots)

    def span(self, axis: Axis) -> int:
        """One more than the largest coordinate along an axis."""
        parts: list[Digit | Slot] = [*self.digits, *self.slots]
        return 1 + sum((part.extent - 1) * part.stride for part in parts if part.axis is axis)

    def only(self, axes: frozenset[Axis]) -> Distribution:
        """The distribution of a tensor that has extent 1 along the other axes."""
        if axes == EVERY or (self.plane is None and axes == EVERY - {Axis.PLANE}):
            return self
        return Distribution(
            self.threads,
            tuple(digit for digit in self.digits if digit.axis in axes),
            tuple(slot for slot in self.slots if slot.axis in axes),
            plane=self.plane if Axis.PLANE in axes else None,
        )


EVERY: Final = frozenset(Axis)


@dataclass(frozen=True, slots=True)
class SharedPlacement:
    """A matrix in shared memory: element (row, col) at row * pitch + (col ^ 8 * ((row >> shift) & mask)).

    Attributes:
        buffer: Name of the buffer.
        rows, cols: What is stored, zeros for padding included.
        pitch: Elements from a row to the next.
        shift, mask: The swizzle of 8-element chunks; mask 0 is none.
        transposed: Whether rows and columns of the tensor are swapped in memory.
        stages: Copies in the ring of a pipelined tile; 1 for everything else.
    """

    buffer: str
    rows: int
    cols: int
    pitch: int
    shift: int = 0
    mask: int = 0
    transposed: bool = False
    stages: int = 1

    @property
    def elements(self) -> int:
        """Elements of one copy."""
        return self.rows * self.pitch


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor can be read; nothing set means that its readers compute it themselves.

    Attributes:
        device: It is an input that is read where it lies.
        shared: It is in shared memory.
        registers: It is in registers.
    """

    device: bool = False
    shared: SharedPlacement | None = None
    registers: Distribution | None = None

    @property
    def inline(self) -> bool:
        """Whether readers compute it themselves."""
        return not self.device and self.shared is None and self.registers is None


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """A tensor of the flattened block graph, in one block (and one iteration)."""

    shape: Shape
    dtype: DType
    phase: Phase
    placement: Placement = Placement()

    @property
    def rows(self) -> int:
        """All dims but the last, as one."""
        return prod(self.shape[:-1])

    @property
    def cols(self) -> int:
        """The last dim."""
        return self.shape[-1] if self.shape else 1

    def extents(self, plane: int | None) -> tuple[int, int, int]:
        """Planes, rows of each, columns.

        Args:
            plane: The dim whose positions are planes, not the last one; None for a single matrix.
        """
        planes = 1 if plane is None else self.shape[plane]
        return planes, self.rows // planes, self.cols

    def at(self, placement: Placement) -> PlanTensor:
        """The tensor with another placement."""
        return replace(self, placement=placement)


# --- steps -----------------------------------------------------------------------------------------------------------


class Part(StrEnum):
    """What of an operator a step does; only accumulators have several parts."""

    ALL = "all"
    BEGIN = "begin"
    UPDATE = "update"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Warps:
    """The warps of a product: rows, columns and the inner dim are cut into this many parts each."""

    rows: int
    cols: int
    inner: int

    @property
    def count(self) -> int:
        """Warps of a block."""
        return self.rows * self.cols * self.inner


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything about one kernel that is no part of its µGraph, as far as it can be chosen.

    Attributes:
        threads: Threads of a block.
        stages: Copies of each pipelined tile, the one that is being read counted; 1 if nothing is pipelined.
        warps: For each product that tensor cores can compute, in the order of the operators, how warps share it.
        registers: Whether operators are computed in registers and on tensor cores where they can; else all are computed
            the generic way.
        resident: Whether inputs are copied to shared memory that only some threads need there; else only what products
            read is.
        cut: Iterations into which each of the µGraph's is cut; 1 if it is not.
    """

    threads: int
    stages: int
    warps: tuple[Warps, ...] = ()
    registers: bool = True
    resident: bool = True
    cut: int = 1


@dataclass(frozen=True, slots=True)
class Compute:
    """Part of an operator.

    Attributes:
        op: The operator.
        part: Which part.
        over: In registers: the distribution of the elements that are computed (for reductions, of the operand); None
            for the generic way, one element of the result after another through shared memory.
        warps: Of a product on tensor cores.
        into: A product's result goes to this accumulator's registers instead of its own.
        packed: A product's left operand is read from registers instead of shared memory.
        scratch: Buffer through which warps exchange partial results, or empty.
    """

    op: FlatOp
    part: Part = Part.ALL
    over: Distribution | None = None
    warps: Warps | None = None
    into: int | None = None
    packed: bool = False
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Copies an input's tile to shared memory, asynchronously in chunks of 16, 8 or 4 bytes or element by element."""

    tensor: int
    asynchronous: bool


@dataclass(frozen=True, slots=True)
class Load:
    """Reads a tensor into the registers of its placement from shared or device memory."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Save:
    """Writes a result to device memory; ``saver`` numbers the block graph's output savers."""

    saver: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Starts the copies of an iteration (the one ``stages - 1`` ahead, if none is named) and closes the group."""

    iteration: int | None = None


#: Barriers, and the groups of asynchronous copies, are a Program's own statements.
Step = Compute | Fetch | Load | Save | Prefetch | Barrier | WaitGroups | Commit


# --- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanParam:
    """A device tensor that the kernel reads or writes.

    Attributes:
        name: Its name in the kernel.
        shape: Its shape.
        dtype: Its element type.
        written: Whether it is written.
        place: Where its elements lie, see ``graph.views``: behind which offset, through which strides, and which of
            them lie in memory at all.
    """

    name: str
    shape: Shape
    dtype: DType
    written: bool
    place: Place

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return self.place.strides

    @property
    def elements(self) -> int:
        """Elements from the one that the parameter points to up to the last one that is read or written."""
        return self.place.span(self.shape)

    def aligned(self, width: int, dense: int) -> bool:
        """Whether runs of ``width`` elements along a dim start at multiples of it, and lie in memory wholly or not.

        Args:
            width: Elements of a run; runs start at multiples of it along the dim.
            dense: The dim, along which neighbours are neighbours in memory.
        """
        extents = self.place.extents or self.shape
        others = (s for d, s in enumerate(self.strides) if d != dense and extents[d] > 1)
        whole = self.place.extents is None or self.place.extents[dense] % width == 0
        whole = whole and (self.place.starts is None or self.place.starts[dense] % width == 0)
        return whole and self.place.offset % width == 0 and all(stride % width == 0 for stride in others)

    def copies(self, tile: Shape) -> tuple[bool, int]:
        """How tiles of a shape are copied to shared memory.

        Returns:
            Whether rows and columns are swapped there, because columns are next to each other in memory, and the bytes
            of the widest asynchronous copies that every tile is cut into evenly: 16, 8, 4, or 0 if there are none.
        """
        rank, strides = len(tile), self.strides
        if rank == 0:
            return False, 0
        transposed = rank >= 2 and strides[-1] != 1 and strides[-2] == 1 and prod(tile[:-2]) == 1
        dense = rank - 2 if transposed else rank - 1
        for size in (16, 8, 4) if strides[dense] == 1 else ():
            width = size // self.dtype.bytes
            if tile[dense] % width == 0 and self.aligned(width, dense):
                return transposed, size
        return transposed, 0


@dataclass(frozen=True, slots=True)
class Tile:
    """An input iterator (tensor number = its position) or output saver: which part of a parameter a block sees.

    Attributes:
        param: Position of the parameter.
        tensor: Number of the tensor.
        split: For each grid axis the dim that it splits.
        loop: The dim that the loop splits.
    """

    param: int
    tensor: int
    split: DimMap
    loop: int | None = None


@dataclass(frozen=True, slots=True)
class PlanBuffer:
    """A buffer in shared memory."""

    name: str
    dtype: DType
    elements: int
    offset: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """How one kernel will run.

    Attributes:
        name: A C identifier.
        forloop_range: Iterations of the loop, those of the µGraph's times the schedule's ``cut``.
        params: Inputs, then outputs.
        inputs, savers: The parts of them that a block reads and writes.
        tensors: All tensors of the flattened block graph.
        ops: Its operators.
        before, loop, after: Steps.
        buffers: The memory plan.
        shared_lower_bound: No memory plan for the same live ranges needs fewer bytes.
        schedule: What was chosen.
        ring: The pipelined inputs.
    """

    name: str
    grid: Dim3
    forloop_range: int
    params: tuple[PlanParam, ...]
    inputs: tuple[Tile, ...]
    savers: tuple[Tile, ...]
    tensors: tuple[PlanTensor, ...]
    ops: tuple[FlatOp, ...]
    before: tuple[Step, ...]
    loop: tuple[Step, ...]
    after: tuple[Step, ...]
    buffers: tuple[PlanBuffer, ...]
    shared_lower_bound: int
    schedule: Schedule
    ring: tuple[int, ...]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.schedule.threads

    @property
    def stages(self) -> int:
        """Copies of each pipelined tile; 1 if nothing is pipelined."""
        return self.schedule.stages

    @property
    def barriers(self) -> int:
        """Barriers in the text of the plan, those inside of exchanges between warps not counted."""
        return sum(isinstance(step, Barrier) for step in (*self.before, *self.loop, *self.after))

"""Plans: the schedule and allocation of one graph-defined kernel, before it is lowered to loops and copies.

A block graph is flattened into primitive operators over numbered tensors (its input iterators keep their numbers). A
plan gives each tensor a placement: device memory, shared memory, registers, or none, because its readers compute it.
For each operator it gives the step that computes it, the order of steps, and the barriers.

Tensors in registers are seen as matrices: the last dim is their columns, all dims before it their rows. If one of the
row dims is reduced, the tensor is a batch of matrices, one for each position of that dim: its planes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from math import prod
from typing import Final

from mirage_formal.codegen.device_tensors import PlanParam
from mirage_formal.codegen.program.flat_graph import FlatOp
from mirage_formal.codegen.program.program import MOST_TILE_ROWS, TILE_COLUMNS, Barrier, SharedBuffer
from mirage_formal.codegen.program.register_layout import Axis, Distribution, Warps
from mirage_formal.codegen.program.step import Step
from mirage_formal.graph.types import Dim3, DimMap, DType, Shape


class Phase(StrEnum):
    """The time at which a tensor is computed: once before the loop, in every iteration, or once after the loop."""

    BEFORE = "before"
    LOOP = "loop"
    AFTER = "after"


# --- where tensors live ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedPlacement:
    """A matrix in shared memory: element (row, col) at row * pitch + (col ^ 8 * ((row >> shift) & mask)).

    In panels, each 64 columns are such a matrix, and lie behind the 64 columns before them.

    Attributes:
        buffer: Name of the buffer.
        rows, cols: The stored extents, padding zeros included.
        pitch: Elements from a row to the next.
        shift, mask: The swizzle of 8-element chunks; mask 0 is none.
        transposed: Whether rows and columns of the tensor are swapped in memory.
        stages: Copies in the ring of a pipelined tile; 1 for everything else.
        panels: Whether it lies in panels, as products of warpgroups read it.
    """

    buffer: str
    rows: int
    cols: int
    pitch: int
    shift: int = 0
    mask: int = 0
    transposed: bool = False
    stages: int = 1
    panels: bool = False

    @property
    def elements(self) -> int:
        """Return the number of elements of one copy in the ring, padding included."""
        return self.rows * (self.cols if self.panels else self.pitch)


def producer_stride(param: PlanParam, shape: Shape, placement: SharedPlacement) -> int | None:
    """Return the elements from a row to the next of a tile that the producer can copy; None if it cannot copy it.

    Such a tile is a matrix of 16-bit elements in panels, without padding. Its rows, as stored, lie in memory as they
    are, each in one row of a matrix of the whole parameter, whose rows start at multiples of 16 bytes.

    Args:
        param: The parameter.
        shape: The extents of the tile.
        placement: Its placement in shared memory.
    """
    if param.band is not None or param.place.path is not None or param.dtype.bytes != 2 or not placement.panels:
        return None
    rank = len(shape)
    if rank < 2 or prod(shape[:-2]) != 1 or any(param.place.starts or ()) or param.place.offset:
        return None
    rows, cols = (rank - 1, rank - 2) if placement.transposed else (rank - 2, rank - 1)
    stride, whole = param.strides[rows], param.place.extents in (None, param.shape)
    fits = (shape[rows], shape[cols]) == (placement.rows, placement.cols) and param.strides[cols] == 1
    height = min(placement.rows, MOST_TILE_ROWS)
    if not whole or not fits or stride < TILE_COLUMNS:
        return None
    rests = (placement.rows % height, height % 8, placement.cols % TILE_COLUMNS, param.elements % stride, stride % 8)
    return None if any(rests) else stride


@dataclass(frozen=True, slots=True)
class Placement:
    """The storage of a tensor; nothing set means that its readers compute it themselves.

    Attributes:
        device: Whether it is an input that is read in device memory.
        shared: Its placement in shared memory, if it has one.
        registers: Its distribution in registers, if it has one.
    """

    device: bool = False
    shared: SharedPlacement | None = None
    registers: Distribution | None = None

    @property
    def inline(self) -> bool:
        """Return whether readers compute the tensor themselves."""
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
        """Return the product of all dims but the last."""
        return prod(self.shape[:-1])

    @property
    def cols(self) -> int:
        """Return the extent of the last dim."""
        return self.shape[-1] if self.shape else 1

    def extents(self, plane: int | None) -> tuple[int, int, int]:
        """Return the numbers of planes, rows of each plane, and columns.

        Args:
            plane: The batch dim, not the last one, whose positions are planes; None for a single matrix.
        """
        planes = 1 if plane is None else self.shape[plane]
        return planes, self.rows // planes, self.cols

    def at(self, placement: Placement) -> PlanTensor:
        """Return the tensor with another placement."""
        return replace(self, placement=placement)


#: All sets of axes, the largest first.
_SUBSETS: Final = tuple(frozenset(axes) for n in (3, 2, 1, 0) for axes in combinations(Axis, n))


def register_axes(operand: PlanTensor, result: PlanTensor, over: Distribution) -> frozenset[Axis] | None:
    """Return the axes along which a computation over a distribution reads an operand in its own registers.

    Args:
        operand: The operand.
        result: A tensor of the shape of the computation.
        over: The distribution: the elements that each thread computes.

    Returns:
        The axes along which the operand's registers run; None if a thread does not hold the elements that it needs.
    """
    found = operand.placement.registers
    mine, whole = operand.extents(over.plane), result.extents(over.plane)
    for axes in _SUBSETS:
        wanted = tuple(extent if axis in axes else 1 for axis, extent in zip(Axis, whole, strict=True))
        if found == over.only(axes) and mine == wanted:
            return axes
    return None


# --- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices for one kernel that its µGraph leaves open.

    Attributes:
        threads: Threads of a block.
        stages: Copies of each pipelined tile, including the one that is being read; 1 if nothing is pipelined.
        warps: The grid of warps of each product that tensor cores can compute, in the order of the operators.
        registers: Whether operators are computed in registers and on tensor cores where possible; else all are computed
            in the generic way.
        resident: Whether inputs that only some threads need are copied to shared memory too; else only inputs of
            products are.
        cut: The number of iterations into which each iteration of the µGraph is split; 1 if it is not.
        tile: For a predefined operator that reads across, the number of its tile; all other fields are then defaults.
        ahead: Whether the first product of an iteration is begun in the iteration before, and is computed by warpgroups
            beside that one's other operators; with a producer beside its last product.
        producer: Whether the pipelined tiles are copied by a warpgroup of its own, so that the others do not meet at
            the beginning of an iteration.
    """

    threads: int
    stages: int
    warps: tuple[Warps, ...] = ()
    registers: bool = True
    resident: bool = True
    cut: int = 1
    tile: int = 0
    ahead: bool = False
    producer: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a parameter that a block accesses: of an input iterator (tensor = its position) or output saver.

    Attributes:
        param: Position of the parameter.
        tensor: Number of the tensor.
        split: For each grid axis, the dim that it splits.
        loop: The dim that the loop splits.
    """

    param: int
    tensor: int
    split: DimMap
    loop: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedule and allocation of one kernel.

    Attributes:
        name: A C identifier.
        grid: The grid of the launch.
        forloop_range: Iterations of the loop: those of the µGraph times the schedule's ``cut``.
        params: Inputs, then outputs.
        inputs, savers: The tiles of them that a block reads and writes.
        tensors: All tensors of the flattened block graph.
        ops: Its operators.
        before, loop, after: The steps before, in and after the loop.
        buffers: The shared-memory allocation.
        shared_lower_bound: A lower bound on the bytes of any allocation for the same live ranges.
        schedule: The schedule.
        ring: The pipelined inputs.
        skips: The input with a band such that iterations in which its tile is empty are skipped
            (``program.empty_tiles``); None if no iteration is.
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
    buffers: tuple[SharedBuffer, ...]
    shared_lower_bound: int
    schedule: Schedule
    ring: tuple[int, ...]
    skips: int | None = None

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return self.schedule.threads

    @property
    def stages(self) -> int:
        """Return the copies of each pipelined tile; 1 if nothing is pipelined."""
        return self.schedule.stages

    @property
    def barriers(self) -> int:
        """Return the number of barrier steps; those inside exchanges between warps are not counted."""
        return sum(isinstance(step, Barrier) for step in (*self.before, *self.loop, *self.after))

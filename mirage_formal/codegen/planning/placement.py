"""Choice of the step that computes each operator, and of the placement of each tensor.

An operator is computed in registers, on tensor cores, or in the generic way (element by element through shared memory).
Registers are preferred. Operators that registers do not support (a reduction over a middle dim, a partial broadcast,
products of two types) are computed in the generic way. Tensors that both ways use are placed in shared memory as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage_formal.codegen.planning.batched_reductions import largest_batch
from mirage_formal.codegen.planning.distributions import LayoutChooser
from mirage_formal.codegen.planning.expand import FlatGraph
from mirage_formal.codegen.planning.layout import (
    choose_swizzle,
    pad_to_vectors,
    padded_placement,
    panel_placement,
    plain_placement,
)
from mirage_formal.codegen.planning.mma_selection import MatrixProducts, pad_operand
from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Concat,
    Elementwise,
    FlatOp,
    LoopConcat,
    MapFn,
    Product,
    Reduce,
    Repeat,
    RunningMax,
    defined_tensors,
    operands_of,
)
from mirage_formal.codegen.program.plan import Phase, Placement, PlanTensor, Schedule, SharedPlacement, register_axes
from mirage_formal.codegen.program.register_layout import (
    Axis,
    Distribution,
    Fragment,
    ThreadDigit,
    Warps,
    contiguous_run,
    reduce_layout,
)
from mirage_formal.codegen.program.step import (
    Accumulation,
    GenericOperation,
    Map,
    MatrixMultiply,
    Multiplication,
    MultiplyAccumulate,
    Operation,
    Reduction,
    RunningMaximum,
)
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

_VECTOR = 8
#: Bytes of the widest copy.
_WIDEST = 16


@dataclass(frozen=True, slots=True)
class TileLayouts:
    """The layouts that an input tile allows.

    Attributes:
        transposed: Whether it is contiguous along rows instead of columns.
        chunk: Bytes of each asynchronous copy; 0 if asynchronous copies are impossible.
        computed: Whether its readers compute its elements from their indices, and nothing is loaded.
    """

    transposed: bool
    chunk: int
    computed: bool = False


@dataclass(slots=True)
class Placements:
    """The placements and computations chosen for one kernel.

    Attributes:
        flat: The flattened block graph.
        schedule: The schedule.
        tensors: The tensors with their placements.
        computes: The step that computes each operator, by its first result. For an accumulator into which a product
            adds, it is the product's step. Scratch buffers are added later.
        shared_dtype: The element type of each tensor's shared-memory buffer.
        copied: The inputs that are copied to shared memory, and whether asynchronously.
        brought: The inputs that are loaded into registers.
    """

    flat: FlatGraph
    schedule: Schedule
    tensors: list[PlanTensor]
    computes: dict[int, Operation] = field(default_factory=dict)
    shared_dtype: dict[int, DType] = field(default_factory=dict)
    copied: dict[int, bool] = field(default_factory=dict)
    brought: list[int] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return self.schedule.threads

    @property
    def moving_bytes(self) -> int:
        """Return the bytes of the tiles that are copied asynchronously in each iteration."""
        moving = [n for n, chunks in self.copied.items() if chunks and self.flat.tensors[n].phase is Phase.LOOP]
        return sum(
            placement.elements * self.shared_dtype[n].bytes
            for n in moving
            if (placement := self.tensors[n].placement.shared) is not None
        )


def choose_placements(products: MatrixProducts, sources: Sequence[TileLayouts], schedule: Schedule) -> Placements:
    """Return the placements of all tensors and the steps of all operators.

    Args:
        products: The products of the flattened block graph.
        sources: The layouts that each input allows.
        schedule: The schedule; its number of stages is not used here.

    Raises:
        UnsupportedError: The schedule does not fit this kernel.
    """
    chooser = _Chooser(products, sources, schedule)
    if schedule.registers:
        products.share(schedule.warps)
    chooser.operators(schedule.registers)
    chooser.inputs(schedule.resident)
    chooser.shared()
    return chooser.placements


class _Chooser:
    def __init__(self, products: MatrixProducts, sources: Sequence[TileLayouts], schedule: Schedule) -> None:
        self.flat, self.sources = products.flat, sources
        self.inputs_count = len(sources)
        self.placements = Placements(self.flat, schedule, list(self.flat.tensors))
        self.makers, self.readers = products.makers, products.readers
        self.chosen = products
        stack = largest_batch(products, products.run)
        turned = frozenset(n for n, source in enumerate(sources) if source.transposed)
        self.over = LayoutChooser(products, self.placements.tensors, schedule.threads, stack, turned)
        #: Tensors that are read in shared memory; those from which products read fragments there.
        self.spilled: set[int] = set()
        self.matrices: set[int] = set()
        self.registers = False

    @property
    def tensors(self) -> list[PlanTensor]:
        return self.placements.tensors

    @property
    def warps(self) -> Mapping[int, Warps]:
        return self.chosen.warps

    def _root(self, number: int) -> int | None:
        return self.chosen.root(number)

    def accumulator_of(self, op: Product) -> Accumulate | None:
        """Return the accumulator that a product adds into directly; None if there is none."""
        return self.chosen.accumulator_of(op)

    # --- operators

    def operators(self, registers: bool) -> None:
        """Choose the step of every operator."""
        self.registers = registers
        for op in self.flat.ops:
            done = registers and self._in_registers(op)
            if not done:
                self._generic(op)

    def _in_registers(self, op: FlatOp) -> bool:
        match op:
            case Elementwise(fn=MapFn.CONSTANT):
                return self._inline(op, op.result) or self._map(op)
            case Elementwise():
                return self._map(op)
            case Reduce():
                return self._reduce(op)
            case Product():
                return op.result in self.warps and self._product(op)
            case Accumulate():
                return self._accumulate(op)
            case RunningMax():
                return self._running(op)
            case Repeat():
                # Readers take the operand's element instead, if they can.
                return self._inline(op, op.result) or self._map(op)
            case LoopConcat() | Concat():
                return False

    def _place(self, number: int, over: Distribution) -> None:
        self.tensors[number] = self.tensors[number].at(Placement(registers=over))

    def _register_layout(self, number: int) -> Distribution | None:
        return self.tensors[number].placement.registers

    def _require(self, number: int, result: int, over: Distribution) -> None:
        """Record that an operand is read over a distribution: in shared memory if its registers do not match.

        Args:
            number: The operand.
            result: A tensor of the shape of the computation.
            over: The distribution: the elements that each thread computes.
        """
        tensor = self.tensors[number]
        op = self.makers.get(number)
        if isinstance(op, Repeat) and tensor.placement.inline:
            self._require(op.operand, result, over)
        elif tensor.placement.registers is not None and register_axes(tensor, self.tensors[result], over) is None:
            self.spilled.add(number)

    def _map(self, op: Elementwise | Repeat) -> bool:
        operands = operands_of(op)
        over = self._map_layout(op.result, operands)
        if not all(self._fits(n, op.result, over) for n in operands):
            return False
        for n in operands:
            self._require(n, op.result, over)
        self._place(op.result, over)
        self.placements.computes[op.result] = Map(op, over)
        return True

    def _fits(self, number: int, result: int, over: Distribution) -> bool:
        """Return whether a tensor has, along each axis of a distribution, the extent of a result or 1."""
        mine, whole = (self.tensors[n].extents(over.plane) for n in (number, result))
        return all(n in (1, extent) for n, extent in zip(mine, whole, strict=True))

    def _map_layout(self, result: int, operands: Sequence[int]) -> Distribution:
        if (stacked := self.over.stacked(result)) is not None:
            return stacked
        rows, cols = self.tensors[result].rows, self.tensors[result].cols
        held = [
            found
            for n in operands
            if (found := self._register_layout(n)) is not None
            and (self.tensors[n].rows, self.tensors[n].cols) == (rows, cols)
        ]
        fragments = [over for over in held if isinstance(over, Fragment)]
        if fragments:
            return fragments[0]
        return self.over.hint(result, set()) or (held[0] if held else self.over.beside(result, operands))

    def _fold(
        self, number: int, dim: int, kept: int
    ) -> tuple[Distribution, Distribution, tuple[ThreadDigit, ...]] | None:
        """Return (layout of the operand, layout of the result, digits to add over) of a reduction; None if none."""
        for over in (self._register_layout(number), self.over.hint(number, set()), self.over.fresh(number)):
            axis = None if over is None else self.over.fold_axis(number, dim, over)
            if over is not None and axis is not None and (found := reduce_layout(over, axis, kept)) is not None:
                return over, *found
        return None

    def _reduce(self, op: Reduce) -> bool:
        found = self._fold(op.operand, op.dim, op.kept)
        if found is None:
            return False
        over, result, digits = found
        self._require(op.operand, op.operand, over)
        self._place(op.result, result)
        self.placements.computes[op.result] = Reduction(op, over, digits)
        return True

    def _product(self, op: Product) -> bool:
        warps, over = self.warps[op.result], self.over.fragment(op.result)
        held = self._register_layout(op.a)
        packed = op.result in self.chosen.packed and held is not None and held == self._source(op)
        if not packed:
            self.matrices.add(op.a)
        self.matrices.add(op.b)
        target = self.accumulator_of(op)
        if target is None:
            self._place(op.result, over)
            self.placements.computes[op.result] = MatrixMultiply(op, over, warps, packed)
        else:
            self.placements.computes[op.result] = MultiplyAccumulate(op, over, warps, packed, target)
        return True

    def _source(self, op: Product) -> Fragment | None:
        root = self._root(op.a)
        return self.over.fragment(root) if root is not None and root in self.warps else None

    def _accumulate(self, op: Accumulate) -> bool:
        maker = self.makers.get(op.operand)
        if isinstance(maker, Product) and maker.result in self.warps and self.accumulator_of(maker) is op:
            fragment = self.over.fragment(maker.result)
            if op.factor is not None:
                self._require(op.factor, op.result, fragment)
            self._place(op.result, fragment)
            self.placements.computes[op.result] = self.placements.computes[maker.result]
            return True
        if isinstance(maker, Product) and self.accumulator_of(maker) is op:
            return False  # the generic way adds such products as it computes them
        digits: tuple[ThreadDigit, ...] = ()
        if op.dim is None:
            over = self._register_layout(op.operand) or self.over.hint(op.result, set()) or self.over.fresh(op.operand)
            result = over
        else:
            found = self._fold(op.operand, op.dim, op.kept)
            if found is None:
                return False
            over, result, digits = found
        if op.factor is not None:
            if not self._fits(op.factor, op.result, result):
                return False
            self._require(op.factor, op.result, result)
        self._require(op.operand, op.operand, over)
        self._place(op.result, result)
        self.placements.computes[op.result] = Accumulation(op, over, digits)
        return True

    def _running(self, op: RunningMax) -> bool:
        over = self._register_layout(op.operand) or self.over.fresh(op.operand)
        self._require(op.operand, op.operand, over)
        for result in defined_tensors(op):
            self._place(result, over)
        self.placements.computes[op.largest] = RunningMaximum(op, over)
        return True

    def _generic(self, op: FlatOp) -> None:
        """Choose the generic way; operands in registers are then needed in shared memory too."""
        for n in operands_of(op):
            self._readable(n)
        for result in defined_tensors(op):
            if not self._inline(op, result):
                self.spilled.add(result)
                self.placements.computes[defined_tensors(op)[0]] = GenericOperation(op)

    def _readable(self, number: int) -> None:
        op = self.makers.get(number)
        if op is None:
            return
        if self._register_layout(number) is not None:
            self.spilled.add(number)
        elif number not in self.spilled:
            for n in operands_of(op):
                self._readable(n)

    def _inline(self, op: FlatOp, result: int) -> bool:
        """Return whether the readers of a result recompute it (rematerialisation): it is cheap, or read once."""
        readers = self.readers.get(result, [])
        if isinstance(op, Product):
            return self.accumulator_of(op) is not None
        if any(not isinstance(r, Elementwise | Reduce | Accumulate) for r in readers):
            return False
        if isinstance(op, Repeat) or (isinstance(op, Elementwise) and op.fn is MapFn.CONSTANT):
            return result not in self.flat.outputs
        if not isinstance(op, Elementwise) or self.registers or len(readers) + (result in self.flat.outputs) != 1:
            return False
        if not readers:
            return True
        reader = readers[0]
        if isinstance(reader, Accumulate) and reader.factor == result:
            return False
        if isinstance(reader, Elementwise):
            later, mine = self.tensors[reader.result], self.tensors[result]
            return later.shape == mine.shape and later.phase is mine.phase
        return self.tensors[result].phase is Phase.LOOP or isinstance(reader, Reduce)

    # --- inputs and shared memory

    def inputs(self, resident: bool) -> None:
        """Place inputs that products read in shared memory, and in kernels with products all others too."""
        for number in range(self.inputs_count):
            used = self.readers.get(number, [])
            source = self.sources[number]
            product = any(isinstance(op, Product) for op in used)
            wanted = resident and (product or (self.warps and used and source.chunk == _WIDEST))
            if number in self.matrices or wanted:
                self.placements.copied[number] = source.chunk > 0
                self.spilled.add(number)
            else:
                self._device(number)

    def _device(self, number: int) -> None:
        """Leave an input in device memory; load it into registers once if all its readers use one distribution."""
        tensor = self.tensors[number]
        readers = self.readers.get(number, [])
        overs = {
            None if isinstance(compute, GenericOperation) else compute.over
            for op in readers
            if (compute := self.placements.computes.get(defined_tensors(op)[0])) is not None
        }
        over = next(iter(overs)) if len(overs) == 1 else None
        if self.registers and not self.readers.get(number) and number in self.flat.outputs:
            over = self.over.fresh(number)  # a copy
        fits = over is not None and register_axes(tensor.at(Placement(registers=over)), tensor, over)
        several = over is not None and (tensor.cols > 1 or over.plane is not None)
        several = several and not any(isinstance(op, Repeat) for op in readers)  # its elements are others' as well
        several = several and not self.sources[number].computed
        if over is not None and fits and several and over.span(Axis.COL) >= tensor.cols:
            self.placements.brought.append(number)
            self.tensors[number] = tensor.at(Placement(device=True, registers=over))
        else:
            self.tensors[number] = tensor.at(Placement(device=True))

    def shared(self) -> None:
        """Assign shared-memory placements to all tensors that are read there."""
        for number in sorted(self.spilled | self.matrices):
            tensor = self.tensors[number]
            matrix = number in self.matrices
            if number < self.inputs_count:
                placement, dtype = self._input_placement(number, matrix), tensor.dtype
            elif matrix:
                placement, dtype = self._matrix(number), tensor.dtype
            else:
                placement = plain_placement(f"s{number}", tensor.rows, tensor.cols)
                dtype = DType.FLOAT32 if tensor.dtype.floating else DType.BOOL
            self.placements.shared_dtype[number] = dtype
            self.tensors[number] = tensor.at(Placement(tensor.placement.device, placement, tensor.placement.registers))

    def _in_panels(self, number: int) -> bool:
        """Return whether warpgroups read a matrix."""
        products = (self.placements.computes.get(op.result) for op in self.readers[number] if isinstance(op, Product))
        return any(
            isinstance(one, Multiplication) and one.warps.warpgroup and not (one.packed and one.op.b != number)
            for one in products
        )

    def _panels(self, number: int, rows: int, cols: int, *, transposed: bool) -> SharedPlacement:
        """Return the placement of a matrix that warpgroups read.

        Raises:
            UnsupportedError: It has no whole panels, so the schedule does not fit.
        """
        found = panel_placement(f"s{number}", rows, cols, transposed=transposed)
        if found is None:
            what = f"expected a matrix of whole panels for products of warpgroups, got {rows} x {cols}"
            raise UnsupportedError(what, where="schedule", hint="take a schedule that was made for this kernel")
        return found

    def _matrix(self, number: int) -> SharedPlacement:
        """Return the placement of a computed matrix from which products read fragments.

        If threads hold runs of its rows, and no padding is needed, it is stored transposed.
        """
        tensor, over = self.tensors[number], self._register_layout(number)
        if self._in_panels(number):
            return self._panels(number, tensor.rows, tensor.cols, transposed=False)
        rows, cols = pad_operand(number, tensor, self.readers[number], self.placements.computes)
        whole, size = rows == tensor.rows and cols == tensor.cols, tensor.dtype.bytes
        if whole and rows % _VECTOR == 0 and over is not None and contiguous_run(over)[0] is Axis.ROW:
            across = self._across(number, transposed=True)
            return choose_swizzle(f"s{number}", cols, rows, transposed=True, size=size, across=across)
        # Elements and the zeros beside them are told apart by columns, which a swizzle would mix.
        place = choose_swizzle if whole and cols % _VECTOR == 0 else padded_placement
        return place(f"s{number}", rows, cols, size=size, across=self._across(number, transposed=False))

    def _across(self, number: int, *, transposed: bool) -> bool:
        """Return whether the inner dim of a product that reads a matrix runs across its rows, as they are stored."""
        products = [op for op in self.readers[number] if isinstance(op, Product) and op.result in self.warps]
        return any((op.a == number and transposed) or (op.b == number and not transposed) for op in products)

    def _input_placement(self, number: int, matrix: bool) -> SharedPlacement:
        tensor, source = self.tensors[number], self.sources[number]
        rows, cols = tensor.rows, tensor.cols
        if matrix:
            rows, cols = pad_operand(number, tensor, self.readers[number], self.placements.computes)
        if source.transposed:
            rows, cols = cols, rows
        name, size, transposed = f"s{number}", tensor.dtype.bytes, source.transposed
        if matrix and self._in_panels(number):
            return self._panels(number, rows, cols, transposed=transposed)
        if not tensor.dtype.floating and source.chunk == _WIDEST:
            # Rows of an odd number of vectors: what the lanes of a fragment read is then in banks of its own.
            return SharedPlacement(name, rows, cols, (-(-cols // _WIDEST) | 1) * _WIDEST, transposed=transposed)
        if not matrix and (source.chunk < _WIDEST or tensor.dtype is DType.FLOAT32):
            cols = pad_to_vectors(cols, size) if source.chunk == _WIDEST else cols
            return SharedPlacement(name, rows, cols, cols, transposed=transposed)
        across = matrix and self._across(number, transposed=transposed)
        return choose_swizzle(name, rows, cols, transposed=transposed, size=size, across=across)

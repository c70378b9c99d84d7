"""Tensors in registers: positions of their elements, elementwise operators, loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mirage_formal.codegen.device_tensors import PlanParam
from mirage_formal.codegen.lowering.context import TID, LoweringContext, apply_elementwise, make_conditional, make_loop
from mirage_formal.codegen.program.flat_graph import Elementwise, Repeat, operands_of
from mirage_formal.codegen.program.integers import ONE, ZERO
from mirage_formal.codegen.program.plan import PlanTensor, register_axes
from mirage_formal.codegen.program.program import (
    GlobalVector,
    Int,
    IntExpr,
    Real,
    Reg,
    Registers,
    SetReg,
    SharedRead,
    SharedVector,
    Stmt,
    Value,
)
from mirage_formal.codegen.program.register_layout import EVERY, Axis, Distribution, ThreadDigit, contiguous_run

Vars = tuple[IntExpr, ...]


def array_name(number: int) -> str:
    """Return the name of the register array that holds the plan's tensor of this number."""
    return f"t{number}"


def register_layout(cx: LoweringContext, number: int) -> Distribution:
    """Return how a tensor is distributed over the registers of a block's threads; the plan has put it there."""
    found = cx.tensor(number).placement.registers
    assert found is not None
    return found


def digit_value(cx: LoweringContext, digit: ThreadDigit) -> IntExpr:
    """Return a digit of the thread number as an index expression: (tid / div) mod extent."""
    return cx.ix.mod(cx.ix.div(TID, digit.div), digit.extent)


def coordinate(cx: LoweringContext, over: Distribution, axis: Axis, at: Vars) -> IntExpr:
    """Return the coordinate of a thread's element along an axis."""
    threads = [cx.ix.mul(digit_value(cx, d), d.stride) for d in over.digits if d.axis is axis]
    slots = [cx.ix.mul(v, s.stride) for s, v in zip(over.slots, at, strict=True) if s.axis is axis]
    return cx.ix.add(*threads, *slots)


def register_index(cx: LoweringContext, over: Distribution, at: Vars, axes: frozenset[Axis] = EVERY) -> IntExpr:
    """Return the register of an element, in a tensor that has only some of the axes."""
    return slot_number(cx, over, at, lambda i: over.slots[i].axis in axes)


def slot_number(cx: LoweringContext, over: Distribution, at: Vars, keep: Callable[[int], bool]) -> IntExpr:
    """Return the mixed-radix number of the slots that are kept."""
    terms: list[IntExpr] = []
    step = 1
    for i in reversed(range(len(over.slots))):
        if keep(i):
            terms.append(cx.ix.mul(at[i], step))
            step *= over.slots[i].extent
    return cx.ix.add(*reversed(terms))


def for_each_slot(
    cx: LoweringContext, over: Distribution, body: Callable[[Vars], Sequence[Stmt]], *, inner: int = 0
) -> tuple[Stmt, ...]:
    """Return ``body`` for every register, unrolled; with ``inner`` the last slots are left to the body, as zeros."""
    count = len(over.slots) - inner
    at = [cx.iterator(slot.extent, "u") for slot in over.slots[:count]]
    out = tuple(body((*at, *(ZERO for _ in range(inner)))))
    for variable, slot in reversed(list(zip(at, over.slots, strict=False))):
        out = make_loop(variable, slot.extent, out, unroll=True)
    return out


def element_position(cx: LoweringContext, tensor: PlanTensor, over: Distribution, at: Vars) -> tuple[IntExpr, IntExpr]:
    """Return (row, col) of a thread's element in a tensor that may have extent 1; always inside the tensor."""
    extents = dict(zip(Axis, tensor.extents(over.plane), strict=True))
    plane, row, col = (
        ZERO if extent == 1 else cx.ix.clamped(coordinate(cx, over, axis, at), extent)
        for axis, extent in extents.items()
    )
    return matrix_row(cx, tensor, over, plane, row), col


def matrix_row(cx: LoweringContext, tensor: PlanTensor, over: Distribution, plane: IntExpr, row: IntExpr) -> IntExpr:
    """Return the row, in the whole tensor as one matrix, of a row of one of its planes."""
    if over.plane is None:
        return row
    inner = prod(tensor.shape[over.plane + 1 : -1])
    outer = cx.ix.mul(cx.ix.div(row, inner), inner * tensor.shape[over.plane])
    return cx.ix.add(outer, cx.ix.mul(plane, inner), cx.ix.mod(row, inner))


class Operands:
    """A reader of a computation's operands over a distribution, one run of columns or rows at a time."""

    def __init__(self, cx: LoweringContext, over: Distribution, result: PlanTensor) -> None:
        self.cx, self.over, self.result = cx, over, result
        self.axis, self.run = contiguous_run(over)
        self.loaded: dict[int, str] = {}
        self.statements: list[Stmt] = []

    def value(self, number: int, at: Vars) -> Value:
        """Return an element; ``prepare`` must have been called for its run."""
        cx, tensor = self.cx, self.cx.tensor(number)
        if tensor.placement.registers is not None:
            axes = register_axes(tensor, self.result, self.over)
            if axes is not None:
                return Reg(array_name(number), register_index(cx, self.over, at, axes))
        if number in self.loaded:
            return Reg(self.loaded[number], at[-1])
        if tensor.placement.inline:
            op = cx.definitions[number]
            if isinstance(op, Elementwise):
                return apply_elementwise(op, [self.value(n, at) for n in op.operands])
            assert isinstance(op, Repeat)
            return self.value(op.operand, at)
        return read_element(cx, number, *element_position(cx, tensor, self.over, at))

    def prepare(self, numbers: Sequence[int], at: Vars) -> list[Stmt]:
        """Return the vector loads of one run, for operands that allow them."""
        self.loaded = {}
        out: list[Stmt] = []
        if self.run > 1:
            for number in numbers:
                self._prepare(number, at, out)
        return out

    def _prepare(self, number: int, at: Vars, out: list[Stmt]) -> None:
        cx, tensor = self.cx, self.cx.tensor(number)
        if number in self.loaded:
            return
        if tensor.placement.registers is not None and register_axes(tensor, self.result, self.over) is not None:
            return
        if tensor.placement.inline:
            op = cx.definitions[number]
            for operand in op.operands if isinstance(op, Elementwise) else (op.operand,):  # type: ignore[union-attr]
                self._prepare(operand, at, out)
            return
        if matrix_extent(tensor, self.axis) != matrix_extent(self.result, self.axis):
            return
        array = cx.fresh("v")
        place = element_position(cx, tensor, self.over, at)
        found = vector_load(cx, number, (array, ZERO), place, (self.axis, self.run))
        if found:
            out.append(Registers(array, self.run))
            out.extend(found)
            self.loaded[number] = array


def read_element(cx: LoweringContext, number: int, row: IntExpr, col: IntExpr) -> Value:
    """Return one element of a tensor in shared or device memory."""
    tensor = cx.tensor(number)
    if tensor.placement.shared is not None:
        return SharedRead(tensor.placement.shared.buffer, cx.shared_index(tensor.placement.shared, row, col))
    assert tensor.placement.device, f"tensor {number} cannot be read here"
    return cx.device_element(cx.input_tile(number), cx.coordinates(tensor.shape, row, col))


def matrix_extent(tensor: PlanTensor, axis: Axis) -> int:
    """Return the number of columns of a matrix if the axis is COL, and otherwise the number of its rows."""
    return tensor.cols if axis is Axis.COL else tensor.rows


def vector_width(cx: LoweringContext, number: int, run: tuple[Axis, int]) -> int:
    """Return the elements of one vector access to a run of a tensor in memory; 1 if no vector access fits."""
    tensor = cx.tensor(number)
    axis, length = run
    width = length & -length
    placement = tensor.placement.shared
    if placement is not None:
        if placement.transposed != (axis is Axis.ROW):
            return 1
        size = next(b.dtype.bytes for b in cx.plan.buffers if b.name == placement.buffer)
        aligned = [placement.pitch, matrix_extent(tensor, axis), placement.elements if placement.stages > 1 else 0]
    else:
        tile = cx.input_tile(number)
        param = cx.plan.params[tile.param]
        return device_width(param, tensor, run)
    width = min(width, 16 // size)
    while width > 1 and any(extent % width for extent in aligned):
        width //= 2
    return width


def device_width(param: PlanParam, tensor: PlanTensor, run: tuple[Axis, int]) -> int:
    """Return the elements of one vector access to a run of a tile in device memory; 1 if no vector access fits."""
    axis, length = run
    dense = len(param.shape) - (1 if axis is Axis.COL else 2)
    if param.band is not None or dense < 0 or param.strides[dense] != 1:
        return 1
    width = min(length & -length, 16 // param.dtype.bytes)
    while width > 1 and not (tensor.shape[dense] % width == 0 and param.aligned(width, dense)):
        width //= 2
    return width


def vector_load(
    cx: LoweringContext, number: int, to: tuple[str, IntExpr], at: tuple[IntExpr, IntExpr], run: tuple[Axis, int]
) -> list[Stmt]:
    """Load a run of columns or rows into consecutive registers; return no statements if no vector access fits.

    Args:
        cx: The kernel.
        number: The tensor.
        to: The register array, and the first of its registers.
        at: Row and column of the first element.
        run: The axis along which it lies, and its elements.
    """
    tensor = cx.tensor(number)
    array, first = to
    axis, length = run
    width = vector_width(cx, number, run)
    if width == 1:
        return []
    out: list[Stmt] = []
    for part in range(0, length, width):
        register = cx.ix.add(first, Int(part))
        row, col = advance(cx, axis, at, part)
        if tensor.placement.shared is not None:
            placement = tensor.placement.shared
            out.append(SharedVector(array, register, placement.buffer, cx.shared_index(placement, row, col), width))
        else:
            tile = cx.input_tile(number)
            place = cx.coordinates(tensor.shape, row, col)
            load = GlobalVector(array, register, cx.plan.params[tile.param].name, cx.device_index(tile, place), width)
            inside = cx.in_memory(tile, place)
            if inside != ONE:
                out += [SetReg(array, cx.ix.add(register, Int(i)), Real(0.0)) for i in range(width)]
            out += make_conditional(inside, (load,))
    return out


def advance(cx: LoweringContext, axis: Axis, at: tuple[IntExpr, IntExpr], by: int) -> tuple[IntExpr, IntExpr]:
    """Return (row, col) moved by ``by`` elements along an axis."""
    row, col = at
    return (row, cx.ix.add(col, Int(by))) if axis is Axis.COL else (cx.ix.add(row, Int(by)), col)


def for_each_run(
    cx: LoweringContext,
    over: Distribution,
    result: int,
    operands: Sequence[int],
    body: Callable[[list[Value], Vars], Sequence[Stmt]],
) -> tuple[Stmt, ...]:
    """Return ``body`` on the operands' values at every register of a computation over the shape of a result."""
    source = Operands(cx, over, cx.tensor(result))

    def run(at: Vars) -> tuple[Stmt, ...]:
        before = source.prepare(operands, at)
        if source.run == 1:
            return tuple(body([source.value(n, at) for n in operands], at))
        last = cx.iterator(source.run, "u")
        full = (*at[:-1], last)
        inner = body([source.value(n, full) for n in operands], full)
        return (*before, *make_loop(last, source.run, inner, unroll=True))

    return for_each_slot(cx, over, run, inner=1 if source.run > 1 else 0)


def load_tensor(cx: LoweringContext, number: int) -> tuple[Stmt, ...]:
    """Load a tensor from memory into its registers."""
    tensor = cx.tensor(number)
    over = register_layout(cx, number)
    axis, run = contiguous_run(over)

    def body(at: Vars) -> tuple[Stmt, ...]:
        to = (array_name(number), register_index(cx, over, at))
        found = vector_load(cx, number, to, element_position(cx, tensor, over, at), (axis, run))
        if found:
            return tuple(found)
        last = cx.iterator(run, "u") if run > 1 else None
        full = at if last is None else (*at[:-1], last)
        item = SetReg(
            array_name(number),
            register_index(cx, over, full),
            read_element(cx, number, *element_position(cx, tensor, over, full)),
        )
        return (item,) if last is None else make_loop(last, run, (item,), unroll=True)

    return for_each_slot(cx, over, body, inner=1 if run > 1 else 0)


def elementwise(cx: LoweringContext, op: Elementwise | Repeat, over: Distribution) -> tuple[Stmt, ...]:
    """Return the statements of an elementwise operator, or of a repetition."""

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        value = apply_elementwise(op, values) if isinstance(op, Elementwise) else values[0]
        return (SetReg(array_name(op.result), register_index(cx, over, at), value),)

    return for_each_run(cx, over, op.result, operands_of(op), body)

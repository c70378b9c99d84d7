"""The context shared by all parts of lowering: names, addresses, and the value of one element of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import assert_never

from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Elementwise,
    FlatOp,
    MapFn,
    Reduce,
    Repeat,
    RunningMax,
    defined_tensors,
)
from mirage_formal.codegen.program.index import DigitBuilder, IndexBuilder
from mirage_formal.codegen.program.integers import ONE, ZERO
from mirage_formal.codegen.program.plan import Plan, PlanTensor, SharedPlacement, Tile
from mirage_formal.codegen.program.program import (
    PANEL,
    Apply,
    BinaryFn,
    Combine,
    For,
    GlobalRead,
    If,
    Int,
    IntExpr,
    KernelFn,
    Real,
    Select,
    SharedRead,
    Stmt,
    Value,
    Var,
    Where,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import StorageLocation
from mirage_formal.graph.types import Shape

BLOCK = ("bx", "by", "bz")
TID = Var("tid")


class LoweringContext:
    """The state of one lowering: the plan, fresh names, and the loop variable of the kernel's loop."""

    def __init__(self, plan: Plan, ops: Sequence[FlatOp]) -> None:
        self.plan = plan
        ranges = dict(zip(BLOCK, plan.grid, strict=True)) | {"tid": plan.threads}
        self.ix = IndexBuilder(ranges)
        self.iteration: IntExpr = ZERO
        #: Whether the loop has two iterations of the plan in each of its own.
        self.paired = False
        self.definitions = {n: op for op in ops for n in defined_tensors(op)}
        self._fresh = 0

    def fresh(self, stem: str) -> str:
        """Return a new name of a register array."""
        self._fresh += 1
        return f"{stem}_{self._fresh}"

    def tensor(self, number: int) -> PlanTensor:
        """Return the plan's entry for the tensor of this number: its type and where it is stored."""
        return self.plan.tensors[number]

    def iterator(self, extent: int, stem: str = "i") -> IntExpr:
        """Return a new loop variable; the constant 0 if the loop would have one iteration."""
        return ZERO if extent == 1 else self.ix.variable(extent, stem)

    # --- device memory

    def device_index(self, tile: Tile, coordinates: Sequence[IntExpr], iteration: IntExpr | None = None) -> IntExpr:
        """Return the position in a parameter of an element of a block's tile."""
        shape = self.tensor(tile.tensor).shape
        strides = self.plan.params[tile.param].strides
        step = self.iteration if iteration is None else iteration
        place = self.plan.params[tile.param].place
        if place.path is not None:
            source = place.path.source
            at, _ = self._back(tile, coordinates, step)
            return self.ix.add(self.ix.ravel(at, source.strides), Int(_first_offset(source)))
        starts = place.starts or (0,) * len(shape)
        out = [
            self.tile_base(tile, dim, shape[dim], strides[dim], step) for dim, start in enumerate(starts) if not start
        ]
        for dim, (start, coordinate, stride) in enumerate(zip(starts, coordinates, strides, strict=True)):
            out.append(self.ix.mul(self._wrapped(tile, dim, coordinate, step) if start else coordinate, stride))
        return self.ix.add(*out, Int(_first_offset(place)))

    def in_memory(self, tile: Tile, coordinates: Sequence[IntExpr], iteration: IntExpr | None = None) -> IntExpr:
        """Return the condition that an element of a block's tile lies in memory; the constant 1 if all elements do."""
        param, shape = self.plan.params[tile.param], self.tensor(tile.tensor).shape
        step = self.iteration if iteration is None else iteration
        if param.place.path is not None:
            return self.ix.both(self._back(tile, coordinates, step)[1])
        starts = param.place.starts or (0,) * len(shape)
        return self.ix.both(
            self.ix.less(
                self._wrapped(tile, dim, coordinates[dim], step)
                if starts[dim]
                else self.ix.add(self.tile_base(tile, dim, shape[dim], 1, step), coordinates[dim]),
                extent - starts[dim],
            )
            for dim, extent in enumerate(param.place.extents or ())
            if extent - starts[dim] < param.shape[dim]
        )

    def _back(
        self, tile: Tile, coordinates: Sequence[IntExpr], iteration: IntExpr
    ) -> tuple[list[IntExpr], list[IntExpr]]:
        """Return the source coordinates of a tile element through a layout composition, and the conditions for it.

        Coordinates count from the first element in memory.
        """
        path, shape = self.plan.params[tile.param].place.path, self.tensor(tile.tensor).shape
        assert path is not None
        digits = DigitBuilder(self.ix)
        bases = (self.tile_base(tile, dim, extent, 1, iteration) for dim, extent in enumerate(shape))
        at, conditions = path.back([self.ix.add(*pair) for pair in zip(bases, coordinates, strict=True)], digits)
        source, given = path.source, path.given
        starts, ends = source.starts or (0,) * len(given), source.extents or given
        for dim, (start, end, extent) in enumerate(zip(starts, ends, given, strict=True)):
            if start:
                at[dim] = digits.mod(digits.add(at[dim], Int(extent - start)), extent)
            if end - start < extent:
                conditions.append(self.ix.less(at[dim], end - start))
        return at, conditions

    def _wrapped(self, tile: Tile, dim: int, coordinate: IntExpr, iteration: IntExpr) -> IntExpr:
        """Return an index along a padded dim relative to the first element in memory, modulo the extent."""
        param = self.plan.params[tile.param]
        assert param.place.starts is not None
        extent, start = param.shape[dim], param.place.starts[dim]
        at = self.ix.add(self.tile_base(tile, dim, self.tensor(tile.tensor).shape[dim], 1, iteration), coordinate)
        return self.ix.mod(self.ix.add(at, Int(extent - start)), extent)

    def device_element(self, tile: Tile, coordinates: Sequence[IntExpr]) -> Value:
        """Return one element of a parameter; 0 for an element that does not lie in memory.

        An element of a band mask is computed from its indices.
        """
        if self.plan.params[tile.param].band is not None:
            inside = self.ix.both((self.in_memory(tile, coordinates), *self._bounds(tile, coordinates, self.iteration)))
            return Real(float(inside.value)) if isinstance(inside, Int) else Select(inside, Real(1.0), Real(0.0))
        value = GlobalRead(self.plan.params[tile.param].name, self.device_index(tile, coordinates))
        inside = self.in_memory(tile, coordinates)
        return value if inside == ONE else Select(inside, value, Real(0.0))

    def tile_base(self, tile: Tile, dim: int, extent: int, stride: int, iteration: IntExpr) -> IntExpr:
        """Return the start of the tile along one dim: the block's slab first, the loop chunk inside it."""
        parts: list[tuple[IntExpr, int]] = [
            (Var(BLOCK[axis]), self.plan.grid[axis])
            for axis, split in enumerate(tile.split)
            if split == dim and self.plan.grid[axis] > 1
        ]
        if tile.loop == dim:
            parts.append((iteration, self.plan.forloop_range))
        terms: list[IntExpr] = []
        step = extent * stride
        for variable, count in reversed(parts):
            terms.append(self.ix.mul(variable, step))
            step *= count
        return self.ix.add(*reversed(terms))

    def needed(self, iteration: IntExpr) -> IntExpr:
        """Return the condition that an iteration changes anything: its tile of the mask that decides is not empty."""
        return self.ix.both((self.begun(iteration), self.unfinished(iteration)))

    def begun(self, iteration: IntExpr) -> IntExpr:
        """Return the condition that no later iteration is the first with a nonempty tile; see ``needed``."""
        return self._tile_bounds(iteration)[0]

    def unfinished(self, iteration: IntExpr) -> IntExpr:
        """Return the condition that no earlier iteration is the last with a nonempty tile; see ``needed``."""
        return self._tile_bounds(iteration)[1]

    def _tile_bounds(self, iteration: IntExpr) -> tuple[IntExpr, IntExpr]:
        """Return the conditions by the bounds of the mask; the one that holds from some iteration on comes first.

        Along columns the distance from row to column grows, so the lower bound is met from some iteration on, and the
        upper one up to some iteration. Along rows it is the other way round.
        """
        if self.plan.skips is None:
            return ONE, ONE
        tile, (*lead, height, width) = self.input_tile(self.plan.skips), self.tensor(self.plan.skips).shape
        corner = (ZERO,) * (len(lead) + 2)
        lower, upper = self._bounds(tile, corner, iteration, (height, width))
        return (upper, lower) if tile.loop == len(lead) else (lower, upper)

    def _bounds(
        self, tile: Tile, first: Sequence[IntExpr], iteration: IntExpr, size: tuple[int, int] = (1, 1)
    ) -> tuple[IntExpr, IntExpr]:
        """Return the conditions that some element of a rectangle meets the lower bound of its band, and the upper one.

        Args:
            tile: A block's tile of a band mask.
            first: The coordinates in it of the rectangle's first element.
            iteration: The iteration.
            size: The rectangle's rows and columns; one element, if left out.
        """
        band, shape = self.plan.params[tile.param].band, self.tensor(tile.tensor).shape
        assert band is not None
        row, column = (
            self.ix.add(self.tile_base(tile, dim, shape[dim], 1, iteration), first[dim])
            for dim in (len(shape) - 2, len(shape) - 1)
        )
        return (
            ONE if band.lower is None else self.ix.before(row, column, size[1] - band.lower),
            ONE if band.upper is None else self.ix.before(column, row, size[0] + band.upper),
        )

    def input_tile(self, number: int) -> Tile:
        """Return the tile that a block reads of the operand at this position."""
        return self.plan.inputs[number]

    # --- shared memory

    def shared_index(
        self, placement: SharedPlacement, row: IntExpr, col: IntExpr, iteration: IntExpr | None = None
    ) -> IntExpr:
        """Return the position in its buffer of an element of a matrix in shared memory."""
        if placement.transposed:
            row, col = col, row
        within, first = col, self.stage(placement, iteration)
        if placement.panels:
            within = col = self.ix.mod(whole := col, PANEL)
            first = self.ix.add(first, self.ix.mul(self.ix.div(whole, PANEL), placement.rows * PANEL))
        if placement.mask:
            key = self.ix.mod(self.ix.div(row, 1 << placement.shift), placement.mask + 1)
            chunk = self.ix.xor(self.ix.div(col, 8), key)
            within = self.ix.add(self.ix.mul(chunk, 8), self.ix.mod(col, 8))
        return self.ix.add(first, self.ix.mul(row, placement.pitch), within)

    def stage(self, placement: SharedPlacement, iteration: IntExpr | None = None, unit: int = 1) -> IntExpr:
        """Return the offset of the current iteration's stage in its buffer, in units of ``unit`` elements."""
        step, size = self.iteration if iteration is None else iteration, placement.elements // unit
        return ZERO if placement.stages == 1 else self.ix.mul(self.ix.mod(step, placement.stages), size)

    def matrix_position(self, shape: Shape, coordinates: Sequence[IntExpr]) -> tuple[IntExpr, IntExpr]:
        """Return (row, col) of an element: the last dim is the column, all others form the row."""
        if not shape:
            return ZERO, ZERO
        strides = list(accumulate(reversed(shape[1:-1]), lambda a, b: a * b, initial=1))[::-1]
        return self.ix.ravel(coordinates[:-1], strides[: len(shape) - 1]), coordinates[-1]

    def coordinates(self, shape: Shape, row: IntExpr, col: IntExpr) -> tuple[IntExpr, ...]:
        """Return the coordinates of an element at (row, col); the inverse of ``matrix_position``."""
        return (*self.ix.unravel(row, shape[:-1]), col) if shape else ()

    # --- values

    def element(self, number: int, coordinates: Sequence[IntExpr]) -> Value:
        """Return one element of a tensor that is not in registers; inline tensors are computed here."""
        tensor = self.tensor(number)
        placement = tensor.placement
        if placement.shared is not None:
            row, col = self.matrix_position(tensor.shape, coordinates)
            return SharedRead(placement.shared.buffer, self.shared_index(placement.shared, row, col))
        if placement.device:
            return self.device_element(self.input_tile(number), coordinates)
        op = self.definitions[number]
        match op:
            case Elementwise():
                return apply_elementwise(op, [self.element(n, self.broadcast(n, coordinates)) for n in op.operands])
            case Repeat():
                return self.element(op.operand, self.broadcast(op.operand, coordinates))
            case _:
                raise AssertionError(f"tensor {number} cannot be read element by element")

    def broadcast(self, number: int, coordinates: Sequence[IntExpr]) -> tuple[IntExpr, ...]:
        """Return the coordinates in an operand that has extent 1 along some dims."""
        shape = self.tensor(number).shape
        return tuple(ZERO if extent == 1 else c for extent, c in zip(shape, coordinates, strict=True))


def _first_offset(place: StorageLocation) -> int:
    """Return the offset of the first element in memory of a strided tensor."""
    starts = place.starts or (0,) * len(place.strides)
    return place.offset + sum(start * stride for start, stride in zip(starts, place.strides, strict=True))


def apply_elementwise(op: Elementwise, values: list[Value]) -> Value:
    """Return the expression of an elementwise operator's result; a constant of the operator is its last operand."""
    if op.constant is not None:
        values = [*values, Real(op.constant)]
    match op.fn:
        case OpKind() | KernelFn():
            return Apply(op.fn, *values)
        case BinaryFn.SUB if op.finite:
            return Combine(op.fn, values[0], Combine(BinaryFn.MAX, values[1], Real(LOWEST)))
        case BinaryFn():
            return Combine(op.fn, *values)
        case MapFn.SELECT:
            return Where(*values)
        case MapFn.CONSTANT:
            return values[0]
        case _:
            assert_never(op.fn)


def combine(fn: BinaryFn, values: Sequence[Value]) -> Value:
    """Return the sum or maximum of at least one value, as a balanced tree to keep the latency low."""
    rest = list(values)
    while len(rest) > 1:
        pairs = [Combine(fn, a, b) for a, b in zip(rest[::2], rest[1::2], strict=False)]
        rest = [*pairs, *rest[2 * len(pairs) :]]
    return rest[0]


#: The lowest finite float32.
LOWEST = -3.4028234663852886e38


def neutral_element(cx: LoweringContext, op: Reduce | Accumulate | RunningMax) -> float:
    """Return the identity element of a sum or maximum, at which it begins."""
    if isinstance(op, RunningMax):
        return LOWEST
    if op.fn is BinaryFn.ADD or not cx.tensor(op.result).dtype.floating:
        return 0.0  # of masks the least is 0
    return -inf


def make_loop(variable: IntExpr, extent: int, body: Sequence[Stmt], *, unroll: bool = False) -> tuple[Stmt, ...]:
    """Return a loop, or its body if it has one iteration."""
    if not body:
        return ()
    if isinstance(variable, Int):
        return tuple(body)
    assert isinstance(variable, Var)
    return (For(variable.name, extent, tuple(body), unroll),)


def make_conditional(condition: IntExpr, body: Sequence[Stmt], *, uniform: bool = False) -> tuple[Stmt, ...]:
    """Return a conditional, or its body if the condition is known to hold."""
    if condition == ONE or not body:
        return tuple(body)
    return () if condition == ZERO else (If(condition, tuple(body), uniform),)

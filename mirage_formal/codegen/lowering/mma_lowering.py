"""Matrix products on tensor cores: operands from shared memory by ldmatrix, or from an earlier product's accumulators.

Float32 operands are floats in registers, in the order of accumulators. From shared memory, pairs along the inner dim
are read at once, or single floats where that dim lies across the rows.

A tile of the tensor cores has 16 rows of the left operand and 8 columns of the right one. A product of few rows is
computed transposed where that needs less padding, as C^T = B^T A^T: the right operand's columns are the 16, the left
one's rows the 8. No data is moved for it, as ldmatrix reads a matrix in shared memory in either direction.

A depth that is no whole number of steps is padded with zeros on both sides, so that positions beyond it add nothing,
not even 0 times infinity. In shared memory the writer of an operand stores these zeros; in registers they are added as
fragments are packed. An odd number of tiles of 8 in registers leaves the second half of a warp's last step empty; the
words of both operands are zeros there.

Warpgroups, where a schedule says so, read both operands in shared memory themselves (or the left one in registers), in
panels of 64 columns; nothing is padded for them.

Other adjacent products that share an operand, and have the same warps, are computed together step by step. So the
operand's fragments are read from shared memory once for all of them. Each product adds the same terms to its
accumulators, in the same order, as it would by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

from mirage_formal.codegen.lowering.context import TID, LoweringContext, make_loop
from mirage_formal.codegen.lowering.register_reductions import combine_across_threads
from mirage_formal.codegen.lowering.registers import array_name
from mirage_formal.codegen.program.integers import ONE, ZERO
from mirage_formal.codegen.program.plan import SharedPlacement
from mirage_formal.codegen.program.program import (
    PANEL,
    PANEL_UNIT,
    WARPGROUP_ROWS,
    BinaryFn,
    Int,
    IntExpr,
    LoadMatrix,
    Mma,
    Pack,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedRead,
    SharedVector,
    Stmt,
    Value,
    WarpgroupMma,
    WarpgroupWait,
)
from mirage_formal.codegen.program.register_layout import MMA, WARP, Fragment, fragment_tiles
from mirage_formal.codegen.program.step import MatrixMultiply, Multiplication, MultiplyAccumulate, OverlapProducts, Step
from mirage_formal.graph.types import DType

#: Steps along the inner dim that are unrolled at once.
_UNROLL = 4


class _ProductWriter:
    """One product: its operands, its warps, and the part of the result that a warp computes."""

    def __init__(self, cx: LoweringContext, step: Multiplication) -> None:
        op, warps = step.op, step.warps
        self.cx, self.op, self.warps = cx, op, warps
        self.a, self.b = cx.tensor(op.a), cx.tensor(op.b)
        self.high, self.wide = fragment_tiles(step.over)
        self.depth = self.a.shape[-1]
        self.steps = -(-self.depth // (MMA[2] * warps.inner))
        self.adds = isinstance(step, MultiplyAccumulate)
        self.into = array_name((step.into if isinstance(step, MultiplyAccumulate) else op).result)
        #: The operand from which tensor cores take 16 rows or columns at a time, and the one from which they take 8.
        self.operands = (op.b, op.a) if warps.transposed else (op.a, op.b)
        #: Whether operands are floats, and registers of a tile of the left one and of one of the right one.
        self.floats = self.a.dtype is DType.FLOAT32
        self.left, self.right = (8, 4) if self.floats else (4, 2)
        #: The arrays of its operands' fragments, which products that are computed together may have in common.
        self.words_a = self.words_b = ""
        self.lane = cx.ix.mod(TID, WARP)
        ix = cx.ix
        parts = self.part(1, warps.rows), self.part(warps.rows, warps.cols)
        tall, flat = reversed(parts) if warps.transposed else parts
        #: Where a warp's part begins along the rows of tiles, and along their columns.
        self.first_tall = ix.mul(tall, MMA[0] * self.high)
        self.first_flat = ix.mul(flat, MMA[1] * self.wide)
        fragments = self.a.placement.registers
        assert isinstance(fragments, Fragment) or not step.packed
        self.fragments = fragments if isinstance(fragments, Fragment) and step.packed else None
        #: Inner positions of one warp.
        self.deep = MMA[2] * self.steps if self.fragments is None else MMA[1] * fragment_tiles(self.fragments)[1]
        self.first_inner = ix.mul(self.part(warps.rows * warps.cols, warps.inner), self.deep)

    def part(self, below: int, count: int) -> IntExpr:
        return self.cx.ix.mod(self.cx.ix.div(TID, WARP * below), count)

    def load_left(self, k: IntExpr, *, half: bool = False) -> tuple[Stmt, ...]:
        """Load all left tiles of a step of 16 along the inner dim; with ``half`` only 8 positions count."""
        m = self.cx.iterator(self.high, "m")
        body = self._packed(m, k, half=half) if self.fragments is not None else self._load_left_tile(m, k)
        return make_loop(m, self.high, body, unroll=True)

    def multiply(self, tile: IntExpr, count: int) -> tuple[Stmt, ...]:
        cx = self.cx
        m = cx.iterator(self.high, "m")
        body: list[Stmt] = []
        for i in range(count):
            d = cx.ix.add(cx.ix.mul(m, 4 * self.wide), cx.ix.mul(tile, 4), Int(4 * i))
            a = cx.ix.mul(m, self.left)
            body.append(Mma(self.into, d, self.words_a, a, self.words_b, Int(self.right * i), self.a.dtype))
        return make_loop(m, self.high, body, unroll=True)

    def _inner(self, k: IntExpr) -> IntExpr:
        return self.cx.ix.add(self.first_inner, self.cx.ix.mul(k, MMA[2]))

    def _load_left_tile(self, m: IntExpr, k: IntExpr) -> tuple[Stmt, ...]:
        """Load a left tile of 16 rows and 16 inner positions; if transposed, columns of the right operand."""
        cx, ix, lane = self.cx, self.cx.ix, self.lane
        turned = self.warps.transposed
        placement = cx.tensor(self.operands[0]).placement.shared
        assert placement is not None
        base = ix.add(self.first_tall, ix.mul(m, MMA[0]))
        across = placement.transposed != turned
        if self.floats:
            out: list[Stmt] = []
            for number in range(0, self.left, 2):
                at, row = ix.add(ix.mul(m, self.left), Int(number)), ix.add(base, Int(8 * (number // 2 % 2)))
                inner = ix.add(self._inner(k), Int(8 * (number // 4)))
                out += self._floats(self.words_a, at, placement, row, inner, turned=turned)
            return tuple(out)
        if across:
            outer = ix.add(base, ix.mul(ix.mod(ix.div(lane, 8), 2), 8))
            inner = ix.add(self._inner(k), ix.mul(ix.div(lane, 16), 8), ix.mod(lane, 8))
            outer = ix.clamped(outer, placement.cols)
        else:
            outer = ix.clamped(ix.add(base, ix.mod(lane, 16)), placement.rows)
            inner = ix.add(self._inner(k), ix.mul(ix.div(lane, 16), 8))
        at = cx.shared_index(placement, *((inner, outer) if turned else (outer, inner)))
        return (LoadMatrix(self.words_a, ix.mul(m, 4), placement.buffer, at, 4, transposed=across),)

    def _packed(self, m: IntExpr, k: IntExpr, *, half: bool, at: IntExpr | None = None) -> tuple[Stmt, ...]:
        """Pack a left tile from an earlier product's accumulators, rounded, with zeros beyond the depth."""
        ix, array = self.cx.ix, array_name(self.op.a)
        at = ix.mul(m, 4) if at is None else at
        assert self.fragments is not None
        wide = fragment_tiles(self.fragments)[1]
        first = ix.add(ix.mul(m, 4 * wide), ix.mul(k, 8))
        out: list[Stmt] = []
        if self.floats:
            for i in range(self.left):
                inner = ix.add(self._inner(k), ix.mul(ix.mod(TID, 4), 2), Int(8 * (i // 4) + i % 2))
                inside = ZERO if half and i >= self.left // 2 else ix.less(inner, self.depth)
                number: Value = Reg(array, ix.add(first, Int(i))) if inside != ZERO else Real(0.0)
                number = number if inside in (ZERO, ONE) else Select(inside, number, Real(0.0))
                out.append(SetReg(self.words_a, ix.add(ix.mul(m, self.left), Int(i)), number))
            return tuple(out)
        for word, offset in enumerate((0, 2, 4, 6)):
            pair: list[Value] = [Real(0.0), Real(0.0)]
            if not (half and word >= 2):
                for i in range(2):
                    inner = ix.add(self._inner(k), ix.mul(ix.mod(TID, 4), 2), Int(8 * (word // 2) + i))
                    inside = ix.less(inner, self.depth)
                    held = Reg(array, ix.add(first, Int(offset + i)))
                    pair[i] = held if inside == ONE else Select(inside, held, Real(0.0))
            out.append(Pack(self.words_a, ix.add(at, Int(word)), pair[0], pair[1], self.a.dtype))
        return tuple(out)

    # --- warpgroups

    def by_warpgroups(self, into: str = "", *, deferred: bool = False) -> tuple[Stmt, ...]:
        """Multiply by warpgroups: all steps along the inner dim at once.

        Args:
            into: The registers of the result, by default its own.
            deferred: Whether the product is left incomplete.
        """
        cx, ix, warps = self.cx, self.cx.ix, self.warps
        depth, body = MMA[2] * self.steps, list[Stmt]()
        left_at: IntExpr = ZERO
        left, left_panel, left_across = self.cx.fresh("a"), 0, False
        if self.fragments is not None:
            self.words_a = left
            k = cx.iterator(self.steps, "k")
            body.append(Registers(left, 4 * self.steps, words=True))
            body += make_loop(k, self.steps, self._packed(ZERO, k, half=False, at=ix.mul(k, 4)), unroll=True)
        else:
            groups = (warps.cols if warps.transposed else warps.rows) // 4
            part = ix.mod(ix.div(TID, 4 * WARP), groups)
            left, left_at, left_panel, left_across = self._panels(0, ix.mul(part, WARPGROUP_ROWS // PANEL))
        flat = self.part(1, warps.rows) if warps.transposed else self.part(warps.rows, warps.cols)
        columns = MMA[1] * self.wide
        right, right_at, right_panel, right_across = self._panels(1, ix.mul(flat, max(1, columns // PANEL)))
        layouts = (left_panel, left_across, right_panel, right_across)
        at = (into or self.into, ZERO, left, left_at, right, right_at)
        product = WarpgroupMma(*at, columns, depth, self.a.dtype, *layouts, self.adds, deferred)
        return (*body, product)

    def _panels(self, role: int, outer: IntExpr) -> tuple[str, IntExpr, int, bool]:
        """Return an operand of warpgroups: its buffer, the position of a warpgroup's part, its panels, its direction.

        Args:
            role: 0 for the operand with the 64 rows, 1 for the other one.
            outer: Where the part begins along the operand's outer dim, in panels.
        """
        ix, warps = self.cx.ix, self.warps
        placement = self.cx.tensor(self.operands[role]).placement.shared
        assert placement is not None and placement.panels
        across = placement.transposed != (warps.transposed == (role == 0))
        panel = placement.rows * PANEL // PANEL_UNIT
        inner = self.part(warps.rows * warps.cols, warps.inner)
        depth = MMA[2] * self.steps
        stage = self.cx.stage(placement, unit=PANEL_UNIT)
        if across:
            return placement.buffer, ix.add(stage, ix.mul(outer, panel), ix.mul(inner, depth // 8)), panel, across
        along = ix.mul(inner, depth // PANEL * panel)
        return placement.buffer, ix.add(stage, ix.mul(outer, PANEL // 8), along), panel, across

    def load_right(self, tile: IntExpr, k: IntExpr, count: int, *, half: bool) -> tuple[Stmt, ...]:
        """Load 16 inner positions of one or two tiles of 8 columns of the right operand.

        If the product is transposed, the tiles are rows of the left operand.
        """
        cx, ix = self.cx, self.cx.ix
        turned = self.warps.transposed
        placement = cx.tensor(self.operands[1]).placement.shared
        assert placement is not None
        lane = ix.mod(TID, 16) if count == 1 else self.lane
        base = ix.add(self.first_flat, ix.mul(tile, MMA[1]))
        across = placement.transposed == turned
        zero = Real(0.0)
        if self.floats:
            out: list[Stmt] = []
            for number in range(0, self.right * count, 2):
                second = number // 2 % 2
                if half and second:
                    out += (SetReg(self.words_b, Int(number + e), zero) for e in range(2))
                    continue
                column, inner = ix.add(base, Int(8 * (number // self.right))), ix.add(self._inner(k), Int(8 * second))
                out += self._floats(self.words_b, Int(number), placement, column, inner, turned=not turned)
            return tuple(out)
        if across:
            outer = ix.clamped(ix.add(base, ix.mul(ix.div(lane, 16), 8)), placement.cols)
            inner = ix.add(self._inner(k), ix.mod(lane, 16))
        else:
            outer = ix.add(base, ix.mul(ix.div(lane, 16), 8), ix.mod(lane, 8))
            inner = ix.add(self._inner(k), ix.mul(ix.mod(ix.div(lane, 8), 2), 8))
            outer = ix.clamped(outer, placement.rows)
        at = cx.shared_index(placement, *((outer, inner) if turned else (inner, outer)))
        load = LoadMatrix(self.words_b, ZERO, placement.buffer, at, 2 * count, transposed=across)
        empty = [Pack(self.words_b, Int(word), zero, zero, self.b.dtype) for word in range(1, 2 * count, 2) if half]
        return (load, *empty)

    def _floats(
        self, array: str, at: IntExpr, placement: SharedPlacement, outer: IntExpr, inner: IntExpr, *, turned: bool
    ) -> tuple[Stmt, ...]:
        """Load two floats adjacent along the inner dim, for a lane's row of 8: as one vector if they are contiguous.

        Args:
            array: The register array that receives them.
            at: Position in it.
            placement: The matrix.
            outer: The first of the 8 rows along the outer dim.
            inner: The first of 8 positions along the inner dim.
            turned: Whether the tensor's rows are the inner dim.
        """
        ix = self.cx.ix
        across = placement.transposed != turned
        outer = ix.clamped(ix.add(outer, ix.div(self.lane, 4)), placement.cols if across else placement.rows)
        inner = ix.add(inner, ix.mul(ix.mod(TID, 4), 2))
        places = [ix.add(inner, Int(e)) for e in range(2)]
        found = [self.cx.shared_index(placement, *((place, outer) if turned else (outer, place))) for place in places]
        if not across:
            return (SharedVector(array, at, placement.buffer, found[0], 2),)
        reads = (SharedRead(placement.buffer, place) for place in found)
        return tuple(SetReg(array, ix.add(at, Int(e)), read) for e, read in enumerate(reads))


class _ProductGroup:
    """Products that are computed together, step by step along the inner dim; one or more."""

    def __init__(self, products: Sequence[_ProductWriter]) -> None:
        self.first = products[0]
        self.cx = self.first.cx
        #: The products of each left operand, and of each right one.
        self.lefts: dict[int, list[_ProductWriter]] = {}
        self.rights: dict[int, list[_ProductWriter]] = {}
        for product in products:
            left, right = product.operands
            self.lefts.setdefault(left, []).append(product)
            self.rights.setdefault(right, []).append(product)
            product.words_a = self.lefts[left][0].words_a or self.cx.fresh("a")
            product.words_b = self.rights[right][0].words_b or self.cx.fresh("b")

    def statements(self) -> tuple[Stmt, ...]:
        cx, first, steps = self.cx, self.first, self.first.steps
        body: list[Stmt] = []
        for product, *_ in self.lefts.values():
            body.append(Registers(product.words_a, product.left * product.high, words=not product.floats))
        for product, *_ in self.rights.values():
            body.append(Registers(product.words_b, 2 * product.right, words=not product.floats))
        if first.fragments is not None:
            return (*body, *self._all_packed())
        if steps <= 2 * _UNROLL:
            k = cx.iterator(steps, "k")
            return (*body, *make_loop(k, steps, self._step(k), unroll=True))
        inner = next(n for n in (_UNROLL, 3, 2, 1) if steps % n == 0)
        outer = cx.iterator(steps // inner, "k")
        k = cx.iterator(inner, "k")
        unrolled = make_loop(k, inner, self._step(cx.ix.add(cx.ix.mul(outer, inner), k)), unroll=True)
        return (*body, *make_loop(outer, steps // inner, unrolled))

    def _all_packed(self) -> tuple[Stmt, ...]:
        """Return all steps for a left operand in registers: those within the depth, the others, and a half step."""
        first = self.first
        whole, half = divmod(first.deep, MMA[2])
        within = (first.depth - (first.warps.inner - 1) * first.deep) // MMA[2]
        within = min(whole, max(0, within))
        out: list[Stmt] = []
        for begin, count in ((0, within), (within, whole - within)):
            if count:
                k = self.cx.iterator(count, "k")
                out += make_loop(k, count, self._step(self.cx.ix.add(k, Int(begin))), unroll=True)
        if half:
            out += self._step(Int(whole), half=True)
        return tuple(out)

    def _step(self, k: IntExpr, *, half: bool = False) -> tuple[Stmt, ...]:
        """Return one step of 16 along the inner dim; with ``half`` only 8 positions count."""
        cx = self.cx
        out = [one for product, *_ in self.lefts.values() for one in product.load_left(k, half=half)]
        for same in self.rights.values():
            wide = same[0].wide
            if pairs := wide // 2:
                n = cx.iterator(pairs, "n")
                out += make_loop(n, pairs, self._tiles(same, cx.ix.mul(n, 2), k, 2, half=half), unroll=True)
            if wide % 2:
                out += self._tiles(same, Int(wide - 1), k, 1, half=half)
        return tuple(out)

    @staticmethod
    def _tiles(
        same: Sequence[_ProductWriter], tile: IntExpr, k: IntExpr, count: int, *, half: bool
    ) -> tuple[Stmt, ...]:
        """Load one or two tiles of a right operand, and multiply all products that share it by them."""
        products = (one for product in same for one in product.multiply(tile, count))
        return (*same[0].load_right(tile, k, count, half=half), *products)


def group_products(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Yield the steps in order, each by itself except products that are computed together.

    Between such products lies no other step and no barrier of an exchange, and none reads the result of another.
    """
    held: list[Step] = []
    for step in steps:
        if held and not _can_join(held, step):
            yield tuple(held)
            held = []
        held.append(step)
    if held:
        yield tuple(held)


def _can_join(held: Sequence[Step], step: Step) -> bool:
    """Return whether a product shares an operand with the products held so far, and has the same warps."""
    own = [one for one in (*held, step) if isinstance(one, Multiplication) and not one.packed]
    if len(own) <= len(held) or any(one.warps != own[0].warps or one.warps.warpgroup for one in own):
        return False
    *others, last = own
    if any(isinstance(one, MatrixMultiply) and one.scratch for one in others):
        return False
    if {last.op.a, last.op.b} & {one.op.result for one in others}:
        return False
    return any(last.op.a == one.op.a or last.op.b == one.op.b for one in others)


def compute_products(cx: LoweringContext, steps: Sequence[Multiplication]) -> tuple[Stmt, ...]:
    """Return the statements of products that ``group_products`` has grouped; partial sums of warps stay partial."""
    clear: list[Stmt] = []
    for step in steps:
        if isinstance(step, MatrixMultiply) and not step.warps.warpgroup:
            k = cx.iterator(step.over.count, "u")
            clear += make_loop(k, step.over.count, (SetReg(array_name(step.op.result), k, Real(0.0)),), unroll=True)
    writers = [_ProductWriter(cx, step) for step in steps]
    if steps[0].warps.warpgroup:
        return (*clear, *(one for writer in writers for one in writer.by_warpgroups()))
    return (*clear, *_ProductGroup(writers).statements())


def next_array(number: int) -> str:
    """Return the name of the registers of a product's result of the next iteration."""
    return f"{array_name(number)}_next"


def begin_product(cx: LoweringContext, step: MatrixMultiply) -> tuple[Stmt, ...]:
    """Begin a product of the next iteration.

    In the last iteration it multiplies what is in the next stage, which nothing uses.
    """
    this, cx.iteration = cx.iteration, cx.ix.add(cx.iteration, ONE)
    out = _ProductWriter(cx, step).by_warpgroups(next_array(step.op.result), deferred=True)
    cx.iteration = this
    return out


def overlap_products(cx: LoweringContext, step: OverlapProducts, waits: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Multiply at the end of an iteration, and begin the next one's first product before that is complete.

    Args:
        cx: The context, at any iteration but the last one, behind which there is no product.
        step: The products.
        waits: The waits for tiles of the next iteration.
    """
    last, this = _ProductWriter(cx, step.last), cx.iteration
    out = last.by_warpgroups(deferred=True)
    cx.iteration = cx.ix.add(this, ONE)
    first = _ProductWriter(cx, step.first)
    out = (*out, *waits, *first.by_warpgroups(deferred=True))
    cx.iteration = this
    sizes = ((last.into, step.last.over.count), (first.into, step.first.over.count))
    return (*out, *(WarpgroupWait(array, ZERO, 2 * count) for array, count in sizes))


def end_product(cx: LoweringContext, step: MatrixMultiply) -> tuple[Stmt, ...]:
    """Wait for a product that was begun, and make its result that of the iteration that follows.

    In a loop of pairs of iterations nothing is copied for that: ``exchange_products`` exchanges the two arrays.
    """
    count, array, found = step.over.count, array_name(step.op.result), next_array(step.op.result)
    wait = WarpgroupWait(found, ZERO, 2 * count)
    if cx.paired:
        return (wait,)
    u = cx.iterator(count, "u")
    return (wait, *make_loop(u, count, (SetReg(array, u, Reg(found, u)),), unroll=True))


def exchange_products(statement: Stmt, numbers: Iterable[int]) -> Stmt:
    """Return a statement of the second iteration of a pair: products' results and the next ones change places."""
    pairs = [(array_name(number), next_array(number)) for number in numbers]
    found = _with_names(statement, dict(pairs) | {after: this for this, after in pairs})
    assert isinstance(found, Stmt)
    return found


def _with_names(found: object, names: Mapping[str, str]) -> object:
    """Return a statement or expression with other names of arrays."""
    if isinstance(found, str):
        return names.get(found, found)
    if isinstance(found, tuple):
        return tuple(_with_names(one, names) for one in found)
    if not is_dataclass(found) or isinstance(found, type):
        return found
    own = {field.name: getattr(found, field.name) for field in fields(found)}
    new = {name: _with_names(value, names) for name, value in own.items()}
    return found if new == own else replace(found, **new)


def exchange_partial_sums(cx: LoweringContext, step: MatrixMultiply) -> tuple[Stmt, ...]:
    """Return the statements that add up the partial sums of warps."""
    return combine_across_threads(
        cx, BinaryFn.ADD, array_name(step.op.result), step.over.count, step.digits, step.scratch
    )

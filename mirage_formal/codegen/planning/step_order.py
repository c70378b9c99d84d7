"""The steps of a kernel: their order, shared-memory accesses, copies and waits, and the live ranges of buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeGuard

from mirage_formal.codegen.planning.barriers import Item, SharedAccess, advance_item, depth_order, iteration_item
from mirage_formal.codegen.planning.expand import FlatGraph
from mirage_formal.codegen.planning.memory import BufferRequest
from mirage_formal.codegen.planning.placement import Placements
from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Elementwise,
    FlatOp,
    LoopConcat,
    Product,
    RunningMax,
    defined_tensors,
    operands_of,
)
from mirage_formal.codegen.program.plan import Phase, register_axes
from mirage_formal.codegen.program.program import Barrier, Commit, WaitGroups
from mirage_formal.codegen.program.register_layout import Distribution, ThreadDigit, lanes_per_slot, split_by_warp
from mirage_formal.codegen.program.step import (
    Accumulation,
    AwaitTile,
    BeginProduct,
    BlockReduce,
    Computation,
    EndProduct,
    Fetch,
    GenericOperation,
    Initialize,
    Load,
    Map,
    MatrixMultiply,
    MultiplyAccumulate,
    Operation,
    OverlapProducts,
    Prefetch,
    Reduction,
    ReleaseTile,
    Rescale,
    RunningMaximum,
    Step,
    StoreResult,
)
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

#: The first steps of an iteration with pipelined tiles: a wait, a barrier, and the copies of a later one.
_HEAD: Final = 3
_OTHER_SCHEDULE: Final = "take a schedule that was made for this kernel"


class KernelSteps:
    """The steps of a kernel with their shared-memory accesses, and the buffers with their live ranges.

    Args:
        flat: The flattened block graph.
        placements: The placements of its tensors.
        stages: Copies of each pipelined tile.
        idles: Whether some block skips all its iterations, and the waits in them.
    """

    def __init__(self, flat: FlatGraph, placements: Placements, stages: int, *, idles: bool = False) -> None:
        self.flat, self.placements, self.stages, self.idles = flat, placements, stages, idles
        self.tensors = list(placements.tensors)
        self.makers = {n: op for op in flat.ops for n in defined_tensors(op)}
        self.buffers: dict[str, tuple[DType, int]] = {}
        moving = [n for n, chunks in placements.copied.items() if chunks and flat.tensors[n].phase is Phase.LOOP]
        self.ring = tuple(sorted(moving)) if stages > 1 else ()
        self.producer = placements.schedule.producer
        #: Whether every iteration has its own stage, so that all copies start before the loop.
        self.resident = stages == flat.iterations
        self.before: list[Item] = []
        self.loop: list[Item] = []
        self.after: list[Item] = []
        self._placements()
        self._build()
        self.requests = self.lives(loose=False)

    def _placements(self) -> None:
        for n, dtype in self.placements.shared_dtype.items():
            placement = self.tensors[n].placement.shared
            assert placement is not None
            placement = replace(placement, stages=self.stages if n in self.ring else 1)
            self.tensors[n] = self.tensors[n].at(replace(self.tensors[n].placement, shared=placement))
            self.buffers[placement.buffer] = (dtype, placement.elements * placement.stages)

    # --- accesses

    def _read(
        self, number: int, result: int, over: Distribution | None, op: FlatOp | None = None
    ) -> list[SharedAccess]:
        """Return the shared-memory accesses of a step that reads a tensor and computes over the shape of a result.

        Args:
            number: The tensor.
            result: A tensor of the shape of the computation.
            over: The distribution of the computation; None if it is not in registers.
            op: The operator that is computed in the generic way, if there is one.
        """
        tensor = self.tensors[number]
        held = tensor.placement.registers is not None
        if held and over is not None and register_axes(tensor, self.tensors[result], over) is not None:
            return []
        if tensor.placement.shared is not None:
            owner = tensor.shape if op is not None and self._flat_owner(op, number) else None
            return [SharedAccess(tensor.placement.shared.buffer, write=False, owner=owner)]
        if tensor.placement.inline and number in self.makers:
            return [a for n in operands_of(self.makers[number]) for a in self._read(n, result, over, op)]
        return []

    def _flat_owner(self, op: FlatOp, number: int) -> bool:
        """Return whether the generic way reads a tensor only where the same thread writes the result."""
        if not isinstance(op, Elementwise | Accumulate | RunningMax):
            return False
        if isinstance(op, Accumulate) and op.dim is not None and number == op.operand:
            return False
        through = self._transitive_operands(op)
        if any(self.tensors[n].placement.inline and isinstance(self.makers.get(n), Product) for n in through):
            return False  # an element of a product is of whole rows and columns, of square matrices as well
        same = self.tensors[number].shape == self.tensors[defined_tensors(op)[0]].shape
        return same and all(self.tensors[n].shape == self.tensors[number].shape for n in through)

    def _transitive_operands(self, op: FlatOp) -> list[int]:
        """Return the operands of an operator, and those of the inline operators that compute them."""
        out: list[int] = []
        for n in operands_of(op):
            out.append(n)
            if self.tensors[n].placement.inline and n in self.makers:
                out += self._transitive_operands(self.makers[n])
        return out

    def _write(self, number: int, owner: object = None) -> list[SharedAccess]:
        placement = self.tensors[number].placement.shared
        return [] if placement is None else [SharedAccess(placement.buffer, write=True, owner=owner)]

    def _step_with_accesses(self, step: Computation) -> Item:
        """Return the step of an operator with its accesses."""
        read = self._operands(step)
        match step:
            case Accumulation() | MultiplyAccumulate() | Rescale():
                return Item(step, (tuple(read),))
            case GenericOperation() | Initialize():
                return Item(step, ((*read, *self._owned(step.op)),))
            case _:
                wrote = [a for result in defined_tensors(step.op) for a in self._write(result)]
        if isinstance(step, Map | RunningMaximum) or not step.scratch:
            return Item(step, ((*read, *wrote),))
        write, back = (SharedAccess(step.scratch, write=write) for write in (True, False))
        return Item(step, ((*read, write), (back, *wrote)))

    def _owned(self, op: FlatOp) -> list[SharedAccess]:
        """Return the generic way's accesses to results in shared memory; loop-carried results are read too."""
        out: list[SharedAccess] = []
        for result in defined_tensors(op):
            tensor = self.tensors[result]
            if tensor.placement.registers is None:
                own = isinstance(op, Elementwise | Accumulate | RunningMax)
                wrote = self._write(result, tensor.shape if own else None)
                out += wrote
                if isinstance(op, Accumulate | RunningMax):
                    out += [replace(access, write=False) for access in wrote]
        return out

    def _operands(self, step: Computation) -> list[SharedAccess]:
        """Return the accesses to shared memory by which a step reads its operands."""
        match step:
            case GenericOperation(op):
                return [a for n in operands_of(op) for a in self._read(n, defined_tensors(op)[0], None, op)]
            case Map(op, over):
                return [a for n in operands_of(op) for a in self._read(n, op.result, over)]
            case Reduction(op, over):
                return self._read(op.operand, op.operand, over)
            case RunningMaximum(op, over):
                return self._read(op.operand, op.largest, over)
            case Accumulation(op, over):
                return [*self._factor(op), *self._read(op.operand, op.operand, over)]
            case Rescale(op):
                return self._factor(op)
            case MatrixMultiply() | MultiplyAccumulate():
                return [
                    a for n in ((step.op.b,) if step.packed else (step.op.a, step.op.b)) for a in self._shared_read(n)
                ]
            case Initialize() | BlockReduce():
                return []

    def _factor(self, op: Accumulate) -> list[SharedAccess]:
        over = self.tensors[op.result].placement.registers
        return [] if op.factor is None else self._read(op.factor, op.result, over)

    def _shared_read(self, number: int) -> list[SharedAccess]:
        placement = self.tensors[number].placement.shared
        assert placement is not None
        return [SharedAccess(placement.buffer, write=False)]

    # --- steps

    def _place(self, phase: Phase) -> list[Item]:
        return {Phase.BEFORE: self.before, Phase.LOOP: self.loop, Phase.AFTER: self.after}[phase]

    def _build(self) -> None:
        self._copies()
        for number in self.placements.brought:
            item = Item(Load(number), (tuple(self._write(number)),))
            self._place(self.tensors[number].phase).append(item)
        for op in depth_order(self.flat.ops):
            self._operator(op)
        for saver, number in enumerate(self.flat.outputs):
            over = self.tensors[number].placement.registers
            found = [] if over is not None else self._read(number, number, None)
            phase = Phase.AFTER if self.flat.iterations > 1 else Phase.BEFORE
            self._place(phase).append(Item(StoreResult(saver), (tuple(found),)))
        if self.placements.schedule.ahead and not self.producer:
            self._begin_ahead()
        self._add_waits()
        if self.producer:
            self._consume_tiles()

    def _copies(self) -> None:
        """Add the copies of inputs: loop-invariant ones before the loop, then the first pipeline stages."""
        fixed = [n for n, chunks in self.placements.copied.items() if chunks and self.tensors[n].phase is Phase.BEFORE]
        for n in fixed:
            self.before.append(Item(Fetch(n, asynchronous=True), (tuple(self._write(n)),)))
        if fixed:
            self.before.append(Item(Commit()))
        if self.ring and not self.producer:
            accesses = tuple(a for n in self.ring for a in self._write(n))
            count = self.stages if self.resident else self.stages - 1
            self.before += [Item(Prefetch(i), (accesses if i == 0 else (),)) for i in range(count)]
            # An empty group a round keeps the count of groups in flight even where nothing is left to copy.
            following = Item(Commit() if self.resident else Prefetch())
            self.loop += [Item(WaitGroups(count - 1)), Item(Barrier()), following]
        for n, chunks in self.placements.copied.items():
            moving = self.tensors[n].phase is Phase.LOOP
            if n in self.ring or (chunks and not moving):
                continue
            fetch = Fetch(n, asynchronous=chunks)
            self._place(self.tensors[n].phase).append(Item(fetch, (tuple(self._write(n)),)))
        if not self.ring and any(isinstance(i.step, Fetch) and i.step.asynchronous for i in self.loop):
            self.loop += [Item(Commit()), Item(WaitGroups(0)), Item(Barrier())]

    # --- tiles of a producer

    def _consume_tiles(self) -> None:
        """Add the waits for the tiles that a producer copies, and their releases.

        Raises:
            UnsupportedError: There are no pipelined tiles, other tiles are copied in each iteration, its steps exchange
                values through shared memory, for which threads must meet, or its products cannot overlap as asked.
        """
        others = [n for n in self.placements.copied if self.tensors[n].phase is Phase.LOOP and n not in self.ring]
        written = any(access.write for item in self.loop for part in item.parts for access in part)
        uses = {n: [at for at, _ in self._readers_in_loop(n)] for n in self.ring}
        if not self.ring or others or written or not all(uses.values()):
            what = "expected pipelined tiles, and no exchange through shared memory in an iteration"
            raise UnsupportedError(what, where="schedule", hint=_OTHER_SCHEDULE)
        self.before.append(Item(Barrier()))  # what is in shared memory for all iterations is there
        if self.placements.schedule.ahead:
            self._overlap_products(uses)
        else:
            self.loop = self._take_tiles(self.loop, 0, uses)

    def _take_tiles(self, items: Sequence[Item], start: int, uses: Mapping[int, Sequence[int]]) -> list[Item]:
        """Return steps with the wait for each tile ahead of its first reader, and its release behind its last one.

        Args:
            items: Steps of an iteration.
            start: The position of the first of them in the iteration.
            uses: For each pipelined tensor the positions of its readers.
        """
        found: list[Item] = []
        for at, item in enumerate(items, start):
            found += [Item(AwaitTile(n)) for n in self.ring if uses[n][0] == at]
            found.append(item)
            found += [Item(ReleaseTile(n)) for n in self.ring if uses[n][-1] == at]
        return found

    def _overlap_products(self, uses: Mapping[int, Sequence[int]]) -> None:
        """Begin the first product of an iteration beside the last one of the iteration before.

        Args:
            uses: For each pipelined tensor the positions of its readers.

        Raises:
            UnsupportedError: These are not computed by warpgroups from tiles and registers.
        """
        begin, others, end = self.loop[0], self.loop[1:-1], self.loop[-1]
        first, last = begin.step, end.step
        if not (isinstance(last, MultiplyAccumulate) and last.warps.warpgroup and self._is_product_of_tiles(first)):
            what = "expected a product of tiles at the beginning of an iteration and one at its end, by warpgroups"
            raise UnsupportedError(what, where="schedule", hint=_OTHER_SCHEDULE)
        self.before += self._take_tiles([begin], 0, uses)
        both = OverlapProducts(last, first, tuple(n for n in self.ring if uses[n][0] == 0))
        item = Item(both, ((*end.parts[0], *begin.parts[0]),))
        later = [Item(ReleaseTile(n, 1)) for n in self.ring if uses[n][-1] == 0]
        self.loop = [*self._take_tiles([*others, item], 1, uses), *later]

    # --- steps of later iterations

    def _begin_ahead(self) -> None:
        """Begin the first product of an iteration in the one before, and that of the first one before the loop.

        Steps that need nothing but tiles of their iteration, and whose results others read in shared memory, are
        computed one iteration before the steps that read them. So a norm of a tile that the product reads is two
        iterations ahead, and the barrier that begins an iteration is the only one that it needs.

        Raises:
            UnsupportedError: The product is not computed by warpgroups from tiles that have arrived, there are too few
                stages, or other steps of an iteration exchange values through shared memory, which needs barriers.
        """
        place = next((i for i, item in enumerate(self.loop) if isinstance(item.step, MatrixMultiply)), 0)
        product = self.loop[place].step if self.loop else None
        leads = self._leads(product) if isinstance(product, MatrixMultiply) else {}
        ahead = {at: self.loop[at] for at in sorted(leads) if at != place}
        late = [item for at, item in enumerate(self.loop) if at not in leads]
        most = max(leads.values(), default=0)
        if (
            not self._is_product_of_tiles(product)
            or not self.ring
            or self.stages < most + 2
            or any(access.write for item in late for part in item.parts for access in part)
        ):
            what = "expected a first product of tiles by warpgroups, enough stages, and no exchange beside it"
            raise UnsupportedError(what, where="schedule", hint=_OTHER_SCHEDULE)
        item, left = self.loop[place], self.stages if self.resident else self.stages - 1
        self.before += [Item(WaitGroups(left - most)), Item(Barrier())]
        for start in range(-most, 0):
            rounds = ((one, start + leads[at]) for at, one in ahead.items())
            self.before += [iteration_item(one, number) for one, number in rounds if number >= 0]
        self.before.append(item)
        buffers = {self._stage_results(one.step, leads[at], leads) for at, one in ahead.items()}
        early = [advance_item(one, leads[at], buffers) for at, one in ahead.items()]
        begin = Item(BeginProduct(product), item.parts)
        # No barrier may stand between the beginning of the product and its end.
        alone = all(len(one.parts) == 1 for one in early)
        self.loop = [
            Item(WaitGroups(left - 1 - most)),
            *late[1:_HEAD],
            *([begin, *early] if alone else [*early, begin]),
            *late[_HEAD:],
            Item(EndProduct(product)),
        ]

    def _is_product_of_tiles(self, step: Step | None) -> TypeGuard[MatrixMultiply]:
        """Return whether warpgroups multiply tiles that have arrived, with a result in registers."""
        return (
            isinstance(step, MatrixMultiply)
            and step.warps.warpgroup
            and not step.packed
            and not step.scratch
            and self.tensors[step.op.result].placement.shared is None
            and all(map(self._has_arrived, (step.op.a, step.op.b)))
        )

    def _leads(self, product: MatrixMultiply) -> dict[int, int]:
        """Return the positions of the steps that are computed ahead of their iteration, and by how many iterations.

        Raises:
            UnsupportedError: Registers are read in several iterations.
        """
        leads: dict[int, int] = {}
        for at in reversed(range(len(self.loop))):
            step = self.loop[at].step
            if step == product:
                leads[at] = 1
            elif isinstance(step, Map | Reduction) and self._has_arrived(step.op.result):
                readers = self._readers_in_loop(step.op.result)
                lead = max((leads.get(one, 0) + shared for one, shared in readers), default=0)
                if lead:
                    leads[at] = lead
                if any(leads.get(one, 0) != lead for one, shared in readers if not shared):
                    what = "expected results in registers that one iteration reads"
                    raise UnsupportedError(what, where="schedule", hint=_OTHER_SCHEDULE)
        return leads

    def _readers_in_loop(self, number: int) -> list[tuple[int, bool]]:
        """Return the positions of steps of an iteration that read a tensor, and whether they do in shared memory."""
        placement = self.tensors[number].placement.shared
        buffer = "" if placement is None else placement.buffer
        return [
            (at, any(access.buffer == buffer and not access.write for part in item.parts for access in part))
            for at, item in enumerate(self.loop)
            if isinstance(item.step, Computation) and number in self._read_by(item.step)
        ]

    def _read_by(self, step: Computation) -> list[int]:
        """Return the tensors that a step of an iteration reads, and those that inline operators read for it."""
        if isinstance(step, Rescale):
            return [] if step.op.factor is None else [step.op.factor]
        return self._transitive_operands(step.op)

    def _has_arrived(self, number: int) -> bool:
        """Return whether a tensor needs nothing but tiles that are copied ahead of the loop, and what is before it."""
        tensor = self.tensors[number]
        if tensor.phase is not Phase.LOOP or number in self.ring:
            return True
        op = self.makers.get(number)
        known = tensor.placement.inline or isinstance(self.placements.computes.get(number), Map | Reduction)
        return op is not None and known and all(map(self._has_arrived, operands_of(op)))

    def _stage_results(self, step: Step, lead: int, leads: Mapping[int, int]) -> str:
        """Give a result a copy for each iteration up to the last that reads it; return its buffer, or an empty name."""
        assert isinstance(step, Map | Reduction)
        number = step.op.result
        tensor, placement = self.tensors[number], self.tensors[number].placement.shared
        if placement is None:
            return ""
        last = min(leads.get(at, 0) for at, shared in self._readers_in_loop(number) if shared)
        placement = replace(placement, stages=lead - last + 1)
        self.tensors[number] = tensor.at(replace(tensor.placement, shared=placement))
        self.buffers[placement.buffer] = (self.buffers[placement.buffer][0], placement.elements * placement.stages)
        return placement.buffer

    def _add_waits(self) -> None:
        """Add waits for loop-invariant tiles: before their first reader, or at the latest before the loop."""
        fixed = {
            a.buffer
            for item in self.before
            if isinstance(item.step, Fetch) and item.step.asynchronous
            for part in item.parts
            for a in part
        }
        if not fixed:
            return
        left = (self.stages if self.resident else self.stages - 1) if self.ring and not self.producer else 0
        for position, item in enumerate(self.before):
            if any(not a.write and a.buffer in fixed for part in item.parts for a in part):
                if any(isinstance(one.step, WaitGroups) and one.step.left <= left for one in self.before[:position]):
                    return
                self.before[position:position] = [Item(WaitGroups(left)), Item(Barrier())]
                return
        if (self.idles or not self.ring or self.producer) and self.flat.iterations > 1:
            self.before += [Item(WaitGroups(left)), *([] if self.producer else [Item(Barrier())])]

    def _operator(self, op: FlatOp) -> None:
        step = self.placements.computes.get(defined_tensors(op)[0])
        if isinstance(op, Accumulate | LoopConcat | RunningMax):
            if step is not None:
                self._carried(op, step)
            return
        if step is None or isinstance(step, MultiplyAccumulate):
            return  # that one follows what its accumulator needs
        if isinstance(step, Reduction | MatrixMultiply):
            step = replace(step, scratch=self._scratch(op.result, step.digits))
        self._place(self.tensors[op.result].phase).append(self._step_with_accesses(step))

    def _carried(self, op: Accumulate | LoopConcat | RunningMax, step: Operation) -> None:
        """Add the steps of a loop-carried tensor."""
        if not isinstance(op, LoopConcat):
            self.before.append(self._step_with_accesses(Initialize(op)))
        if isinstance(op, Accumulate) and op.factor is not None and isinstance(step, MultiplyAccumulate):
            self.loop.append(self._step_with_accesses(Rescale(op)))
        self.loop.append(self._step_with_accesses(step))
        if isinstance(op, Accumulate) and isinstance(step, Accumulation | MultiplyAccumulate):
            scratch = self._scratch(op.result, step.digits)
            self.after.append(self._step_with_accesses(BlockReduce(op, step.digits, scratch)))

    def _scratch(self, number: int, digits: Sequence[ThreadDigit]) -> str:
        """Return the buffer through which warps exchange partial results; an empty name if they exchange none."""
        if not split_by_warp(digits)[1]:
            return ""
        found = self.tensors[number].placement.registers
        assert found is not None
        self.buffers[f"x{number}"] = (DType.FLOAT32, found.count * self.placements.threads // lanes_per_slot(digits))
        return f"x{number}"

    # --- lives

    def lives(self, *, loose: bool) -> tuple[BufferRequest, ...]:
        """Return the live range of every buffer, in step numbers; loop-carried buffers are live in the whole loop.

        With ``loose``, a buffer is live in the whole of each phase that uses it.
        """
        start = len(self.before)
        end = start + len(self.loop)
        # The producer fills these while others still prepare, and its order with them is that of the tiles alone.
        whole = {a.buffer for n in self.ring for a in self._write(n)} if self.producer else frozenset()
        uses: dict[str, list[tuple[int, bool]]] = {}
        for position, item in enumerate((*self.before, *self.loop, *self.after)):
            for part in item.parts:
                for access in part:
                    uses.setdefault(access.buffer, []).append((position, access.write))
        out = []
        for name, found in sorted(uses.items()):
            first, last = min(p for p, _ in found), max(p for p, _ in found)
            inside = [p for p, _ in found if start <= p < end]
            local = inside and first >= start and last < end
            written_first = all(write for p, write in found if p == first)
            if inside and not (local and written_first):
                first, last = min(first, start), max(last, end - 1)
            if loose:
                edges = ((0, start - 1), (start, end - 1), (end, end + len(self.after)))
                first = next(low for low, high in edges if low <= first <= high)
                last = next(high for low, high in edges if low <= last <= high)
            if name in whole:
                first, last = 0, end + len(self.after)
            dtype, elements = self.buffers[name]
            out.append(BufferRequest(name, elements * dtype.bytes, first, last))
        self.buffers = {name: item for name, item in self.buffers.items() if name in uses}
        return tuple(out)

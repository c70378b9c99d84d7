"""The steps of a kernel: order, accesses to shared memory, copies and waits, and the lives of buffers."""

from __future__ import annotations

from dataclasses import replace

from mirage_formal.graph.types import DType
from mirage_formal.kernels.planning.barriers import Access, Item, depth_order
from mirage_formal.kernels.planning.expand import Flat
from mirage_formal.kernels.planning.memory import Request
from mirage_formal.kernels.planning.placement import Placements
from mirage_formal.kernels.program.distribution import by_warp, reads
from mirage_formal.kernels.program.flat import (
    Accumulate,
    Elementwise,
    FlatOp,
    LoopConcat,
    Product,
    Repeat,
    Running,
    operands_of,
    results_of,
)
from mirage_formal.kernels.program.plan import Compute, Fetch, Load, Part, Phase, Prefetch, Save
from mirage_formal.kernels.program.program import Barrier, Commit, WaitGroups


class Steps:
    """The steps of a kernel with their accesses, and the buffers with their lives."""

    def __init__(self, flat: Flat, placements: Placements, stages: int) -> None:
        self.flat, self.placements, self.stages = flat, placements, stages
        self.tensors = list(placements.tensors)
        self.makers = {n: op for op in flat.ops for n in results_of(op)}
        self.buffers: dict[str, tuple[DType, int]] = {}
        moving = [n for n, chunks in placements.copied.items() if chunks and flat.tensors[n].phase is Phase.LOOP]
        self.ring = tuple(sorted(moving)) if stages > 1 else ()
        #: Every iteration has its own copy of the tiles, so all of them are on their way before the loop.
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

    def _read(self, number: int, result: int, compute: Compute | None) -> list[Access]:
        """Accesses of a step that reads a tensor and computes over the shape of a result."""
        tensor = self.tensors[number]
        over = compute.over if compute is not None and tensor.placement.registers is not None else None
        if over is not None and reads(tensor, self.tensors[result], over) is not None:
            return []
        if tensor.placement.shared is not None:
            owner = None
            if compute is not None and compute.over is None and self._flat_owner(compute.op, number):
                owner = tensor.shape
            return [Access(tensor.placement.shared.buffer, write=False, owner=owner)]
        if tensor.placement.inline and number in self.makers:
            maker = self.makers[number]
            return [a for n in operands_of(maker) for a in self._read(n, result, compute)]
        return []

    def _flat_owner(self, op: FlatOp, number: int) -> bool:
        """Whether the generic way reads a tensor only where the same thread writes the result."""
        if not isinstance(op, Elementwise | Accumulate | Running):
            return False
        if isinstance(op, Accumulate) and op.dim is not None and number == op.operand:
            return False
        same = self.tensors[number].shape == self.tensors[results_of(op)[0]].shape
        return same and all(self.tensors[n].shape == self.tensors[number].shape for n in self._through(op))

    def _through(self, op: FlatOp) -> list[int]:
        """Operands, those of inline operators included."""
        out: list[int] = []
        for n in operands_of(op):
            out.append(n)
            if self.tensors[n].placement.inline and n in self.makers:
                out += self._through(self.makers[n])
        return out

    def _write(self, number: int, owner: object = None) -> list[Access]:
        placement = self.tensors[number].placement.shared
        return [] if placement is None else [Access(placement.buffer, write=True, owner=owner)]

    def _item(self, compute: Compute) -> Item:
        """A step of an operator with its accesses."""
        op = compute.op
        first: list[Access] = []
        if compute.part is not Part.BEGIN and compute.part is not Part.FINISH:
            first += self._operands(compute)
        parts = [first]
        if compute.scratch:
            first.append(Access(compute.scratch, write=True))
            parts.append([Access(compute.scratch, write=False)])
        generic = compute.over is None
        for result in results_of(op):
            owner = (
                self.tensors[result].shape if generic and isinstance(op, Elementwise | Accumulate | Running) else None
            )
            done = generic or compute.part in (Part.ALL, Part.FINISH)
            if isinstance(op, Running):
                done = generic or compute.part is Part.UPDATE
            if isinstance(op, Product) and compute.into is not None:
                done = False
            if done:
                parts[-1] += self._write(result, owner)
            if generic and isinstance(op, Accumulate | Running):
                parts[-1] += [Access(a.buffer, write=False, owner=owner) for a in self._write(result, owner)]
        return Item(compute, tuple(tuple(part) for part in parts))

    def _computed(self, op: FlatOp) -> int:
        """A tensor of the shape that an operator in registers runs over."""
        if isinstance(op, Elementwise | Repeat | Running | Product):
            return results_of(op)[0]
        return operands_of(op)[0]

    def _operands(self, compute: Compute) -> list[Access]:
        op, out = compute.op, []
        over = self._computed(op)
        if isinstance(op, Product) and compute.over is not None:
            if not compute.packed:
                out += self._forced(op.a)
            return [*out, *self._forced(op.b)]
        if isinstance(op, Accumulate) and compute.over is not None:
            if op.factor is not None:
                target = self.tensors[op.result].placement.registers
                out += self._read(op.factor, op.result, replace(compute, over=target))
            return out if compute.warps is not None else [*out, *self._read(op.operand, over, compute)]
        for n in operands_of(op):
            out += self._read(n, over, compute)
        return out

    def _forced(self, number: int) -> list[Access]:
        placement = self.tensors[number].placement.shared
        assert placement is not None
        return [Access(placement.buffer, write=False)]

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
            self._place(phase).append(Item(Save(saver), (tuple(found),)))
        self._arrivals()

    def _copies(self) -> None:
        """Copies of inputs: fixed ones before the loop, then the first stages of the ring."""
        fixed = [n for n, chunks in self.placements.copied.items() if chunks and self.tensors[n].phase is Phase.BEFORE]
        for n in fixed:
            self.before.append(Item(Fetch(n, asynchronous=True), (tuple(self._write(n)),)))
        if fixed:
            self.before.append(Item(Commit()))
        if self.ring:
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

    def _arrivals(self) -> None:
        """Waits for fixed tiles: before the first step that reads one, or at the latest before the loop does."""
        fixed = {
            a.buffer
            for item in self.before
            if isinstance(item.step, Fetch) and item.step.asynchronous
            for part in item.parts
            for a in part
        }
        if not fixed:
            return
        left = (self.stages if self.resident else self.stages - 1) if self.ring else 0
        for position, item in enumerate(self.before):
            if any(not a.write and a.buffer in fixed for part in item.parts for a in part):
                self.before[position:position] = [Item(WaitGroups(left)), Item(Barrier())]
                return
        if not self.ring and self.flat.iterations > 1:
            self.before += [Item(WaitGroups(0)), Item(Barrier())]

    def _operator(self, op: FlatOp) -> None:
        compute = self.placements.computes.get(results_of(op)[0])
        if compute is None:
            return
        compute = replace(compute, scratch="")
        if isinstance(op, Accumulate | LoopConcat | Running):
            self._accumulator(op, compute)
            return
        if isinstance(op, Product) and compute.into is not None:
            return  # it follows its accumulator's update
        if (size := self._scratch(op)) > 0:
            compute = replace(compute, scratch=self._new_scratch(op, size))
        self._place(self.tensors[op.result].phase).append(self._item(compute))

    def _accumulator(self, op: FlatOp, compute: Compute) -> None:
        if isinstance(op, Accumulate | Running):
            self.before.append(self._item(replace(compute, part=Part.BEGIN)))
        if compute.warps is None or (isinstance(op, Accumulate) and op.factor is not None):
            self.loop.append(self._item(replace(compute, part=Part.UPDATE)))
        if compute.warps is not None:
            assert isinstance(op, Accumulate)
            self.loop.append(self._item(self.placements.computes[op.operand]))
        if isinstance(op, Accumulate) and compute.over is not None:
            size = self._scratch(op)
            name = self._new_scratch(op, size) if size else ""
            self.after.append(self._item(replace(compute, part=Part.FINISH, scratch=name)))

    def _scratch(self, op: FlatOp) -> int:
        """Floats that warps exchange."""
        digits = self.placements.digits.get(results_of(op)[0], ())
        if not by_warp(digits)[1]:
            return 0
        found = self.tensors[results_of(op)[0]].placement.registers
        assert found is not None
        return found.count * self.placements.threads

    def _new_scratch(self, op: FlatOp, size: int) -> str:
        name = f"x{results_of(op)[0]}"
        self.buffers[name] = (DType.FLOAT32, size)
        return name

    # --- lives

    def lives(self, *, loose: bool) -> tuple[Request, ...]:
        """When every buffer is live, in numbers of steps; what the loop carries around is live in all of it.

        Loosely, a buffer is live in the whole of each phase that uses it.
        """
        start = len(self.before)
        end = start + len(self.loop)
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
            dtype, elements = self.buffers[name]
            out.append(Request(name, elements * dtype.bytes, first, last))
        self.buffers = {name: item for name, item in self.buffers.items() if name in uses}
        return tuple(out)

"""Explanation of one kernel in sentences: the block and thread that compute an element, and why that is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.cuda_printer import index_text, value_text
from mirage_formal.codegen.program.access import WARP, Access, Context, Mode
from mirage_formal.codegen.program.integers import fold
from mirage_formal.codegen.program.program import (
    Apply,
    Combine,
    For,
    GlobalRead,
    GlobalWrite,
    If,
    Int,
    IntExpr,
    Mma,
    Program,
    Real,
    Reg,
    Select,
    SharedRead,
    ShuffleReduce,
    Stmt,
    TileCopy,
    Value,
    WarpgroupMma,
    Where,
    all_statements,
)
from mirage_formal.codegen.program.register_layout import MMA
from mirage_formal.codegen.translation_validation.tile_addresses import tile_addresses
from mirage_formal.graph.formats.text import operator_text
from mirage_formal.graph.graph import GraphDefined, KernelGraph, OutputSaver
from mirage_formal.graph.storage_views import StorageLocation, storage_locations
from mirage_formal.graph.types import DTensor, row_major
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.records import RealizationRecord
from mirage_formal.report.kernels.block_accesses import Block, BlockAccesses, ThreadElements
from mirage_formal.support.errors import UnsupportedError

_AXES: Final = ("x", "y", "z")
#: Threads whose elements are listed, and elements of one thread that are.
_THREADS: Final = 3
_LISTED: Final = 4


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A generated kernel with the facts that its explanation is made of.

    Attributes:
        program: Its Program.
        graph: The µGraph that has its operator.
        operator: Number of the operator; -1 copies a value to an output.
        values: Numbers of the values that its parameters are, in their order.
        claim: The recorded claim that it computes the operator; None where none is recorded.
    """

    program: Program
    graph: KernelGraph
    operator: int
    values: tuple[int, ...]
    claim: RealizationRecord | None


@dataclass(frozen=True, slots=True)
class ExplanationSection:
    """A part of an explanation.

    Attributes:
        title: Its title.
        sentences: Its sentences, one a line; lines of a graph's text begin with blanks.
    """

    title: str
    sentences: tuple[str, ...]


def explain_kernel(kernel: BuiltKernel, element: Sequence[int] | None = None) -> tuple[ExplanationSection, ...]:
    """Return the explanation of a kernel.

    Args:
        kernel: The kernel.
        element: Coordinates of the element of each result that is followed; one in the middle if left out.

    Raises:
        UnsupportedError: The kernel is malformed.
    """
    told = _Explanation(kernel, element)
    parts = (
        ("What it computes", told.subject),
        ("Blocks and tiles", told.tiles),
        ("What is loaded", told.loads),
        ("What threads hold and exchange", told.threads),
        ("Who stores what", told.stores),
        ("One element", told.element),
        ("Why it is the µGraph's element", told.claim),
    )
    found = ((title, tuple(sentences())) for title, sentences in parts)
    return tuple(ExplanationSection(title, sentences) for title, sentences in found if sentences)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A parameter as a tensor: its name for readers, shape, and place in memory."""

    name: str
    type: DTensor
    place: StorageLocation

    def coordinates(self, addresses: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the coordinates of addresses, one row each; None where strides do not give them."""
        if self.place.path is not None:
            return None
        left = addresses - self.place.offset
        found = np.zeros((len(addresses), len(self.type.shape)), np.int64)
        order = sorted(range(len(self.type.shape)), key=lambda dim: -self.place.strides[dim])
        for dim in order:
            step, extent = self.place.strides[dim], self.type.shape[dim]
            if step > 0 and extent > 1:
                found[:, dim] = np.minimum(left // step, extent - 1)
                left = left - found[:, dim] * step
        return found if not left.any() and (found >= 0).all() else None

    def address(self, at: Sequence[int]) -> int | None:
        """Return the address of an element; None where strides do not give it."""
        if self.place.path is not None:
            return None
        return self.place.offset + sum(i * step for i, step in zip(at, self.place.strides, strict=True))

    def describe(self, addresses: NDArray[np.int64], *, counted: bool = True) -> str:
        """Return a phrase on a set of elements: as a box where it is one, with their number if ``counted``."""
        every = np.unique(addresses)
        count = f"{len(every):,} element{'s' if len(every) != 1 else ''}"
        if not len(every):
            return f"no element of {self.name}"
        at = self.coordinates(every)
        if at is None:
            return f"{count} of {self.name}, at addresses {every[0]:,} to {every[-1]:,} of its memory"
        low, high = at.min(axis=0), at.max(axis=0)
        box = f"{self.name}{_box(low, high)}"
        if len(every) == prod(int(last - first) + 1 for first, last in zip(low, high, strict=True)):
            return f"{box} ({count})" if counted and len(every) > 1 else box
        return f"{count} within {box}"


class _Explanation:
    def __init__(self, kernel: BuiltKernel, element: Sequence[int] | None) -> None:
        self.kernel, self.wanted = kernel, element
        self.program, self.graph = kernel.program, kernel.graph
        self.accesses = BlockAccesses(kernel.program)
        self.types, places = kernel_types(kernel.graph), storage_locations(kernel.graph)
        op = kernel.graph.ops[kernel.operator] if kernel.operator >= 0 else None
        self.op = op
        #: Output savers of the block graph by the names of the results.
        self.savers: dict[str, OutputSaver] = {}
        if isinstance(op, GraphDefined):
            first = len(kernel.graph.inputs) + sum(one.results for one in kernel.graph.ops[: kernel.operator])
            self.savers = {self._name(first + number): one for number, one in enumerate(op.graph.outputs)}
        self.tensors: dict[str, _Tensor] = {}
        for param, value in zip(kernel.program.params, kernel.values, strict=True):
            if value < len(self.types):
                self.tensors[param.name] = _Tensor(self._name(value), self.types[value], places[value])
            else:  # the copy of a value to an output
                shape = self.types[kernel.values[0]]
                place = StorageLocation(value, row_major(shape.shape))
                self.tensors[param.name] = _Tensor(f"output {value - len(self.types)}", shape, place)

    def _name(self, value: int) -> str:
        return self.graph.inputs[value].name if value < len(self.graph.inputs) else f"d{value}"

    # --- sections

    def subject(self) -> Iterator[str]:
        """Yield what the kernel reads, writes and computes."""
        read = [self._typed(one.name) for one in self.program.params if not one.written]
        written = [self._typed(one.name) for one in self.program.params if one.written]
        what = f"operator {self.kernel.operator} of the µGraph" if self.op is not None else "the copy to an output"
        yield f"{self.program.name} computes {what}: it reads {_list(read)} and writes {_list(written)}."
        if self.op is not None:
            yield "The operator is, in the text of the µGraph:"
            yield from (f"  {line}" for line in operator_text(self.graph, self.kernel.operator).split("\n"))

    def tiles(self) -> Iterator[str]:
        """Yield the launch, and the tile of each tensor that a block and an iteration have."""
        grid, shared = self.program.grid, self.program.shared_bytes
        memory = f", with {shared:,} bytes of shared memory for each block" if shared else ""
        yield f"The grid has {_times(grid)} blocks of {_count(self.program.launch_threads, 'thread')}{memory}."
        if not isinstance(self.op, GraphDefined):
            return
        block = self.op.graph
        inner = block_types(block, tuple(self.types[n] for n in self.op.operands))
        if block.grid != grid:
            yield f"The µGraph's grid is {_times(block.grid)}."
        for operand, iterator, tile in zip(self.op.operands, block.inputs, inner, strict=False):
            how = _axes(iterator.imap, block.grid, "cuts") or "every block reads all of it"
            shape = _times(self.types[operand].shape)
            name = self._name(operand)
            if iterator.fmap is not None and block.forloop_range > 1:
                how += f"; each of the {block.forloop_range} iterations has its share of dim {iterator.fmap}"
            yield f"{name} ({shape}): {how}. The tile of one iteration is {_times(tile.shape)}."
        types = {one.name: one.type for one in self.tensors.values()}
        for name, saver in self.savers.items():
            if name not in types:
                continue
            how = _axes(saver.omap, block.grid, "puts side by side tiles along") or "one block writes all of it"
            of_block = _times(inner[saver.operand].shape)
            yield f"{name} ({_times(types[name].shape)}): {how}. The tile of one block is {of_block}."

    def loads(self) -> Iterator[str]:
        """Yield what block (0, 0, 0) loads from device memory, before, in and behind each loop."""
        groups: dict[tuple[str, str, int], list[Access]] = {}
        for access in self.accesses.of_memory(written=False):
            groups.setdefault(_loop_of(access.context), []).append(access)
        for (_, var, extent), accesses in groups.items():
            iterations = range(extent) if extent <= 3 else (0, 1, extent - 1)
            if not var:
                yield from self._load("Outside of loops", accesses, {})
                continue
            for at in iterations:
                yield from self._load(f"In iteration {at} of {extent} of the loop over {var}", accesses, {var: at})

    def _load(self, when: str, accesses: Sequence[Access], fixed: Mapping[str, int]) -> Iterator[str]:
        found: dict[str, list[ThreadElements]] = {}
        for access in accesses:
            try:
                found.setdefault(access.target.name, []).append(self.accesses.evaluate(access, [(0, 0, 0)], fixed))
            except UnsupportedError as error:
                yield f"{when}: what is loaded of {self.tensors[access.target.name].name} is not listed: {error.what}."
        told = []
        for name, parts in found.items():
            tensor = self.tensors[name]
            every = np.concatenate([one.addresses.ravel() for one in parts])
            if len(every):
                told.append(f"{tensor.describe(every)}{self._iteration_of(tensor, every)}")
        if not told:
            yield f"{when}, block (0, 0, 0) loads nothing."
            return
        yield f"{when}, block (0, 0, 0) loads {_list(told)}."
        if not any(fixed.values()):
            for name, parts in found.items():
                yield from self._by_thread(self.tensors[name], parts, "loads")

    def _iteration_of(self, tensor: _Tensor, addresses: NDArray[np.int64]) -> str:
        """Return a phrase on the iteration of the µGraph whose tile has all these elements; empty if none has."""
        at = tensor.coordinates(np.unique(addresses))
        if not isinstance(self.op, GraphDefined) or at is None:
            return ""
        block = self.op.graph
        for operand, iterator in zip(self.op.operands, block.inputs, strict=True):
            dim = iterator.fmap
            if self._name(operand) != tensor.name or dim is None or block.forloop_range == 1:
                continue
            slab = tensor.type.shape[dim]
            for axis, split in enumerate(iterator.imap):
                slab //= block.grid[axis] if split == dim else 1
            found = np.unique(at[:, dim] % slab // (slab // block.forloop_range))
            return f" of the µGraph's iteration {found[0]}" if len(found) == 1 else ""
        return ""

    def _by_thread(self, tensor: _Tensor, parts: Sequence[ThreadElements], does: str) -> Iterator[str]:
        """Yield which elements the first threads that take part have, and how many there are."""
        active = np.unique(np.concatenate([one.threads for one in parts]))
        shown = []
        for thread in active[:_THREADS]:
            rows = [one.addresses[one.threads == thread] for one in parts]
            each = [tensor.describe(row, counted=False) for part in rows for row in part]
            more = f" and {len(each) - _LISTED} more" if len(each) > _LISTED else ""
            shown.append(f"thread {thread} {does} {', '.join(each[:_LISTED])}{more}")
        if shown:
            few = f"{len(active):,} of {self.program.launch_threads:,} threads take part: "
            yield f"  {few if len(active) < self.program.threads else ''}{'; '.join(shown)}."

    def threads(self) -> Iterator[str]:
        """Yield the products, reductions and exchanges between threads."""
        warps = -(-self.program.threads // WARP)
        products: dict[tuple[str, str], int] = {}
        shuffles: dict[tuple[str, str], list[int]] = {}
        together = False
        for statement, loops in _statements(self.program.body, ()):
            outside = next((n for n, (_, _, unroll) in enumerate(loops) if not unroll), None)
            if isinstance(statement, Mma | WarpgroupMma):
                var = "" if outside is None else loops[outside][0]
                times = prod(extent for n, (_, extent, _) in enumerate(loops) if n != outside)
                if isinstance(statement, WarpgroupMma):
                    times *= statement.columns // MMA[1] * (statement.depth // MMA[2])
                    together = True
                products[statement.d, var] = products.get((statement.d, var), 0) + times
            elif isinstance(statement, ShuffleReduce):
                masks = shuffles.setdefault((statement.array, statement.fn.value), [])
                masks += [statement.mask] if statement.mask not in masks else []
        if products:
            yield (
                f"The block has {_count(warps, 'warp')} of {WARP} threads. A product multiplies a fragment of 16 x 16 "
                "by one of 16 x 8. Lane l of a warp holds rows l / 4 and l / 4 + 8 and columns 2 (l % 4) and "
                "2 (l % 4) + 1 of each 16 x 8 result."
            )
        if together:
            yield "Four warps, a warpgroup, compute products of 64 rows together (wgmma): each of them has 16 rows."
        for (array, var), count in products.items():
            when = f" in each iteration of the loop over {var}" if var else ""
            yield f"Each warp adds {_count(count, 'product')} to the fragments in {array}{when}."
        for buffer, parts in self._matrix_reads():
            yield f"For products, {parts.format(f'shared buffer {buffer}')}."
        for (array, fn), masks in shuffles.items():
            how = {"add": "add up", "max": "take the maximum of"}[fn]
            yield f"Lanes of a warp {how} what they hold in {array}, over lanes that differ by {_list(masks)}."
        written = {one.target.name for one in self.accesses.of_mode(Mode.WRITE)}
        read = {one.target.name for one in self.accesses.of_mode(Mode.READ)} | {
            one.target.name for one in self.accesses.of_mode(Mode.MATRIX)
        }
        copied = {one.target.name for one in self.accesses.of_mode(Mode.ASYNC)}
        if copied:
            yield f"Copies from device memory go to shared {_plural('buffer', sorted(copied))}."
        yield from self._items()
        if written & read:
            yield f"Threads hand values to other threads through shared {_plural('buffer', sorted(written & read))}."

    def _items(self) -> Iterator[str]:
        """Yield what the producer copies, and how its items are handed to the other threads."""
        threads = self.program.threads
        for pipeline in self.program.pipelines:
            copies = [one for one in all_statements(self.program.producer) if isinstance(one, TileCopy)]
            own = [one for one in copies if one.pipeline == pipeline.name]
            source = _list(list(dict.fromkeys(one.param for one in own)))
            yield (
                f"Thread {threads}, the producer, copies tiles of {source} to shared "
                f"{_plural('buffer', list(dict.fromkeys(one.buffer for one in own)))} by the tensor memory accelerator."
            )
            yield (
                f"They pass pipeline {pipeline.name} of {_count(pipeline.slots, 'slot')}, one item of "
                f"{pipeline.bytes:,} bytes after another: threads 0 to {threads - 1} wait until an item has arrived, "
                "and give its slot back when they have read it."
            )

    def _matrix_reads(self) -> Iterator[tuple[str, str]]:
        """Yield each shared buffer of operands of products, and how the warps share it in a first iteration."""
        groups: dict[str, list[Access]] = {}
        for access in self.accesses.of_mode(Mode.MATRIX):
            groups.setdefault(access.target.name, []).append(access)
        for name, accesses in groups.items():
            sets: dict[int, set[int]] = {}
            try:
                for access in accesses:
                    var = _loop_of(access.context)[1]
                    found = self.accesses.evaluate(access, [(0, 0, 0)], {var: 0} if var else {})
                    for warp in np.unique(found.threads // WARP):
                        mine = found.addresses[found.threads // WARP == warp]
                        sets.setdefault(int(warp), set()).update(map(int, np.unique(mine)))
            except UnsupportedError:
                continue
            yield name, _sharing(list(sets.values()))

    def stores(self) -> Iterator[str]:
        """Yield who stores which element, and that it is the tile of the µGraph."""
        for param in self.program.params:
            if not param.written:
                continue
            tensor = self.tensors[param.name]
            accesses = [one for one in self.accesses.of_memory(written=True) if one.target.name == param.name]
            for access in accesses:
                where = "".join(f", where {index_text(self.program, one)}" for one in access.context.guards)
                at = index_text(self.program, access.index)
                what = "one element" if access.count == 1 else f"{access.count} neighbouring elements"
                yield f"A thread stores {what} of {tensor.name} at address {at}{where}."
            blocks = sorted({(0, 0, 0), self._middle(), _last(self.program.grid)})
            for number, block in enumerate(blocks):
                yield from self._store(tensor, accesses, block, tell=number == 0)

    def _store(self, tensor: _Tensor, accesses: Sequence[Access], block: Block, *, tell: bool) -> Iterator[str]:
        try:
            parts = [self.accesses.evaluate(one, [block]) for one in accesses]
        except UnsupportedError as error:
            yield f"What block {block} stores is not listed: {error.what}."
            return
        if tell:
            yield from self._by_thread(tensor, parts, "stores")
        every = np.concatenate([one.addresses.ravel() for one in parts]) if parts else np.zeros(0, np.int64)
        once = ", each once" if len(np.unique(every)) == len(every) and len(every) > 1 else ""
        yield f"Block {block} stores {tensor.describe(every)}{once}{self._beside_tile(tensor, every, block)}."

    def _beside_tile(self, tensor: _Tensor, stored: NDArray[np.int64], block: Block) -> str:
        """Return whether the stored elements are the tile that the µGraph gives to the block; empty if it has none."""
        if not isinstance(self.op, GraphDefined) or self.op.graph.grid != self.program.grid:
            return ""
        saver = self.savers.get(tensor.name)
        if saver is None:
            return ""
        tile = tile_addresses(tensor.type.shape, saver.omap, self.op.graph.grid, tensor.place)
        if tile.elements > 1 << 22:
            return ""
        env = dict(zip(("bx", "by", "bz"), block, strict=True))
        own = np.unique(tile.evaluate(tile.address, env)[tile.memory_mask(env)])
        same = np.array_equal(own, np.unique(stored))
        return ": exactly the tile that the µGraph gives to this block" if same else ", which is not the µGraph's tile"

    def _middle(self) -> Block:
        x, y, z = self.program.grid
        return x // 2, y // 2, z // 2

    def element(self) -> Iterator[str]:
        """Yield who stores one element of each result."""
        for param in self.program.params:
            if param.written:
                try:
                    yield from self._element(param.name)
                except UnsupportedError as error:
                    yield f"The element of {self.tensors[param.name].name} is not followed: {error.what}."

    def _element(self, param: str) -> Iterator[str]:
        tensor = self.tensors[param]
        shape, address = tensor.type.shape, None
        if self.wanted is not None:
            if len(self.wanted) != len(shape) or any(i >= n for i, n in zip(self.wanted, shape, strict=True)):
                yield f"{tensor.name} ({_times(shape)}) has no element [{_ints(self.wanted)}]."
                return
            address = tensor.address(self.wanted)
        if address is None:
            address = self._some_address(param)
        if address is None:
            return
        found = self.accesses.find_store(param, address, self._block_of(tensor, address))
        at = tensor.coordinates(np.asarray([address]))
        name = f"{tensor.name} at address {address:,}" if at is None else f"{tensor.name}[{_ints(at[0])}]"
        if found is None:
            yield f"No thread stores {name}."
            return
        block, parts, number = found
        thread = int(parts.threads[number])
        point: dict[str, IntExpr] = {var: Int(int(values[number])) for var, values in parts.points.items()}
        statement = _statement_at(self.program.body, parts.access.context.path)
        where = "".join(f", {var} = {one.value}" for var, one in point.items() if isinstance(one, Int))
        warp = f"warp {thread // WARP}, lane {thread % WARP}"
        yield f"{name} is stored by thread {thread} ({warp}) of block {block}{where}."
        if isinstance(statement, GlobalWrite):
            value = statement.values[address - int(parts.first[number])]
            yield f"  The stored value is {value_text(self.program, _at_point(value, point))} of this thread."
        if isinstance(self.op, GraphDefined) and at is not None and self.op.graph.grid == self.program.grid:
            yield from self._position(tensor, at[0], block)

    def _position(self, tensor: _Tensor, at: NDArray[np.int64], block: Block) -> Iterator[str]:
        """Yield the position of an element in the tile of a block of the µGraph."""
        assert isinstance(self.op, GraphDefined)
        saver = self.savers.get(tensor.name)
        if saver is not None:
            tile = tile_addresses(tensor.type.shape, saver.omap, self.op.graph.grid, tensor.place)
            inside = [int(i) % n for i, n in zip(at, tile.shape, strict=True)]
            yield f"  In the µGraph it is element [{_ints(inside)}] of s{saver.operand} in block {block}."

    def _some_address(self, param: str) -> int | None:
        """Return the address of an element that the block in the middle of the grid stores."""
        for access in self.accesses.of_memory(written=True):
            if access.target.name == param:
                for block in (self._middle(), (0, 0, 0)):
                    found = self.accesses.evaluate(access, [block]).addresses.ravel()
                    if len(found):
                        return int(np.sort(found)[len(found) // 2])
        return None

    def _block_of(self, tensor: _Tensor, address: int) -> Block:
        """Return the block whose tile has an element by the µGraph, or that in the middle."""
        if isinstance(self.op, GraphDefined):
            at, saver = tensor.coordinates(np.asarray([address])), self.savers.get(tensor.name)
            if at is not None and saver is not None:
                left = list(tensor.type.shape)
                block, rest = [0, 0, 0], [int(i) for i in at[0]]
                for axis, dim in enumerate(saver.omap):
                    if dim is not None:
                        left[dim] //= self.op.graph.grid[axis]
                        block[axis], rest[dim] = divmod(rest[dim], left[dim])
                if all(b < n for b, n in zip(block, self.program.grid, strict=True)):
                    return block[0], block[1], block[2]
        return self._middle()

    def claim(self) -> Iterator[str]:
        """Yield what the recorded claim says, and what it compared."""
        one, count = self.kernel.claim, prod(self.program.grid)
        if one is None:
            yield "No claim is recorded that this kernel computes the operator; mirage-formal check decides it."
            return
        if one.verdict != "realizes":
            yield f"It is not proved that this kernel computes the operator ({one.verdict}): {one.reason}."
            yield "It is tested only."
            return
        classes = _count(one.classes, "class of blocks", "classes of blocks")
        yield (
            f"The claim compared {_count(one.elements, 'element')} of {classes} with the operator's, as the text of "
            f"the µGraph above defines them, at {one.points} random points of fields with primes of {one.bits} bits. "
            "All agree, and no block writes anything else."
        )
        yield (
            "Blocks of one class do the same at other addresses of device memory, so this holds for all "
            f"{_count(count, 'block')}. Each element of the inputs was a random number of its own, and every index was "
            "taken as it is."
        )
        for rounding in one.roundings:
            yield f"Over the reals this conversion is the identity: {rounding}."
        yield "This is the record; mirage-formal check decides it again at points of its own."

    def _typed(self, param: str) -> str:
        tensor = self.tensors[param]
        return f"{tensor.name} ({_times(tensor.type.shape)}, {tensor.type.dtype.value})"


# --- words -----------------------------------------------------------------------------------------------------------


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def _times(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))


def _ints(values: Sequence[int] | NDArray[np.int64]) -> str:
    return ", ".join(str(int(value)) for value in values)


def _box(low: NDArray[np.int64], high: NDArray[np.int64]) -> str:
    ends = zip(map(int, low), map(int, high), strict=True)
    return f"[{', '.join(str(first) if first == last else f'{first}..{last}' for first, last in ends)}]"


def _list(items: Sequence[object]) -> str:
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else "nothing"


def _plural(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {_list(names)}"


def _axes(split: Sequence[int | None], grid: Sequence[int], does: str) -> str:
    """Return how grid axes split dims; empty if none does."""
    found = []
    for axis, dim in enumerate(split):
        if dim is not None and grid[axis] > 1:
            into = f" into {grid[axis]} slabs" if does == "cuts" else f", one for each of {grid[axis]} blocks"
            found.append(f"grid axis {_AXES[axis]} {does} dim {dim}{into}")
    return "; ".join(found)


def _sharing(sets: Sequence[set[int]]) -> str:
    """Return how warps share elements of a buffer, with {} for its name: the same, disjoint or overlapping parts."""
    total = _count(len(set().union(*sets)), "element")
    if len(sets) == 1:
        return f"the warp reads {total} of {{}}"
    if all(one == sets[0] for one in sets):
        return f"all {len(sets)} warps read the same {total} of {{}}"
    if len(set().union(*sets)) == sum(map(len, sets)):
        return f"the {len(sets)} warps read {total} of {{}}, each a part of its own"
    return f"the {len(sets)} warps read {total} of {{}}, in parts that overlap"


# --- statements ------------------------------------------------------------------------------------------------------


def _loop_of(context: Context) -> tuple[str, str, int]:
    """Return place, variable and extent of the outermost loop that is not unrolled; empty outside of such loops."""
    for var, extent in context.loops:
        if var not in context.unrolled and extent > 1:
            return context.path.split(f":for {var}")[0], var, extent
    return "", "", 1


def _last(grid: Block) -> Block:
    return grid[0] - 1, grid[1] - 1, grid[2] - 1


def _at_point(value: Value, point: Mapping[str, IntExpr]) -> Value:
    """Return a value with loop variables replaced by numbers."""
    match value:
        case Real():
            return value
        case Reg(array, index):
            return Reg(array, fold(index, point))
        case SharedRead(buffer, index):
            return SharedRead(buffer, fold(index, point))
        case GlobalRead(param, index):
            return GlobalRead(param, fold(index, point))
        case Apply(fn, a):
            return Apply(fn, _at_point(a, point))
        case Combine(binary, a, b):
            return Combine(binary, _at_point(a, point), _at_point(b, point))
        case Select(condition, a, b):
            return Select(fold(condition, point), _at_point(a, point), _at_point(b, point))
        case Where(mask, a, b):
            return Where(_at_point(mask, point), _at_point(a, point), _at_point(b, point))
        case _:
            assert_never(value)


_Loops = tuple[tuple[str, int, bool], ...]


def _statements(body: Sequence[Stmt], loops: _Loops) -> Iterator[tuple[Stmt, _Loops]]:
    """Yield all statements but loops and conditions, with the loops around them."""
    for one in body:
        if isinstance(one, For):
            unrolled = one.unroll or one.extent == 1
            yield from _statements(one.body, (*loops, (one.var, one.extent, unrolled)))
        elif isinstance(one, If):
            yield from _statements(one.body, loops)
        else:
            yield one, loops


def _statement_at(body: Sequence[Stmt], path: str) -> Stmt | None:
    """Return the statement at a path of ``list_accesses``."""
    found: Stmt | None = None
    for part in path.split("/"):
        found = body[int(part.split(":")[0])]
        body = found.body if isinstance(found, For | If) else ()
    return found


__all__ = ["BuiltKernel", "ExplanationSection", "explain_kernel"]

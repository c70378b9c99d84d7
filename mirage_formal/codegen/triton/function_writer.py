"""A writer of the lines of a Triton function: loads and stores, and names of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from mirage_formal.codegen.planning.expand import FlatGraph
from mirage_formal.codegen.program.flat_graph import Concat, FlatOp, Product
from mirage_formal.codegen.program.lines import About
from mirage_formal.codegen.program.plan import Phase
from mirage_formal.codegen.program.program import BinaryFn
from mirage_formal.codegen.triton.address import WIDE, Address, BlockTile, Index, band_conditions, tile_address
from mirage_formal.codegen.triton.block_padding import Padding, on_tensor_cores
from mirage_formal.graph.graph import BlockGraph
from mirage_formal.graph.memory.storage_location import StorageLocation
from mirage_formal.graph.types import Band, DTensor, DType

TYPES: Final = {DType.FLOAT16: "tl.float16", DType.BFLOAT16: "tl.bfloat16", DType.FLOAT32: "tl.float32"}
#: The type to which a product's operands are converted. The interpreter multiplies the bits of bfloat16 as if
#: they were integers, so the file names the type in one place (file.BFLOAT).
_OPERANDS: Final = {**TYPES, DType.BFLOAT16: "BFLOAT16"}
NEUTRAL: Final = {BinaryFn.ADD: "0.0", BinaryFn.MAX: 'float("-inf")'}
#: Characters of a line within a function.
_WIDTH: Final = 108


@dataclass(frozen=True, slots=True)
class Operand:
    """A device tensor that a block graph reads or writes.

    Attributes:
        name: Name of the pointer to the first element of its base.
        tensor: Its type.
        place: Its memory layout.
        span: Elements of its base.
        band: If it is a band mask whose elements the function computes, its band.
    """

    name: str
    tensor: DTensor
    place: StorageLocation
    span: int
    band: Band | None = None


@dataclass(slots=True)
class TritonWriter:
    """A Triton function of a block graph while it is written."""

    name: str
    graph: BlockGraph
    flat: FlatGraph
    pad: Padding
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    about: str
    #: The node that each tensor is a part of.
    nodes: tuple[str, ...]
    #: Lines by phase, and the annotation of each.
    lines: dict[Phase, list[str]] = field(default_factory=lambda: {phase: [] for phase in Phase})
    owners: dict[Phase, list[About]] = field(default_factory=lambda: {phase: [] for phase in Phase})
    #: The annotation of the current section.
    owner: tuple[tuple[str, ...], str] = ((), "")
    #: Names of tensors in float32, and as operands of tl.dot.
    values: dict[int, str] = field(default_factory=dict)
    operands: dict[int, str] = field(default_factory=dict)
    #: Tensors whose padding is zeros.
    zeros: set[int] = field(default_factory=set)
    ranges: set[int] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)
    staged: int = 0
    readers: dict[int, list[FlatOp]] = field(default_factory=dict)

    @property
    def wide(self) -> bool:
        """Return whether offsets need 64 bits."""
        return any(one.span >= WIDE for one in (*self.reads, *self.writes))

    # --- device memory

    def _load(self, number: int, tile: BlockTile, operand: Operand) -> None:
        tensor = self.flat.tensors[number]
        uses = self.readers.get(number, [])
        stored = number in self.flat.outputs
        dotted = any(isinstance(op, Product) and self._uses_tensor_cores(op) for op in uses) or self._in_terms(number)
        plain = stored or any(not (isinstance(op, Product) and self._uses_tensor_cores(op)) for op in uses)
        plain = plain and not (not stored and all(isinstance(op, Concat) and self._dissolved(op) for op in uses))
        self.zeros.add(number)
        name = f"{operand.name}_{number}"
        if dotted:
            # Triton 3.6 was wrong where one loaded tile is an operand of tl.dot and read elementwise: so it is loaded
            # twice, and the different policies keep the compiler from making one load of the two.
            self._load_from(name, number, tile, operand, "evict_last" if plain else "", "")
            self.operands[number] = name
            self.staged += prod(self.pad.block(number)) * tensor.dtype.bytes if tensor.phase is Phase.LOOP else 0
        if plain:
            own = f"{name}e" if dotted else name
            suffix = "" if tensor.dtype is DType.FLOAT32 else ".to(tl.float32)"
            self._load_from(own, number, tile, operand, "", suffix)
            self.values[number] = own

    def _compute_mask(self, number: int, tile: BlockTile, operand: Operand, band: Band) -> None:
        """Compute the elements of a band mask from their indices; those in the padding are 0."""
        conditions = band_conditions(tile, band, self._ranges(number), self.graph)
        if any(one.value == 0 for one in conditions):
            value, conditions = "0.0", ()
        else:
            value = "1.0"
        name, full = f"{operand.name}_{number}", f"tl.full({list(self.pad.block(number))}, {value}, tl.float32)"
        self.values[number] = name
        self.zeros.add(number)
        if conditions:
            self._call(self._phase(number), f"{name} = tl.where", [_conjunction(conditions), full, "0.0"], "")
        else:
            self._emit(self._phase(number), f"{name} = {full}")

    def _load_from(self, name: str, number: int, tile: BlockTile, operand: Operand, policy: str, suffix: str) -> None:
        at = tile_address(tile, self._ranges(number), self.graph)
        mask = _conjunction(at.mask)
        zero = "0.0" if operand.tensor.dtype.floating else "0"
        more = [f"mask={mask}", f"other={zero}"] if mask else []
        more += [f'eviction_policy="{policy}"'] if policy else []
        self._call(self._phase(number), f"{name} = tl.load", [self._pointer(number, at, operand), *more], suffix)

    def _store(self, number: int, tile: BlockTile, operand: Operand) -> None:
        at = tile_address(tile, self._ranges(number), self.graph)
        mask = _conjunction(at.mask)
        value = self._value(number)
        if not operand.tensor.dtype.floating:
            value += " != 0.0"
        elif operand.tensor.dtype is not DType.FLOAT32:
            value += f".to({TYPES[operand.tensor.dtype]})"
        more = [f"mask={mask}"] if mask else []
        self._call(Phase.AFTER, "tl.store", [self._pointer(number, at, operand), value, *more], "")

    def _pointer(self, number: int, at: Address, operand: Operand) -> str:
        parts = [f"{operand.name}_ptr"]
        parts += [at.start.text] if at.start.value != 0 else []
        if at.offset.block:
            parts.append(at.offset.text if parts[1:] == [] or not at.offset.sum else f"({at.offset.text})")
        else:
            parts += [at.offset.text] if at.offset.value != 0 else []
            parts.append(f"tl.zeros({list(self.pad.block(number))}, tl.int32)")
        return " + ".join(parts)

    def _ranges(self, number: int) -> list[Index | None]:
        """Return the indices of a block's elements along each dim of the tensor."""
        axes, extents = self.pad.axes[number], self.pad.extents[number]
        found: list[Index | None] = []
        for dim, extent in enumerate(extents):
            found.append(self._range(number, axes.index(dim)) if dim in axes and extent > 1 else None)
        return found

    def _range(self, number: int, axis: int) -> Index:
        """Return the indices along one axis of a tensor's block."""
        block = self.pad.block(number)
        return Index(self._along(block[axis], axis, len(block)), block=True, bound=block[axis])

    def _along(self, extent: int, axis: int, rank: int) -> str:
        self.ranges.add(extent)
        if rank == 1:
            return f"r{extent}"
        return f"r{extent}[{', '.join(':' if i == axis else 'None' for i in range(rank))}]"

    def _call(self, phase: Phase, head: str, arguments: Sequence[str], suffix: str) -> None:
        """Emit a call on one line, or on several if it is long."""
        line = f"{head}({', '.join(arguments)}){suffix}"
        if len(line) <= _WIDTH:
            self._emit(phase, line)
            return
        self._emit(phase, f"{head}(")
        for argument in arguments:
            self._emit(phase, f"    {argument},")
        self._emit(phase, f"){suffix}")

    # --- values

    def _emit(self, phase: Phase, line: str, does: str = "") -> None:
        """Emit a line; ``does`` describes it, if it differs from the current section."""
        self.lines[phase].append(line)
        self.owners[phase].append((self.owner[0], does or self.owner[1]))

    def _begin(self, numbers: Iterable[int], does: str) -> None:
        """Start a section of the text: the computation of tensors, or another use of them."""
        self.owner = (tuple(dict.fromkeys(self.nodes[number] for number in numbers)), does)

    def _phase(self, number: int) -> Phase:
        return self.flat.tensors[number].phase

    def _value(self, number: int) -> str:
        """Return the name of a tensor in float32."""
        return self.values[number]

    def _operand(self, number: int) -> str:
        """Return a tensor as an operand of tl.dot."""
        dtype = self.flat.tensors[number].dtype
        if number not in self.operands:
            if dtype is DType.FLOAT32:
                return self._value(number)
            self.operands[number] = f"{self._value(number)}h"
            line = f"{self.operands[number]} = {self._value(number)}.to({_OPERANDS[dtype]})"
            before = self.owner
            self._begin((number,), "rounds for a product")
            self._emit(self._phase(number), line)
            self.owner = before
        elif number < len(self.reads) and dtype is DType.BFLOAT16:
            return f"{self.operands[number]}.to({_OPERANDS[dtype]})"
        return self.operands[number]

    def _define(self, op_name: str, number: int, text: str, *, zero: bool = False) -> None:
        self.values[number] = f"{op_name}_{number}"
        self._emit(self._phase(number), f"{self.values[number]} = {text}")
        if zero or not self._padded(number):
            self.zeros.add(number)

    def _padded(self, number: int) -> list[int]:
        """Return the dims of a tensor that its block pads."""
        shape, extents = self.flat.tensors[number].shape, self.pad.extents[number]
        return [dim for dim, (own, padded) in enumerate(zip(shape, extents, strict=True)) if own < padded]

    def _neutral(self, text: str, number: int, dim: int, fn: BinaryFn, *, zero: bool) -> str:
        """Return a tensor with a reduction's neutral element in the padding of a dim, which may be zeros already."""
        shape, extents = self.flat.tensors[number].shape, self.pad.extents[number]
        if shape[dim] == extents[dim] or (fn is BinaryFn.ADD and zero):
            return text
        inside = f"{self._range(number, self.pad.axis(number, dim)).text} < {shape[dim]}"
        return f"tl.where({inside}, {text}, {NEUTRAL[fn]})"

    # --- products and concatenations

    def _uses_tensor_cores(self, op: Product) -> bool:
        return on_tensor_cores(self.flat, *self.pad.terms[op.result][0])

    def _in_terms(self, number: int) -> bool:
        """Return whether a tensor is an operand of a tl.dot by way of a concatenation."""
        return any(
            number in pair and on_tensor_cores(self.flat, *pair)
            for pairs in self.pad.terms.values()
            if len(pairs) > 1
            for pair in pairs
        )

    def _dissolved(self, op: Concat) -> bool:
        """Return whether a concatenation is read only by products split into terms, so that it is not materialised."""
        makers = [other for other in self.readers.get(op.result, []) if not isinstance(other, Concat)]
        above = [other for other in self.readers.get(op.result, []) if isinstance(other, Concat)]
        products = all(isinstance(one, Product) and len(self.pad.terms[one.result]) > 1 for one in makers)
        return op.result not in self.flat.outputs and products and all(self._dissolved(one) for one in above)


def contains_name(text: str, name: str) -> bool:
    """Return whether a name occurs in a text."""
    return any(name == word for word in "".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def _conjunction(conditions: Iterable[Index]) -> str:
    """Return the conditions as one expression, or "" if there are none."""
    texts = [one.text if one.text.startswith("(") else f"({one.text})" for one in conditions]
    return " & ".join(texts)

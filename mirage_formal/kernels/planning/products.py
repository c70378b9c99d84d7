"""Products on tensor cores: which ones can be, how warps share them, and which results stay in registers in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from mirage_formal.graph.types import DType
from mirage_formal.kernels.planning.expand import Flat
from mirage_formal.kernels.planning.layout import (
    MAX_ACCUMULATORS,
    ProductShape,
    accumulators,
    choose_warps,
    depth,
    packs,
)
from mirage_formal.kernels.program.distribution import WARP
from mirage_formal.kernels.program.flat import Accumulate, Elementwise, FlatOp, Product, Reduce
from mirage_formal.kernels.program.plan import Compute, Phase, PlanTensor, Warps
from mirage_formal.kernels.program.program import BinaryFn

#: Threads of a block, if those that it asks for would hold too many accumulators each.
_MORE_THREADS: Final = (256, 512)
_MAX_VECTOR_THREADS: Final = 512
_VECTOR: Final = 8
#: Accumulators beyond the limit that are not worth twice the threads.
_SLACK: Final = 16


@dataclass(slots=True)
class Products:
    """The products of a kernel.

    Attributes:
        threads: Threads of a block.
        warps: For the result of each product on tensor cores, how warps share it.
        packed: Results of products whose left operand comes from registers.
        proven: Whether the choice is known to cost least in the model of planning/layout.
    """

    flat: Flat
    inputs: int
    readers: Mapping[int, Sequence[FlatOp]]
    makers: Mapping[int, FlatOp]
    threads: int
    warps: dict[int, Warps] = field(default_factory=dict)
    packed: set[int] = field(default_factory=set)
    proven: bool = True

    def eligible(self, op: Product) -> bool:
        """Whether tensor cores can compute a product: any of two operands of one 16-bit type.

        What extents lack to whole steps and tiles is padded with zeros, in shared memory or when registers are packed.
        """
        a, b = self.flat.tensors[op.a], self.flat.tensors[op.b]
        return a.dtype is not DType.FLOAT32 and a.dtype is b.dtype

    def root(self, number: int) -> int | None:
        """The product whose accumulators a tensor shares the shape and, in registers, the distribution of."""
        op = self.makers.get(number)
        if isinstance(op, Product):
            return number
        if isinstance(op, Elementwise):
            shape = self.flat.tensors[number].shape
            same = [n for n in op.operands if self.flat.tensors[n].shape == shape]
            return next((root for n in same if (root := self.root(n)) is not None), None)
        if isinstance(op, Accumulate) and op.dim is None:
            return self.root(op.operand)
        return None

    def accumulator_of(self, op: Product) -> Accumulate | None:
        """The accumulator that a product can add into directly: its only reader, a plain sum."""
        readers = self.readers.get(op.result, [])
        if len(readers) != 1 or op.result in self.flat.outputs:
            return None
        reader = readers[0]
        if not isinstance(reader, Accumulate) or reader.dim is not None or reader.fn is not BinaryFn.ADD:
            return None
        if reader.factor == op.result or self.flat.tensors[op.result].phase is not Phase.LOOP:
            return None
        return reader

    def mates(self, number: int) -> set[int]:
        """Products whose results meet this one's elementwise."""
        out: set[int] = set()
        for op in self.flat.ops:
            if isinstance(op, Elementwise) and len(op.operands) == 2:
                roots = {self.root(n) for n in op.operands}
                if number in roots:
                    out |= {r for r in roots if r is not None and r != number}
        return out

    def reductions(self, number: int) -> int:
        """Reductions over the columns of a product's result that cannot wait until after the loop."""
        last = len(self.flat.tensors[number].shape) - 1
        return sum(
            isinstance(op, Reduce) and op.dim == last and self.root(op.operand) == number for op in self.flat.ops
        )

    def shape(self, op: Product, numbers: Mapping[int, int]) -> ProductShape:
        """What the choice of warps needs to know; ``numbers`` are positions of products by result."""
        a, result = self.flat.tensors[op.a], self.flat.tensors[op.result]
        root = self.root(op.a)
        mine = numbers[op.result]
        mates = tuple(sorted(numbers[n] for n in self.mates(op.result) if n in numbers and numbers[n] < mine))
        return ProductShape(
            prod(result.shape[:-1]),
            result.cols,
            a.cols,
            self.flat.iterations if result.phase is Phase.LOOP else 1,
            self.accumulator_of(op) is not None,
            -1 if root is None else numbers.get(root, -1),
            mates,
            self.reductions(op.result),
        )


def choose_products(
    flat: Flat,
    inputs: int,
    readers: Mapping[int, Sequence[FlatOp]],
    makers: Mapping[int, FlatOp],
    threads: int,
) -> Products:
    """Threads, warps and packed operands; more threads where one thread would hold too many accumulators.

    Args:
        flat: The flattened block graph.
        inputs: Number of its inputs.
        readers: Operators that read each tensor.
        makers: The operator that defines each tensor.
        threads: What the block graph asks for.
    """
    found = Products(flat, inputs, readers, makers, threads)
    ops = [op for op in flat.ops if isinstance(op, Product) and found.eligible(op)]
    if not ops:
        found.threads = _vector_threads(flat, threads)
        return found
    numbers = {op.result: position for position, op in enumerate(ops)}
    shapes = [found.shape(op, numbers) for op in ops]
    for count in sorted({threads, *(n for n in _MORE_THREADS if n > threads)}):
        chosen, found.proven = choose_warps(shapes, count // WARP)
        found.threads = count
        found.warps = {op.result: warps for op, warps in zip(ops, chosen, strict=True)}
        found.packed = {
            op.result
            for op, shape, warps in zip(ops, shapes, chosen, strict=True)
            if shape.source >= 0 and packs(shapes[shape.source], chosen[shape.source], shape, warps)
        }
        if accumulators(shapes, chosen) <= MAX_ACCUMULATORS + _SLACK:
            break
    return found


def _vector_threads(flat: Flat, threads: int) -> int:
    """Threads of a kernel without products: up to one for every vector of the largest tensor."""
    work = max(prod(tensor.shape) for tensor in flat.tensors) // _VECTOR
    while threads < min(work, _MAX_VECTOR_THREADS):
        threads *= 2
    return threads


def padded(
    number: int, tensor: PlanTensor, readers: Sequence[FlatOp], computes: Mapping[int, Compute]
) -> tuple[int, int]:
    """Rows and columns that a matrix which ldmatrix reads takes in shared memory, zeros up to whole steps included.

    The inner dim is that of the columns of a left operand and of the rows of a right one.

    Args:
        number: The tensor.
        tensor: Its extents.
        readers: Operators that read it.
        computes: How operators are computed; a product that is not on tensor cores asks for whole steps as well.
    """
    rows, cols = tensor.rows, tensor.cols
    for op in readers:
        if isinstance(op, Product):
            compute = computes.get(op.result)
            warps = Warps(1, 1, 1) if compute is None or compute.warps is None else compute.warps
            packed = compute is not None and compute.packed
            if op.a == number and not packed:
                cols = max(cols, depth(tensor.cols, warps, packed=False))
            if op.b == number:
                rows = max(rows, depth(tensor.rows, warps, packed=packed))
    return rows, cols

"""Matrix products on tensor cores: which products are eligible, their warps, and results that stay in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from mirage_formal.codegen.planning.expand import FlatGraph
from mirage_formal.codegen.planning.layout import (
    ProductShape,
    can_pack,
    inner_extent,
)
from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Elementwise,
    FlatOp,
    Product,
    Reduce,
    defined_tensors,
    operands_of,
)
from mirage_formal.codegen.program.plan import Phase, PlanTensor
from mirage_formal.codegen.program.program import BinaryFn
from mirage_formal.codegen.program.register_layout import Warps
from mirage_formal.codegen.program.step import Multiplication, Operation
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

_VECTOR_BYTES: Final = 16


@dataclass(slots=True)
class MatrixProducts:
    """The matrix products of a kernel.

    Attributes:
        flat: The flattened block graph.
        inputs: The number of its inputs.
        readers: The operators that read each tensor.
        makers: The operator that defines each tensor.
        warps: For the result of each product on tensor cores, the grid of warps that computes it.
        packed: Results of products whose left operand comes from registers.
    """

    flat: FlatGraph
    inputs: int
    readers: Mapping[int, Sequence[FlatOp]]
    makers: Mapping[int, FlatOp]
    warps: dict[int, Warps] = field(default_factory=dict)
    packed: set[int] = field(default_factory=set)

    @property
    def run(self) -> int:
        """Return the vector width of a thread's reads in elements: 16 bytes of the kernel's smallest floating type.

        For a larger type a run is several reads, each of which leaves gaps between a warp's threads. Masks count only
        if the kernel has no other type.
        """
        sizes = {tensor.dtype.bytes for tensor in self.flat.tensors if tensor.dtype.floating}
        return _VECTOR_BYTES // min(sizes, default=DType.BOOL.bytes)

    @property
    def eligible(self) -> list[Product]:
        """Return the products that tensor cores can compute."""
        return [op for op in self.flat.ops if isinstance(op, Product) and self._is_eligible(op)]

    def share(self, chosen: Sequence[Warps]) -> None:
        """Assign warps, one ``Warps`` for each eligible product.

        Raises:
            UnsupportedError: There are more or fewer products.
        """
        ops, shapes = self.eligible, self.shapes
        if len(chosen) != len(ops):
            what = f"expected warps of {len(ops)} products, got {len(chosen)}"
            raise UnsupportedError(what, where="schedule", hint="take a schedule that was made for this kernel")
        self.warps = {op.result: warps for op, warps in zip(ops, chosen, strict=True)}
        self.packed = {
            op.result
            for op, shape, warps in zip(ops, shapes, chosen, strict=True)
            if shape.source >= 0 and can_pack(shapes[shape.source], chosen[shape.source], shape, warps)
        }

    @property
    def shapes(self) -> list[ProductShape]:
        """Return the properties of eligible products for the choice of warps."""
        ops = self.eligible
        numbers = {op.result: position for position, op in enumerate(ops)}
        return [self.shape(op, numbers, ops[:at]) for at, op in enumerate(ops)]

    def _is_eligible(self, op: Product) -> bool:
        """Return whether tensor cores can compute a product: its operands have one element type.

        Extents are padded with zeros to whole steps and tiles, in shared memory or when registers are packed.
        """
        return self.flat.tensors[op.a].dtype is self.flat.tensors[op.b].dtype

    def root(self, number: int) -> int | None:
        """Return the product whose shape and register layout a tensor shares; None if there is none."""
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
        """Return the accumulator that a product adds into directly: its only reader, a plain sum; None if none."""
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
        """Return the products whose results meet this product's result in an elementwise operator."""
        out: set[int] = set()
        for op in self.flat.ops:
            if isinstance(op, Elementwise) and len(op.operands) >= 2:
                roots = {self.root(n) for n in op.operands}
                if number in roots:
                    out |= {r for r in roots if r is not None and r != number}
        return out

    def reductions(self, number: int) -> int:
        """Return the number of reductions over the columns of a product's result that each iteration finishes."""
        last = len(self.flat.tensors[number].shape) - 1
        return sum(
            isinstance(op, Reduce) and op.dim == last and self.root(op.operand) == number for op in self.flat.ops
        )

    def shape(self, op: Product, numbers: Mapping[int, int], before: Sequence[Product]) -> ProductShape:
        """Return the properties of a product for the choice of warps.

        Args:
            op: The product.
            numbers: Positions of products by result.
            before: The products before it.
        """
        a, result = self.flat.tensors[op.a], self.flat.tensors[op.result]
        root = self.root(op.a)
        mine = numbers[op.result]
        same = next((one for one in reversed(before) if (one.a == op.a and root is None) or one.b == op.b), None)
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
            a.dtype.bytes,
            -1 if same is None else numbers[same.result],
            same is None or same.a == op.a,
        )


def products_of(flat: FlatGraph, inputs: int) -> MatrixProducts:
    """Return the products of a kernel, without warps.

    Args:
        flat: The flattened block graph.
        inputs: The number of its inputs.
    """
    readers: dict[int, list[FlatOp]] = {}
    for op in flat.ops:
        for n in operands_of(op):
            readers.setdefault(n, []).append(op)
    return MatrixProducts(flat, inputs, readers, {n: op for op in flat.ops for n in defined_tensors(op)})


def pad_operand(
    number: int, tensor: PlanTensor, readers: Sequence[FlatOp], computes: Mapping[int, Operation]
) -> tuple[int, int]:
    """Return the rows and columns of an operand matrix in shared memory, padded with zeros to whole ldmatrix steps.

    The inner dim is the columns of a left operand and the rows of a right one.

    Args:
        number: The tensor.
        tensor: Its extents.
        readers: The operators that read it.
        computes: The step that computes each operator; a product that is not on tensor cores needs whole steps as well.
    """
    rows, cols = tensor.rows, tensor.cols
    for op in readers:
        if isinstance(op, Product):
            compute = computes.get(op.result)
            warps, packed = Warps(1, 1, 1), False
            if isinstance(compute, Multiplication):
                warps, packed = compute.warps, compute.packed
            if op.a == number and not packed:
                cols = max(cols, inner_extent(tensor.cols, warps, packed=False))
            if op.b == number:
                rows = max(rows, inner_extent(tensor.rows, warps, packed=packed))
    return rows, cols

"""Register layouts for reductions over a batch dim: tensors as batches of matrices that are added up.

Kernels that combine partial results are of this kind: [parts, rows, columns] and [parts, rows, 1] are summed over the
parts. If all these tensors have matching layouts, everything but loads and stores is done in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from mirage_formal.codegen.planning.mma_selection import MatrixProducts
from mirage_formal.codegen.program.flat_graph import Accumulate, FlatOp, Reduce
from mirage_formal.codegen.program.plan import PlanTensor
from mirage_formal.codegen.program.register_layout import Axis, Distribution, batched_layout, replicated_digits

#: Elements of a batch in one thread beyond which more threads pay.
ENOUGH: Final = 64
#: The most elements of one tensor that a thread's registers hold, and the most that may pass through them: a tensor
#: that is read once is loaded and used a few vectors at a time.
_HELD: Final = 128
_PASSING: Final = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """The largest batch of matrices of a kernel.

    Attributes:
        plane: The batch dim; each position along it is a plane.
        extents: Planes, rows and columns.
        width: Columns of a contiguous run.
        most: The most elements of the whole batch that one thread may have.
    """

    plane: int
    extents: tuple[int, int, int]
    width: int
    most: int

    def part(self, tensor: PlanTensor, threads: int) -> Distribution | None:
        """Return the layout of a tensor that matches the layout of the whole batch.

        The tensor may have one plane, one row, and any number of columns. Columns that differ from the batch's are
        reduced before the two tensors meet.

        Returns:
            None if the tensor has other planes or rows, or if a thread would have too many elements. None also if it
            has more columns than the batch and some threads would only hold copies of other threads' elements.
        """
        if len(tensor.shape) <= self.plane + 1:
            return None
        mine = tensor.extents(self.plane)
        if any(n not in (1, extent) for n, extent in zip(mine[:2], self.extents, strict=False)):
            return None
        cols = None if mine[2] in (1, self.extents[2]) else (mine[2], run_length(mine[2], self.width))
        over = batched_layout(threads, self.plane, self.extents, self.width, ENOUGH, cols)
        if max(over.count, batched_layout(threads, self.plane, self.extents, self.width, ENOUGH).count) > self.most:
            return None
        if mine[2] > self.extents[2] and replicated_digits(over):
            return None
        axes = zip(Axis, mine, (*self.extents[:2], mine[2] if cols else self.extents[2]), strict=True)
        return over.only(frozenset(axis for axis, n, extent in axes if n == extent))


def run_length(cols: int, most: int) -> int:
    """Return the longest run length (8, 4, 2 or 1, at most ``most``) that divides a contiguous extent."""
    return next(w for w in (8, 4, 2, 1) if w <= most and cols % w == 0)


def largest_batch(products: MatrixProducts, width: int) -> Batch | None:
    """Return the largest batch that is reduced over its batch dim; None if there is none or products determine layouts.

    Args:
        products: The kernel's products.
        width: The most columns of a run.
    """
    if products.eligible:
        return None
    found = [stack for op in products.flat.ops if (stack := _reduced_batch(op, products, width)) is not None]
    return max(found, key=lambda stack: prod(stack.extents), default=None)


def _reduced_batch(op: FlatOp, products: MatrixProducts, width: int) -> Batch | None:
    """Return the batch that an operator reduces to one plane; None if it does not."""
    if not isinstance(op, Reduce | Accumulate) or op.dim is None or op.kept > 1:
        return None
    tensors = products.flat.tensors
    shape = tensors[op.operand].shape
    if op.dim >= len(shape) - 1:
        return None
    again = any(t.shape == shape and len(products.readers.get(n, ())) > 1 for n, t in enumerate(tensors))
    extents = tensors[op.operand].extents(op.dim)
    return Batch(op.dim, extents, run_length(extents[2], width), _HELD if again else _PASSING)

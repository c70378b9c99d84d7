"""Choice of register layouts: which thread of a block holds which elements of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from mirage_formal.codegen.planning.batched_reductions import Batch, run_length
from mirage_formal.codegen.planning.mma_selection import MatrixProducts
from mirage_formal.codegen.program.flat_graph import Accumulate, Elementwise, Reduce
from mirage_formal.codegen.program.plan import Phase, PlanTensor, register_axes
from mirage_formal.codegen.program.register_layout import (
    Axis,
    Distribution,
    Fragment,
    fragment_layout,
    separate_lanes,
    transposed_vector_layout,
    vector_layout,
    warp_layout,
)
from mirage_formal.graph.types import DType


@dataclass(frozen=True, slots=True)
class LayoutChooser:
    """The register layouts (distributions) of the tensors of one kernel.

    Attributes:
        products: Its matrix products, with their warps.
        tensors: Its tensors, with the placements that they have so far.
        threads: Threads of a block.
        stack: Its batch of matrices that is reduced over the batch dim, if it has one.
        turned: Inputs whose rows, and not columns, are contiguous in memory.
    """

    products: MatrixProducts
    tensors: Sequence[PlanTensor]
    threads: int
    stack: Batch | None = None
    turned: frozenset[int] = frozenset()

    @property
    def _apart(self) -> bool:
        """Return whether all operators are elementwise: no reductions and no matrix products.

        Then adjacent threads read and write adjacent columns, as many as there are.
        """
        return all(isinstance(op, Elementwise) for op in self.products.flat.ops)

    def stacked(self, number: int) -> Distribution | None:
        """Return the distribution of a tensor that is part of the batch of matrices; None for other tensors."""
        return None if self.stack is None else self.stack.part(self.tensors[number], self.threads)

    def hint(self, number: int, seen: set[int]) -> Distribution | None:
        """Return the distribution of a product that a tensor later meets elementwise; None if there is none."""
        seen.add(number)
        shape = (self.tensors[number].rows, self.tensors[number].cols)
        for op in self.products.readers.get(number, []):
            if isinstance(op, Elementwise) and op.result not in seen:
                for n in op.operands:
                    root = self.products.root(n)
                    if root is not None and root in self.products.warps and self._extents(n) == shape:
                        return self.fragment(root)
                result = self.tensors[op.result]
                if (result.rows, result.cols) == shape and (found := self.hint(op.result, seen)) is not None:
                    return found
        return None

    def fragment(self, product: int) -> Fragment:
        """Return the distribution of a product's accumulators."""
        tensor = self.tensors[product]
        return fragment_layout(self.threads, self.products.warps[product], tensor.rows, tensor.cols)

    def fresh(self, number: int) -> Distribution:
        """Return a distribution for a tensor whose layout no product determines."""
        if (stacked := self.stacked(number)) is not None:
            return stacked
        tensor = self.tensors[number]
        kept = self._columns_kept(number, set())
        if kept is None and self._in_columns(number):
            width = run_length(tensor.rows, self.products.run)
            return transposed_vector_layout(
                self.threads, tensor.rows, tensor.cols, width, wide=self._reduced(number, Axis.COL, set())
            )
        summed = kept is None and self._reduced(number, Axis.ROW, set())
        if summed and (found := self._warp_layout(number)) is not None:
            return found
        down = self._apart or summed
        width = self._width(number, kept)
        over = vector_layout(self.threads, tensor.rows, tensor.cols, width, kept=kept, wide=down)
        return separate_lanes(over) if self._reads_panels(number) and kept is None and not down else over

    def beside(self, number: int, operands: Sequence[int]) -> Distribution:
        """Return a distribution for a result that has no operand of its extents in registers.

        An operand of one row may be the result of a reduction over rows. Its threads then hold it where the reduction
        leaves it, if the layout allows that.
        """
        fresh = self.fresh(number)
        result = self.tensors[number]
        others = [vector_layout(self.threads, result.rows, result.cols, self._width(number), wide=True)]
        if (columns := self._warp_layout(number)) is not None:
            others.insert(0, columns)
        for n in operands:
            tensor = self.tensors[n]
            left = tensor.placement.registers is not None and tensor.rows == 1 < result.rows
            if left and register_axes(tensor, result, fresh) is None:
                for other in others:
                    if register_axes(tensor, result, other) is not None:
                        return other
        return fresh

    def _warp_layout(self, number: int) -> Distribution | None:
        """Return a distribution of whole columns to warps, beside products of warpgroups; None if there is none.

        Such products read panels, and other threads' registers are costly to reach: every exchange between warps needs
        a barrier, at which all warpgroups wait for each other.
        """
        tensor = self.tensors[number]
        return warp_layout(self.threads, tensor.rows, tensor.cols) if self._reads_panels(number) else None

    def _reads_panels(self, number: int) -> bool:
        """Return whether a tensor of the loop is computed, beside products of warpgroups, from tiles in panels."""
        tensor = self.tensors[number]
        beside = any(warps.warpgroup for warps in self.products.warps.values())
        moving = tensor.phase is Phase.LOOP and tensor.dtype.bytes == DType.FLOAT16.bytes
        return beside and moving and not self._saved(number, set())

    def fold_axis(self, number: int, dim: int, over: Distribution) -> Axis | None:
        """Return the axis of a distribution that a reduction runs along; None if it covers no axis as a whole."""
        shape = self.tensors[number].shape
        if dim == len(shape) - 1:
            return Axis.COL
        if over.plane is not None:
            return Axis.PLANE if dim == over.plane else None
        return Axis.ROW if self._over_rows(number, dim) else None

    def _over_rows(self, number: int, dim: int) -> bool:
        """Return whether a dim of a tensor makes up all of its rows."""
        tensor = self.tensors[number]
        return dim < len(tensor.shape) - 1 and tensor.shape[dim] == tensor.rows

    def _extents(self, number: int) -> tuple[int, int]:
        return self.tensors[number].rows, self.tensors[number].cols

    def _width(self, number: int, kept: int | None = None) -> int:
        """Return the length of a run of columns of a tensor; it divides the columns that a reduction keeps."""
        return run_length(gcd(self.tensors[number].cols, kept or 0), self.products.run)

    def _reduced(self, number: int, axis: Axis, seen: set[int]) -> bool:
        """Return whether a later reduction runs over rows, or over columns."""
        seen.add(number)
        for op in self.products.readers.get(number, []):
            if isinstance(op, Reduce | Accumulate) and op.dim is not None:
                last = op.dim == len(self.tensors[number].shape) - 1
                if last if axis is Axis.COL else self._over_rows(number, op.dim):
                    return True
            elif isinstance(op, Elementwise) and op.result not in seen and self._reduced(op.result, axis, seen):
                return True
        return False

    def _in_columns(self, number: int) -> bool:
        """Return whether a tensor is computed elementwise from inputs with contiguous rows, and is not saved.

        Threads then read and add up contiguous runs, where runs of columns would be single elements from the same banks
        of shared memory. Results lie the other way round in device memory.
        """
        shape = self.tensors[number].shape
        whole = [n for n in self._sources(number) if self.tensors[n].shape == shape]
        return bool(whole) and all(n in self.turned for n in whole) and not self._saved(number, set())

    def _sources(self, number: int) -> set[int]:
        """Return the tensors from which elementwise operators compute a tensor; the tensor itself if none does."""
        op = self.products.makers.get(number)
        if not isinstance(op, Elementwise):
            return {number}
        return {source for n in op.operands for source in self._sources(n)}

    def _saved(self, number: int, seen: set[int]) -> bool:
        """Return whether a tensor, or an elementwise function of it, is a result of the kernel."""
        seen.add(number)
        later = [op for op in self.products.readers.get(number, []) if isinstance(op, Elementwise)]
        return number in self.products.flat.outputs or any(
            op.result not in seen and self._saved(op.result, seen) for op in later
        )

    def _columns_kept(self, number: int, seen: set[int]) -> int | None:
        """Return the number of columns that a later partial reduction keeps; None if there is no such reduction."""
        seen.add(number)
        for op in self.products.readers.get(number, []):
            last = len(self.tensors[number].shape) - 1
            if isinstance(op, Reduce | Accumulate) and op.dim == last and op.kept > 1:
                return op.kept
            if (
                isinstance(op, Elementwise)
                and op.result not in seen
                and (found := self._columns_kept(op.result, seen)) is not None
            ):
                return found
        return None

"""A builder of block graphs that adds one operator at a time and shares common subexpressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mirage_formal.graph.edit import needed_items, renumber
from mirage_formal.graph.graph import BlockGraph, BlockOp, InputIterator, Op, OutputSaver, enumerate_results
from mirage_formal.graph.ops import NO_ATTRS, SPECS, Attrs, Family, OpKind
from mirage_formal.graph.rules import iterator_type, shared_results
from mirage_formal.graph.types import Dim3, DTensor, DType, Shape, STensor
from mirage_formal.support.errors import MirageError

#: Accumulators that join iterations element by element.
_OVER_THE_LOOP: Final = (OpKind.ACCUM_SUM, OpKind.ACCUM_MAX, OpKind.ACCUM_RESCALED_SUM)


class RewriteNotApplicable(MirageError):
    """A rewriting does not apply to a kernel; ``what`` gives the reason."""


class BlockGraphBuilder:
    """A builder of a block graph; an operator that it already holds is reused, not added again.

    Args:
        like: The block graph whose block dims, loop and reduction_dimx the new one takes.
        grid: The grid of the new block graph.
        loop: Its forloop_range.
        inputs: Its input iterators.
        operands: The device tensors that the iterators read.

    Raises:
        RewriteNotApplicable: An iterator does not fit the tensor that it reads.
    """

    def __init__(
        self, like: BlockGraph, grid: Dim3, loop: int, inputs: Sequence[InputIterator], operands: Sequence[DTensor]
    ) -> None:
        self._like = replace(like, grid=grid, forloop_range=loop, inputs=tuple(inputs), ops=(), outputs=())
        self.types: list[STensor] = []
        for iterator, tensor in zip(inputs, operands, strict=True):
            tile = iterator_type(grid, loop, iterator, tensor)
            if isinstance(tile, str):
                raise RewriteNotApplicable(tile)
            self.types.append(tile)
        self._ops: list[Op] = []
        self._known: dict[Op, int] = {}

    def emit(self, kind: OpKind, *operands: int, attrs: Attrs = NO_ATTRS) -> int:
        """Add an operator and return the number of its first result.

        Raises:
            RewriteNotApplicable: The operator does not accept these operands.
        """
        op = Op(kind, operands, attrs)
        if op not in self._known:
            results = shared_results(kind, attrs, tuple(self.types[n] for n in operands), self._like.context)
            if isinstance(results, str):
                raise RewriteNotApplicable(f"{kind.value}: {results}")
            self._known[op] = len(self.types)
            self._ops.append(op)
            self.types += results
        return self._known[op]

    def again(self, op: Op, operands: Sequence[int]) -> int:
        """Add an operator of another graph on these operands and return the number of its first result."""
        return self.emit(op.kind, *operands, attrs=op.attrs)

    def cast(self, number: int, dtype: DType) -> int:
        """Return the number of a tensor cast to an element type."""
        if self.types[number].dtype is dtype:
            return number
        return self.emit(OpKind.CAST, number, attrs=Attrs(dtype=dtype))

    def behind(self, number: int) -> tuple[tuple[int, ...], tuple[Op, ...]]:
        """Return the backward slice of a tensor: the input iterators that it reads and the operators that compute it.

        Returns:
            The input iterators, and the operators, which number those first and then their own results.
        """
        count = len(self._like.inputs)
        items = [
            ((first, op), range(first, first + op.results), op.operands)
            for first, op in enumerate_results(count, tuple(self._ops))
        ]
        kept = needed_items(items, (number,))
        read = sorted({number, *(n for _, op in kept for n in op.operands)} & set(range(count)))
        place = {n: i for i, n in enumerate(read)}
        ops: list[Op] = []
        for first, op in kept:
            ops.append(renumber(op, place))
            for n in range(first, first + op.results):
                place[n] = len(place)
        return tuple(read), tuple(ops)

    def shape(self, number: int) -> Shape:
        """Return the shape of a tile."""
        return self.types[number].shape

    def made(self, outputs: Sequence[OutputSaver]) -> BlockGraph:
        """Return the finished block graph with these output savers."""
        return replace(self._like, ops=tuple(self._ops), outputs=tuple(outputs))


def is_independent_along(ops: Sequence[BlockOp], dim: int) -> bool:
    """Return whether each result at one index of a dim depends only on operands at the same index of that dim.

    The operators contain no thread graphs.
    """
    for op in ops:
        assert isinstance(op, Op)
        spec, family = SPECS[op.kind], SPECS[op.kind].family
        if spec.elementwise or op.kind in (OpKind.ACCUM_SUM, OpKind.ACCUM_MAX):
            continue
        if family in (Family.REDUCTION, Family.NORM) and op.kind is not OpKind.RUNNING_MAX and op.attrs.dim != dim:
            continue
        return False
    return True


def can_merge_blocks(block: BlockGraph, axis: int, shapes: Sequence[Shape]) -> bool:
    """Return whether the same kernel on fewer blocks along a grid axis, with larger tiles, computes the same.

    This holds if three conditions hold. The axis splits one dim of each tensor that depends on it. No operator mixes
    elements at different indices of that dim. The results are concatenated along that dim.



    Args:
        block: A block graph without thread graphs.
        axis: The grid axis.
        shapes: The shapes of all its tensors.
    """
    along = [iterator.imap[axis] for iterator in block.inputs]
    for op in block.ops:
        assert isinstance(op, Op)
        try:
            along += [_merged_dim(op, along, shapes)] * op.results
        except RewriteNotApplicable:
            return False
    return all(along[saver.operand] == saver.omap[axis] is not None for saver in block.outputs)


def _merged_dim(op: Op, along: Sequence[int | None], shapes: Sequence[Shape]) -> int | None:
    """Return the dim of an operator's results that grows with the tiles of its operands; None if no dim grows.

    Raises:
        RewriteNotApplicable: The operator mixes elements along that dim.
    """
    mixed = RewriteNotApplicable(f"{op.kind.value} mixes what stands along a grid axis")
    dims = [along[n] for n in op.operands]
    found = {dim for dim in dims if dim is not None}
    if not found:
        return None
    last = len(shapes[op.operands[0]]) - 1
    if op.kind is OpKind.MATMUL:
        if tuple(dims) in ((last - 1, None), (None, last)):
            return max(found)
        raise mixed
    (dim, *others) = found
    if others or any(d is None and shapes[n][dim] > 1 for n, d in zip(op.operands, dims, strict=True)):
        raise mixed
    spec = SPECS[op.kind]
    if spec.elementwise or op.kind in _OVER_THE_LOOP:
        return dim
    over = last if op.attrs.dim is None else op.attrs.dim
    if over == dim or (op.kind is OpKind.CONCAT and None in dims):
        raise mixed
    return dim


__all__ = ["BlockGraphBuilder", "RewriteNotApplicable", "can_merge_blocks", "is_independent_along"]

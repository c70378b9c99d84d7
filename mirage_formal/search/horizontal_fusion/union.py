"""Several kernels on one grid as one: what they all read is loaded once, what they all compute is computed once.

The kernels of a union have the same grid, up to the order of its axes, and the same loop range. A kernel that reads
what another one of them writes takes the block's own tile of it, where the tile that it would read is that one, and
where the loop runs once: then an accumulator is no more than a step from inside the loop to behind it, so it is left
out and put in again where the united operators need it. A kernel whose loop runs once and that reads what others of
them write stands behind any loop: the largest elements of rows of a softmax behind the loop of its product. What else
it reads is carried there, if a space lists the largest value over a loop: of equal values it is that value. And what a
kernel carries behind its own loop may be what another one has written behind the same loop: x W + h U + b.

Nothing here is believed: what is united is a candidate like any other, to be proved.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from mirage_formal.errors import GraphError
from mirage_formal.graph.check import kernel_types, shared_bytes
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
)
from mirage_formal.graph.ops import SPECS, Family, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DType


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel for one result of a program.

    Attributes:
        reads: For each input iterator, the number of the program's tensor.
        block: What it does, without thread graphs, with one output saver.
        result: The number of the program's tensor that it writes.
        us: Estimated microseconds.
    """

    reads: tuple[int, ...]
    block: BlockGraph
    result: int
    us: float

    def behind(self, results: Container[int], *, carry: bool) -> bool:
        """Return whether it can stand behind the loop of kernels that write these tensors.

        Args:
            results: The tensors.
            carry: Whether it may read others as well.
        """
        read = [tensor in results for tensor in self.reads]
        return self.block.forloop_range == 1 and (any(read) if carry else all(read))

    @property
    def shape(self) -> tuple[Dim3, Dim3, int, int]:
        """Return the common launch parameters of a union's pieces; the grid up to the order of its axes."""
        x, y, z = sorted(self.block.grid, reverse=True)
        return (x, y, z), self.block.block, self.block.forloop_range, self.block.reduction_dimx


def permute_grid(piece: Piece, grid: Dim3) -> Iterator[Piece]:
    """The piece with its grid axes in every order that gives the grid.

    Where two axes split one dim their order has a meaning, and only the piece as it is has it.
    """
    block = piece.block
    maps = (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs))
    fixed = any(len(used) != len(set(used)) for used in ([d for d in dims if d is not None] for dims in maps))
    for x, y, z in [(0, 1, 2)] if fixed else permutations(range(3)):
        if (block.grid[x], block.grid[y], block.grid[z]) != grid:
            continue
        inputs = tuple(replace(i, imap=(i.imap[x], i.imap[y], i.imap[z])) for i in block.inputs)
        outputs = tuple(replace(s, omap=(s.omap[x], s.omap[y], s.omap[z])) for s in block.outputs)
        yield replace(piece, block=replace(block, grid=grid, inputs=inputs, outputs=outputs))


def fuse_horizontally(pieces: Sequence[Piece], outputs: Sequence[int], *, carry: bool = False) -> GraphDefined | None:
    """One kernel that does what the pieces do, or None if they do not fit together.

    Args:
        pieces: Kernels with one grid and loop range, or ``behind`` the others; one that reads another's result comes
            behind it.
        outputs: The tensors that it writes, in this order: results of the pieces.
        carry: Whether what the loop does not change may be brought behind it.
    """
    union = _Union(pieces[0].block, carry)
    if not all(union.add(piece) for piece in pieces):
        return None
    return union.kernel(outputs)


def united_graph(
    inputs: tuple[Input, ...], pieces: Sequence[Piece], outputs: Sequence[int], most_bytes: int, *, carry: bool
) -> KernelGraph | None:
    """The union of kernels as a graph; None if they do not fit together, or are not well-formed as one.

    Args:
        inputs: Of the program, which is all that the kernel may read.
        pieces: See ``fuse_horizontally``.
        outputs: See ``fuse_horizontally``.
        most_bytes: Shared memory that a block has.
        carry: See ``fuse_horizontally``.
    """
    kernel = fuse_horizontally(pieces, outputs, carry=carry)
    if kernel is None or any(tensor >= len(inputs) for tensor in kernel.operands):
        return None
    kernel = replace(kernel, graph=_with_masks(kernel.graph, [inputs[n].tensor.dtype for n in kernel.operands]))
    graph = KernelGraph(inputs, (kernel,), tuple(range(len(inputs), len(inputs) + len(outputs))))
    try:
        types = kernel_types(graph)
    except GraphError:
        return None
    return graph if shared_bytes(kernel.graph, tuple(types[i] for i in kernel.operands)) <= most_bytes else None


def _with_masks(block: BlockGraph, dtypes: Sequence[DType]) -> BlockGraph:
    """The block graph with the largest of one iteration in the place of sums of masks, which have none."""
    masks = [not dtype.floating for dtype in dtypes]
    ops: list[BlockOp] = []
    for op in block.ops:
        if isinstance(op, Op) and op.kind is OpKind.ACCUM_SUM and masks[op.operands[0]]:
            op = replace(op, kind=OpKind.ACCUM_MAX)
        ops.append(op)
        compared = isinstance(op, Op) and SPECS[op.kind].family is Family.COMPARISON
        number = isinstance(op, Op) and (op.kind is OpKind.SELECT or (op.attrs.dtype or DType.BOOL).floating)
        masks += [compared or (not number and masks[op.operands[0]])] * op.results
    return replace(block, ops=tuple(ops))


def _carried(block: BlockGraph) -> set[int]:
    """Input iterators that the loop does not change and that are only brought behind it."""
    found = {at for at, iterator in enumerate(block.inputs) if iterator.fmap is None}
    for op in block.ops:
        if not isinstance(op, Op) or op.kind is not OpKind.ACCUM_MAX:
            found.difference_update(op.operands)
    return found.difference(saver.operand for saver in block.outputs)


@dataclass(frozen=True, slots=True)
class _Node:
    """An operator of the united kernel, applied to nodes; for an input iterator, the tensor in place of operands."""

    what: Op | InputIterator
    operands: tuple[int, ...]


class _Union:
    """Operators of several block graphs, equal ones once."""

    def __init__(self, first: BlockGraph, carry: bool) -> None:
        self._first = first
        self._carry = carry
        self._once = first.forloop_range == 1
        self._nodes: list[_Node] = []
        self._numbers: dict[_Node, int] = {}
        self._written: dict[int, tuple[int, DimMap]] = {}  # tensors of the program: node and omap

    def add(self, piece: Piece) -> bool:
        """Take in a kernel; False if it does not fit to those that are there."""
        own: list[int] = []
        behind = self._once or piece.behind(self._written, carry=self._carry)
        carried = set() if behind else _carried(piece.block)
        for at, (tensor, iterator) in enumerate(zip(piece.reads, piece.block.inputs, strict=True)):
            if tensor in self._written:
                node, omap = self._written[tensor]
                if not (behind or at in carried) or self._mapped(iterator.imap) != omap:
                    return False
                own.append(node)
            else:
                plain = InputIterator(self._mapped(iterator.imap), None if behind else iterator.fmap)
                number = self._number(_Node(plain, (tensor,)))
                late = behind and not self._once
                own.append(self._number(_Node(Op(OpKind.ACCUM_MAX, ()), (number,))) if late else number)
        for op in piece.block.ops:
            if not isinstance(op, Op) or op.results != 1:
                return False
            operands = tuple(own[i] for i in op.operands)
            first = op.operands[0]
            known = first in carried and piece.reads[first] in self._written  # the block has it, behind the loop
            if known or (behind and op.kind in (OpKind.ACCUM_SUM, OpKind.ACCUM_MAX)):
                own.append(operands[0])
                continue
            if SPECS[op.kind].commutative:
                operands = tuple(sorted(operands))
            own.append(self._number(_Node(replace(op, operands=()), operands)))
        for saver in piece.block.outputs:
            self._written[piece.result] = (own[saver.operand], self._mapped(saver.omap))
        return True

    def kernel(self, outputs: Sequence[int]) -> GraphDefined | None:
        """The kernel that writes the tensors; None if an accumulator would read what is behind another one."""
        maker = _Maker(self._first)
        place: dict[int, int] = {}
        for number, node in enumerate(self._nodes):
            made = maker.iterator(node.what, node.operands[0]) if isinstance(node.what, InputIterator) else None
            if made is not None:
                place[number] = made
        for number, node in enumerate(self._nodes):
            if isinstance(node.what, Op):
                made = maker.op(node.what, [place[i] for i in node.operands])
                if made is None:
                    return None
                place[number] = made
        written = ((place[node], omap) for node, omap in (self._written[tensor] for tensor in outputs))
        return maker.kernel([OutputSaver(maker.behind(node), omap) for node, omap in written])

    def _mapped(self, dims: DimMap) -> DimMap:
        """A map without what it says of axes of extent 1."""
        x, y, z = (dim if extent > 1 else None for dim, extent in zip(dims, self._first.grid, strict=True))
        return x, y, z

    def _number(self, node: _Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
        return self._numbers[node]


class _Maker:
    """Writes a block graph; where the loop runs once, with accumulators where operators need them.

    Operators stand inside the loop as long as all their operands do.
    """

    def __init__(self, first: BlockGraph) -> None:
        self._first = first
        self._once = first.forloop_range == 1
        self._reads: list[int] = []
        self._iterators: list[InputIterator] = []
        self._ops: list[Op] = []
        self._after: list[bool] = []
        self._behind: dict[int, int] = {}

    def iterator(self, what: InputIterator, tensor: int) -> int:
        """A tile of a tensor of the program; all of them come before the operators."""
        self._reads.append(tensor)
        self._iterators.append(what)
        self._after.append(False)
        return len(self._after) - 1

    def op(self, what: Op, operands: Sequence[int]) -> int | None:
        """An operator; None if its operands may not stand where it needs them."""
        accumulates = SPECS[what.kind].accumulator
        after = any(self._after[i] for i in operands)
        if accumulates and after:
            return None
        if after:
            operands = [self.behind(i) for i in operands]
        return self._put(replace(what, operands=tuple(operands)), after or accumulates)

    def behind(self, tensor: int) -> int:
        """The tensor behind an accumulator; where the loop runs more than once, it has to be there."""
        if self._after[tensor] or not self._once:
            return tensor
        if tensor not in self._behind:
            self._behind[tensor] = self._put(Op(OpKind.ACCUM_SUM, (tensor,)), True)
        return self._behind[tensor]

    def _put(self, op: Op, after: bool) -> int:
        self._ops.append(op)
        self._after.append(after)
        return len(self._after) - 1

    def kernel(self, savers: Sequence[OutputSaver]) -> GraphDefined:
        """The kernel."""
        block = replace(self._first, inputs=tuple(self._iterators), ops=tuple(self._ops), outputs=tuple(savers))
        return GraphDefined(tuple(self._reads), block)


__all__ = ["Piece", "fuse_horizontally", "permute_grid", "united_graph"]

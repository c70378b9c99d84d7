"""Horizontal fusion of kernels on one grid: tensors that several of them read or compute are loaded or computed once.

The kernels of a union have the same grid, up to the order of its axes, and the same loop range.

- A kernel that reads the result of another one takes the block's own tile of it, if it would read that tile and the
  loop runs once. An accumulator over one iteration only moves a tensor from inside the loop to behind it, so it is
  left out, and inserted again where the united operators need it.
- A kernel whose loop runs once and that reads results of others stands behind any loop: for example, the row maxima of
  a softmax behind the loop of its product. Its other inputs are carried behind the loop, if a space lists the maximum
  over a loop: the maximum of equal values is that value.
- A tensor that a kernel carries behind its own loop may be one that another kernel has written behind the same loop,
  as in x W + h U + b.

Nothing is accepted here: a union is a candidate like any other, to be proved.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import count, permutations
from typing import NamedTuple

from msgspec import Struct, structs

from mirage_formal.graph.edit import number_in_order
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
from mirage_formal.graph.verifier import kernel_types, shared_bytes
from mirage_formal.rewrite.failure import none_on_match_failure


class ResultKernel(Struct, frozen=True):
    """A kernel for one result of a program.

    Attributes:
        reads: For each input iterator, the number of the program's tensor.
        block: Its block graph, without thread graphs, with one output saver.
        result: The number of the program's tensor that it writes.
        us: Estimated microseconds.
    """

    reads: tuple[int, ...]
    block: BlockGraph
    result: int
    us: float

    def behind(self, results: Container[int], *, carry: bool) -> bool:
        """Return whether the piece can stand behind the loop of kernels that write these tensors.

        Args:
            results: The tensors.
            carry: Whether it may read other tensors as well.
        """
        read = [tensor in results for tensor in self.reads]
        return self.block.forloop_range == 1 and (any(read) if carry else all(read))

    @property
    def shape(self) -> tuple[Dim3, Dim3, int, int]:
        """Return the common launch parameters of a union's pieces; the grid up to the order of its axes."""
        x, y, z = sorted(self.block.grid, reverse=True)
        return (x, y, z), self.block.block, self.block.forloop_range, self.block.reduction_dimx


def permute_grid(piece: ResultKernel, grid: Dim3) -> Iterator[ResultKernel]:
    """Yield the piece with its grid axes in every order that gives the grid.

    Where two axes split one dim, their order matters, and only the piece itself is yielded.
    """
    block = piece.block
    maps = (*(i.imap for i in block.inputs), *(s.omap for s in block.outputs))
    fixed = any(len(used) != len(set(used)) for used in ([d for d in dims if d is not None] for dims in maps))
    for x, y, z in [(0, 1, 2)] if fixed else permutations(range(3)):
        if (block.grid[x], block.grid[y], block.grid[z]) != grid:
            continue
        inputs = tuple(replace(i, imap=(i.imap[x], i.imap[y], i.imap[z])) for i in block.inputs)
        outputs = tuple(replace(s, omap=(s.omap[x], s.omap[y], s.omap[z])) for s in block.outputs)
        yield structs.replace(piece, block=replace(block, grid=grid, inputs=inputs, outputs=outputs))


def fuse_horizontally(
    pieces: Sequence[ResultKernel], outputs: Sequence[int], *, carry: bool = False
) -> GraphDefined | None:
    """Return one kernel that computes the results of all pieces, or None if they do not fit together.

    Args:
        pieces: Kernels with one grid and loop range, or ``behind`` the others; one that reads another's result comes
            behind it.
        outputs: The tensors that it writes, in this order: results of the pieces.
        carry: Whether loop-invariant inputs may be carried behind the loop.
    """
    union = _Union(pieces[0].block, carry)
    if not all(union.add(piece) for piece in pieces):
        return None
    return union.kernel(outputs)


@none_on_match_failure
def united_graph(
    inputs: tuple[Input, ...], pieces: Sequence[ResultKernel], outputs: Sequence[int], most_bytes: int, *, carry: bool
) -> KernelGraph | None:
    """Return the union of kernels as a graph; None if they do not fit together, or are not well-formed as one.

    Args:
        inputs: The program's inputs; the kernel may read no other tensors.
        pieces: See ``fuse_horizontally``.
        outputs: See ``fuse_horizontally``.
        most_bytes: Shared memory of a block.
        carry: See ``fuse_horizontally``.
    """
    kernel = fuse_horizontally(pieces, outputs, carry=carry)
    if kernel is None or any(tensor >= len(inputs) for tensor in kernel.operands):
        return None
    kernel = replace(kernel, graph=_replace_mask_sums(kernel.graph, [inputs[n].tensor.dtype for n in kernel.operands]))
    graph = KernelGraph(inputs, (kernel,), tuple(range(len(inputs), len(inputs) + len(outputs))))
    types = kernel_types(graph)
    return graph if shared_bytes(kernel.graph, tuple(types[i] for i in kernel.operands)) <= most_bytes else None


def _replace_mask_sums(block: BlockGraph, dtypes: Sequence[DType]) -> BlockGraph:
    """Return the block graph with each sum of a boolean mask over the loop replaced by a maximum.

    Masks have no sums.
    """
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


def _carried_inputs(block: BlockGraph) -> set[int]:
    """Return the loop-invariant input iterators that only ``accum_max`` reads, to carry them behind the loop."""
    found = {at for at, iterator in enumerate(block.inputs) if iterator.fmap is None}
    for op in block.ops:
        if not isinstance(op, Op) or op.kind is not OpKind.ACCUM_MAX:
            found.difference_update(op.operands)
    return found.difference(saver.operand for saver in block.outputs)


class _Node(NamedTuple):
    """Operator of the united kernel with its operand nodes, or input iterator with the program's tensor it reads."""

    what: Op | InputIterator
    operands: tuple[int, ...]


class _Union:
    """Value-numbered operators of several block graphs: equal ones are one node."""

    def __init__(self, first: BlockGraph, carry: bool) -> None:
        self._first = first
        self._carry = carry
        self._once = first.forloop_range == 1
        self._nodes: list[_Node] = []
        self._numbers: dict[_Node, int] = {}
        self._written: dict[int, tuple[int, DimMap]] = {}  # tensors of the program: node and omap

    def add(self, piece: ResultKernel) -> bool:
        """Add a kernel; return False if it does not fit the kernels added before."""
        own: list[int] = []
        behind = self._once or piece.behind(self._written, carry=self._carry)
        carried = set() if behind else _carried_inputs(piece.block)
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
        """Return the kernel that writes the tensors.

        Operators stand inside the loop as long as all their operands do. Where the loop runs once, accumulators are
        inserted where operators need them. None if an accumulator would read a result of another accumulator.
        """
        reads: dict[int, tuple[int, InputIterator]] = {}
        items: list[tuple[BlockOp, tuple[int]]] = []
        after: list[bool] = []
        moved: dict[int, int] = {}
        fresh = count(len(self._nodes))

        def behind(node: int) -> int:
            """Return the node behind an accumulator, inserted if the loop runs once; else the node itself."""
            if after[node] or not self._once:
                return node
            if node not in moved:
                moved[node] = next(fresh)
                items.append((Op(OpKind.ACCUM_SUM, (node,)), (moved[node],)))
            return moved[node]

        for number, (what, operands) in enumerate(self._nodes):
            if isinstance(what, InputIterator):
                reads[number] = operands[0], what
                after.append(False)
                continue
            late, accumulates = any(after[i] for i in operands), SPECS[what.kind].accumulator
            if late and accumulates:
                return None
            given = tuple(behind(i) for i in operands) if late else operands
            items.append((replace(what, operands=given), (number,)))
            after.append(late or accumulates)
        written = [self._written[tensor] for tensor in outputs]
        ends = [behind(node) for node, _ in written]
        ops, place = number_in_order(reads, items)
        savers = tuple(OutputSaver(place[end], omap) for end, (_, omap) in zip(ends, written, strict=True))
        inputs = tuple(iterator for _, iterator in reads.values())
        block = replace(self._first, inputs=inputs, ops=ops, outputs=savers)
        return GraphDefined(tuple(tensor for tensor, _ in reads.values()), block)

    def _mapped(self, dims: DimMap) -> DimMap:
        """Return a map without its entries for grid axes of extent 1."""
        x, y, z = (dim if extent > 1 else None for dim, extent in zip(dims, self._first.grid, strict=True))
        return x, y, z

    def _number(self, node: _Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
        return self._numbers[node]


__all__ = ["ResultKernel", "fuse_horizontally", "permute_grid", "united_graph"]

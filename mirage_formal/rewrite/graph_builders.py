"""Builders of kernel and block graphs that add one operator at a time and infer the types of its results.

A rewriting makes its new graph with a builder: it copies operators of the old graph onto tensors of the new one, or
emits others in their places. Equal operators on the same tensors are added once (common subexpression elimination)
unless a builder says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Final, Generic, TypeVar

from mirage_formal.graph.edit import eliminate_dead_code, needed_items, number_in_order
from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
)
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.type_rules import device_results, iterator_type, shared_results
from mirage_formal.graph.types import DTensor, DType, Shape, STensor
from mirage_formal.graph.verifier import block_outputs
from mirage_formal.rewrite.failure import MatchFailure

_T = TypeVar("_T", STensor, DTensor)
_ALL: Final = frozenset(OpKind)
#: The type rule of a level: the types of an operator's results, or a text with the fault.
_TypeRule = Callable[[OpKind, Attrs, tuple[_T, ...]], tuple[_T, ...] | str]


class GraphBuilder(Generic[_T]):
    """A builder of a graph of one level.

    Args:
        types: The types of the graph's inputs, or input iterators.
        rule: The type rule of the level.
        share: The operators that are added once.

    Attributes:
        types: The types of all tensors.
        ops: The operators.
        most: The limit on their number; None: there is none.
    """

    def __init__(self, types: Iterable[_T], rule: _TypeRule[_T], share: Container[OpKind] = _ALL) -> None:
        self.types: list[_T] = list(types)
        self.ops: list[KernelOp] = []
        self.most: int | None = None
        self._rule: _TypeRule[_T] = rule
        self._share = share
        self._known: dict[Op, int] = {}
        self._makers: dict[int, Op] = {}

    def emit(self, kind: OpKind, *operands: int, attrs: Attrs = NO_ATTRS) -> int:
        """Add an operator and return the number of its first result.

        Raises:
            MatchFailure: The operator does not accept these operands, or there are too many.
        """
        op = Op(kind, operands, attrs)
        if op in self._known:
            return self._known[op]
        results = self._rule(kind, attrs, tuple([self.types[n] for n in operands]))
        if isinstance(results, str):
            raise MatchFailure(f"{kind.value}: {results}")
        if len(self.ops) == self.most:
            raise MatchFailure(f"expected at most {self.most} operators")
        first = self.append(op, results)
        self._makers[first] = op
        if kind in self._share:
            self._known[op] = first
        return first

    def copy(self, op: Op, operands: Iterable[int]) -> int:
        """Add an operator of another graph on these operands and return the number of its first result."""
        return self.emit(op.kind, *operands, attrs=op.attrs)

    def place(self, op: Op, operands: Iterable[int]) -> range:
        """Add an operator of another graph on these operands and return the numbers of all its results."""
        first = self.copy(op, operands)
        return range(first, first + op.results)

    def cast(self, number: int, dtype: DType) -> int:
        """Return the number of a tensor cast to an element type."""
        if self.types[number].dtype is dtype:
            return number
        return self.emit(OpKind.CAST, number, attrs=Attrs(dtype=dtype))

    def shape(self, number: int) -> Shape:
        """Return the shape of a tensor."""
        return self.types[number].shape

    def maker(self, number: int) -> Op | None:
        """Return the operator whose first result a tensor is; None for inputs and results of graphs."""
        return self._makers.get(number)

    def append(self, op: KernelOp, results: Iterable[_T]) -> int:
        """Add an operator with results of these types and return the number of the first one; nothing is shared."""
        first = len(self.types)
        self.ops.append(op)
        self.types += results
        return first


class KernelGraphBuilder(GraphBuilder[DTensor]):
    """A builder of a kernel graph with these inputs."""

    def __init__(self, inputs: tuple[Input, ...], share: Container[OpKind] = _ALL) -> None:
        super().__init__((item.tensor for item in inputs), device_results, share)
        self._inputs = inputs

    def place(self, op: KernelOp, operands: Iterable[int]) -> range:
        """Add an operator of another graph, of any kind, on these operands and return the numbers of all its results.

        Raises:
            GraphError: A block graph does not accept these operands.
        """
        return super().place(op, operands) if isinstance(op, Op) else self.define(op.graph, operands)

    def define(self, block: BlockGraph, operands: Iterable[int]) -> range:
        """Add the kernel that a block graph defines on these operands and return the numbers of its results.

        Raises:
            GraphError: The block graph does not accept these operands.
        """
        op = GraphDefined(tuple(operands), block)
        first = self.append(op, block_outputs(block, tuple([self.types[n] for n in op.operands])))
        return range(first, first + op.results)

    def finish(self, outputs: Sequence[int]) -> KernelGraph:
        """Return the graph with these outputs, without operators that none of them depends on.

        Raises:
            MatchFailure: Two outputs are one tensor.
        """
        if len(set(outputs)) < len(outputs):
            raise MatchFailure("expected distinct outputs, got one tensor twice")
        return eliminate_dead_code(KernelGraph(self._inputs, tuple(self.ops), tuple(outputs)))


class BlockGraphBuilder(GraphBuilder[STensor]):
    """A builder of a block graph; input iterators may be added at any time.

    Args:
        like: The block graph whose grid, block dims, loop and reduction_dimx the new one takes.
        iterators: The first input iterators.
        tensors: The types of the device tensors that they read.

    Raises:
        MatchFailure: An iterator does not fit the tensor that it reads.
    """

    def __init__(
        self, like: BlockGraph, iterators: Iterable[InputIterator] = (), tensors: Iterable[DTensor] = ()
    ) -> None:
        super().__init__((), lambda kind, attrs, types: shared_results(kind, attrs, types, like.context))
        self._like = like
        self._iterators: dict[int, InputIterator] = {}
        for iterator, tensor in zip(iterators, tensors, strict=True):
            self.read(iterator, tensor)

    def read(self, iterator: InputIterator, tensor: DTensor) -> int:
        """Add an input iterator that reads a tensor of this type and return the number of its tile.

        Raises:
            MatchFailure: It does not fit the tensor.
        """
        tile = iterator_type(self._like.grid, self._like.forloop_range, iterator, tensor)
        if isinstance(tile, str):
            raise MatchFailure(tile)
        self.types.append(tile)
        self._iterators[len(self.types) - 1] = iterator
        return len(self.types) - 1

    def backward_slice(self, number: int) -> tuple[tuple[int, ...], tuple[Op, ...]]:
        """Return the input iterators that a tensor depends on, and the operators that compute it.

        The operators number these iterators first and then their own results.
        """
        kept = needed_items([(item, item[1], item[0].operands) for item in self._items()], (number,))
        read = sorted(self._iterators.keys() & {number, *(n for op, _ in kept for n in op.operands)})
        return tuple(read), number_in_order(read, kept)[0]

    def finish(self, savers: Iterable[OutputSaver]) -> BlockGraph:
        """Return the finished block graph with these output savers."""
        ops, place = number_in_order(self._iterators, self._items())
        outputs = tuple(replace(saver, operand=place[saver.operand]) for saver in savers)
        return replace(self._like, inputs=tuple(self._iterators.values()), ops=ops, outputs=outputs)

    def _items(self) -> list[tuple[Op, range]]:
        return [(op, range(first, first + op.results)) for first, op in self._makers.items()]


__all__ = ["BlockGraphBuilder", "GraphBuilder", "KernelGraphBuilder"]

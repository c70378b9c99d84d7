"""Hoisting of scaling factors out of the operands of products.

A factor that does not depend on the summed dim moves behind the product: matmul(A, B / r) = matmul(A, B) / r, as in
matmul(Q, rms_norm(K)), whose norm is over that dim. A factor that depends on the summed dim only moves to the other
operand: matmul(P, V / r) = matmul(P / r', V), where r' is r with its last dims exchanged, as in matmul(P, rms_norm(V)).
Either way the kernel keeps no copy of B / r in shared memory and multiplies from the tile that it has loaded. All
divisors were divisors before, so no new divisor must be nonzero.

No block operator transposes dims, so factors for other operands come from device memory, where a reshape transposes
them. A factor that an input iterator reads is used as it is; other factors are computed by a kernel that runs first.

A value is kept as a tensor and a list of factors not yet applied. They are applied at any operator that is neither a
product nor linear. A value that is the same in every iteration keeps its factors: it is computed before the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_formal.codegen.post_search_rewrites.transposed_factors import TransposedFactor, transpose_factor
from mirage_formal.codegen.target import Target
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import SPECS, Attrs, OpKind
from mirage_formal.graph.types import DType, broadcast
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure
from mirage_formal.rewrite.graph_builders import BlockGraphBuilder, KernelGraphBuilder


@dataclass(frozen=True, slots=True)
class _FactoredValue:
    """A value: the product of a tensor and factors that broadcast to it.

    Attributes:
        number: The tensor.
        factors: The factors.
        source: The operator and operands that compute the whole value, factors included; None: multiply the factors in.
        moving: Whether the value differs from iteration to iteration.
    """

    number: int
    factors: tuple[int, ...] = ()
    source: tuple[Op, tuple[int, ...]] | None = None
    moving: bool = False


@none_on_match_failure
def hoist_scales(graph: KernelGraph, target: Target | None = None) -> KernelGraph | None:
    """Return the graph with factors of its products' operands hoisted; the kernel is the last operator of the result.

    None if no operand of a product in the loop has a factor that another place can take.

    Sound: nothing rests on this rewriting; whoever uses its result has it proved equal to the graph.

    Args:
        graph: A well-formed graph of one graph-defined kernel.
        target: The GPU for which kernels that compute factors first are tiled; None: factors only move behind products.
    """
    return _FactorHoisting(graph, target).hoisted_graph()


class _FactorHoisting:
    def __init__(self, graph: KernelGraph, target: Target | None) -> None:
        (op,) = graph.ops
        assert isinstance(op, GraphDefined)
        self._graph, self._target = graph, target
        self._block = block = inline_blocks(op.graph)
        #: The kernels that compute factors first, and the operands of the new kernel.
        self._before = KernelGraphBuilder(graph.inputs, share=())
        self._operands = list(op.operands)
        self._new = BlockGraphBuilder(block, block.inputs, [self._before.types[n] for n in op.operands])
        self._exchanged: dict[TransposedFactor, int] = {}
        self._readers: dict[int, list[Op]] = {}
        for item in block.ops:
            assert isinstance(item, Op)
            for n in item.operands:
                self._readers.setdefault(n, []).append(item)
        self._moved = False

    def hoisted_graph(self) -> KernelGraph:
        """Return the graph with factors of product operands moved behind the products, or to the other operand.

        Raises:
            MatchFailure: No factor moves.
        """
        block = self._block
        values = [
            _FactoredValue(i, moving=iterator.fmap is not None or block.forloop_range == 1)
            for i, iterator in enumerate(block.inputs)
        ]
        for number, item in enumerate_results(len(block.inputs), block.ops):
            assert isinstance(item, Op)
            values += self._results(number, item, tuple(values[n] for n in item.operands))
        savers = [replace(saver, operand=self._plain(values[saver.operand])) for saver in block.outputs]
        if not self._moved:
            raise MatchFailure("no factor moves")
        results = self._before.define(self._new.finish(savers), self._operands)
        place = (*range(len(self._graph.inputs)), *results)
        return self._before.finish([place[n] for n in self._graph.outputs])

    def _results(self, number: int, item: Op, given: tuple[_FactoredValue, ...]) -> tuple[_FactoredValue, ...]:
        moving = any(value.moving for value in given) and not SPECS[item.kind].accumulator
        match item.kind:
            case OpKind.RMS_NORM:
                return (self._norm(item, given, moving),)
            case OpKind.MUL | OpKind.DIV if not self._behind(given) and not self._masks(given):
                return (self._arithmetic(item, given, moving),)
            case OpKind.SCALE if item.attrs.factor:  # 0 times a factor that is infinite would be NaN
                (x,) = given
                scaled = self._new.copy(item, (x.number,))
                return (_FactoredValue(scaled, x.factors, moving=moving),)
            case OpKind.MATMUL:
                return (self._product(number, item, given, moving),)
            case _:
                made = self._new.place(item, [self._plain(value) for value in given])
                return tuple(_FactoredValue(n, moving=moving) for n in made)

    def _behind(self, given: tuple[_FactoredValue, ...]) -> bool:
        """Return whether all operands lie after the loop, where a product is computed once only."""
        return all(self._new.types[value.number].after_loop for value in given) and self._block.forloop_range > 1

    def _masks(self, given: tuple[_FactoredValue, ...]) -> bool:
        """Return whether any operand is a boolean mask; a product of masks is their conjunction."""
        return not all(self._new.types[value.number].dtype.floating for value in given)

    def _norm(self, item: Op, given: tuple[_FactoredValue, ...], moving: bool) -> _FactoredValue:
        """Return x / sqrt(mean(x^2) + eps) * w as a value with factors."""
        assert item.attrs.dim is not None
        block = self._new
        x = self._plain(given[0])
        weights = tuple(self._plain(value) for value in given[1:])
        below = block.emit(OpKind.MEAN, block.emit(OpKind.SQUARE, x), attrs=Attrs(dim=item.attrs.dim))
        if item.attrs.eps is not None:
            below = block.emit(OpKind.SHIFT, below, attrs=Attrs(shift=item.attrs.eps))
        factors = [block.emit(OpKind.RECIPROCAL, block.emit(OpKind.SQRT, below))]
        base = x
        for weight in weights:
            if block.shape(weight) == block.shape(x):
                base = block.emit(OpKind.MUL, base, weight)
            else:
                factors.append(weight)
        return _FactoredValue(base, tuple(factors), (item, (x, *weights)), moving)

    def _arithmetic(self, item: Op, given: tuple[_FactoredValue, ...], moving: bool) -> _FactoredValue:
        """Return an elementwise product or quotient; the smaller operand becomes a factor if it broadcasts."""
        block = self._new
        left, right = given
        a, b = (block.shape(value.number) for value in given)
        if item.kind is OpKind.MUL and a != b and broadcast(a, b) == b:
            left, right, a, b = right, left, b, a
        if a == b or broadcast(a, b) != a:
            return _FactoredValue(block.copy(item, [self._plain(value) for value in given]), moving=moving)
        factor = self._plain(right)
        if item.kind is OpKind.DIV:
            factor = block.emit(OpKind.RECIPROCAL, factor)
        source = (item, tuple(self._plain(value) for value in given)) if not left.factors else None
        return _FactoredValue(left.number, (*left.factors, factor), source, moving)

    def _product(self, number: int, item: Op, given: tuple[_FactoredValue, ...], moving: bool) -> _FactoredValue:
        """Return the matrix product of two values, with their factors moved behind it or to the other operand."""
        block = self._new
        rank = len(block.shape(given[0].number))
        places = [
            self._places(value, summed, number) for value, summed in zip(given, (rank - 1, rank - 2), strict=True)
        ]
        numbers: list[int] = []
        for position, value in enumerate(given):
            behind, across = places[position]
            if behind or across:
                stay = tuple(factor for factor in value.factors if factor not in (*behind, *across))
                found = self._plain(replace(value, factors=stay, source=None))
            else:
                found = self._plain(value)
            numbers.append(self._times(found, places[1 - position][1]))
        left = tuple(factor for behind, _ in places for factor in behind)
        self._moved |= any(behind or across for behind, across in places)
        return _FactoredValue(block.copy(item, numbers), left, moving=moving)

    def _places(self, value: _FactoredValue, summed: int, number: int) -> tuple[list[int], list[int]]:
        """Return the factors of an operand that move behind its product, and those that move to the other operand."""
        behind: list[int] = []
        across: list[int] = []
        for factor in value.factors if value.moving else ():
            shape = self._new.shape(factor)
            if shape[summed] == 1:
                if not self._accumulated(number):
                    behind.append(factor)
            elif self._target is not None and max((*shape[:summed], *shape[summed + 1 :])) == 1:
                across.append(factor)
        return behind, [factor for factor in across if self._exchange(factor, summed) is not None]

    def _exchange(self, factor: int, summed: int) -> int | None:
        """Return the tile of an input iterator that reads a factor with its last dims exchanged; None if none can."""
        read, ops = self._new.backward_slice(factor)
        if len(read) != 1 or read[0] >= len(self._block.inputs):
            return None
        shape = self._before.shape(self._operands[read[0]])
        found = transpose_factor(self._block, read[0], ops, shape, summed)
        if found is not None and found not in self._exchanged:
            assert self._target is not None
            number = found.compute(self._before, self._operands[read[0]], self._block, self._target)
            self._operands.append(number)
            self._exchanged[found] = self._new.read(found.follows(self._block), self._before.types[number])
        return None if found is None else self._exchanged[found]

    def _times(self, number: int, factors: list[int]) -> int:
        """Return an operand multiplied, in float32, by factors that come from the other operand."""
        block = self._new
        dtype, found = block.types[number].dtype, number
        for factor in factors:
            rank = len(block.shape(factor))
            summed = rank - 1 if block.shape(factor)[rank - 1] > 1 else rank - 2
            read = self._exchange(factor, summed)
            assert read is not None
            found = block.emit(OpKind.MUL, block.cast(found, DType.FLOAT32), block.cast(read, DType.FLOAT32))
        return block.cast(found, dtype)

    def _accumulated(self, number: int) -> bool:
        """Return whether an accumulator reads a product.

        The sum over the loop then takes the product directly, which factors behind it would prevent.
        """
        return any(SPECS[reader.kind].accumulator for reader in self._readers.get(number, []))

    def _plain(self, value: _FactoredValue) -> int:
        """Return the value as one tensor, with its factors multiplied in."""
        if not value.factors:
            return value.number
        if value.source is not None:
            return self._new.copy(*value.source)
        found = value.number
        for factor in value.factors:
            found = self._new.emit(OpKind.MUL, found, factor)
        return found


__all__ = ["hoist_scales"]

"""Flattening of block graphs to primitive operators.

Thread graphs are inlined, macro operators (norms, accumulators) are expanded, and a loop of one iteration is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Concat,
    Elementwise,
    FlatOp,
    LoopConcat,
    MapFn,
    Product,
    Reduce,
    Repeat,
    RunningMax,
    defined_tensors,
    operands_of,
)
from mirage_formal.codegen.program.plan import Phase, PlanTensor
from mirage_formal.codegen.program.program import (
    BinaryFn,
    KernelFn,
    UnaryFn,
    binary_fn,
    unary_fn,
)
from mirage_formal.graph.edit import inline_blocks, needed_items
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import ARITHMETIC, COMPARISONS, FUNCTIONS, SPECS, Family, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape, broadcast
from mirage_formal.graph.verifier import block_types, kernel_types

#: The lowest finite number of float32, at which maxima of exponents begin.
_LOWEST: Final = Fraction(2**104 - 2**128)
#: No operand is a maximum.
NO_MAXIMA: Final[Set[int]] = frozenset()
_ROUND: Final = {DType.FLOAT16: KernelFn.ROUND_HALF, DType.BFLOAT16: KernelFn.ROUND_BFLOAT}


@dataclass(frozen=True, slots=True)
class FlatGraph:
    """A flattened block graph.

    Attributes:
        tensors: Its tensors, those of the input iterators first.
        ops: Its operators; every tensor that is no input is the result of one.
        outputs: For each output saver, the tensor that it writes.
        iterations: Iterations of the loop; 1 if there is none.
        makers: For each tensor, the position of its operator in the block graph with inlined thread graphs
            (``graph.edit.inline_blocks``); -1 for an input iterator's tensor.
    """

    tensors: tuple[PlanTensor, ...]
    ops: tuple[FlatOp, ...]
    outputs: tuple[int, ...]
    iterations: int
    makers: tuple[int, ...]


def flatten(op: GraphDefined, operands: tuple[DTensor, ...], maxima: Set[int] = NO_MAXIMA) -> FlatGraph:
    """Return the primitive operators of a graph-defined kernel, without dead operators.

    With a single iteration everything happens before the loop: accumulators are then identities or reductions.

    Args:
        op: The kernel.
        operands: Types of its operands.
        maxima: Positions of operands that are maxima; see ``maxima_of``.

    Raises:
        GraphError: The block graph is not well-formed on these operands.
    """
    block_types(op.graph, operands)
    block = inline_blocks(op.graph)
    types = block_types(block, operands)
    work = _Expansion(block)
    values: list[int] = []
    for iterator, tile in zip(block.inputs, types, strict=False):
        moving = iterator.fmap is not None and block.forloop_range > 1
        values.append(work.tensor(tile.shape, tile.dtype, Phase.LOOP if moving else Phase.BEFORE))
    number = len(values)
    for work.position, item in enumerate(block.ops):
        args = [values[n] for n in item.operands]
        assert isinstance(item, Op)
        values += work.operator(item, args, types[number].shape)
        number += item.results
    outputs = tuple(values[saver.operand] for saver in block.outputs)
    work.ops = _mark_finite(_fuse_reductions(work, outputs), maxima)
    return _prune(work, outputs, len(block.inputs))


@dataclass(slots=True)
class _Expansion:
    block: BlockGraph
    tensors: list[PlanTensor] = field(default_factory=list)
    ops: list[FlatOp] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    #: Tensors whose elements all equal one known number, with that number.
    constants: dict[int, Fraction] = field(default_factory=dict)
    position: int = -1

    @property
    def single(self) -> bool:
        return self.block.forloop_range == 1

    def tensor(self, shape: Shape, dtype: DType, phase: Phase) -> int:
        self.tensors.append(PlanTensor(shape, dtype, phase))
        self.makers.append(self.position)
        return len(self.tensors) - 1

    def _phase(self, operands: tuple[int, ...]) -> Phase:
        phases = {self.tensors[n].phase for n in operands}
        return next(p for p in (Phase.AFTER, Phase.LOOP, Phase.BEFORE) if p in phases)

    def map(
        self,
        fn: UnaryFn | BinaryFn | MapFn,
        *operands: int,
        constant: Fraction | None = None,
        dtype: DType | None = None,
    ) -> int:
        shape = self.tensors[operands[0]].shape
        for other in operands[1:]:
            shape = broadcast(shape, self.tensors[other].shape) or shape
        result = self.tensor(shape, dtype or self.tensors[operands[0]].dtype, self._phase(operands))
        self.ops.append(Elementwise(result, fn, operands, None if constant is None else float(constant)))
        return result

    def constant(self, like: int, number: Fraction) -> int:
        """Add a tensor of the shape of ``like`` whose elements all equal a number, and return its tensor number."""
        source = self.tensors[like]
        result = self.tensor(source.shape, source.dtype, source.phase)
        self.ops.append(Elementwise(result, MapFn.CONSTANT, (), float(number)))
        self.constants[result] = number
        return result

    def reduce(self, fn: BinaryFn, operand: int, dim: int, kept: int = 1) -> int:
        source = self.tensors[operand]
        shape = (*source.shape[:dim], kept, *source.shape[dim + 1 :])
        if shape == source.shape:
            return operand
        result = self.tensor(shape, source.dtype, source.phase)
        self.ops.append(Reduce(result, fn, operand, dim, kept))
        return result

    def scaled(self, operand: int, factor: Fraction) -> int:
        if not factor:
            return self.constant(operand, factor)  # 0 times what is infinite would be NaN
        return operand if factor == 1 else self.map(BinaryFn.MUL, operand, constant=factor)

    def shifted(self, operand: int, shift: Fraction) -> int:
        if operand in self.constants:
            return self.constant(operand, self.constants[operand] + shift)
        return self.map(BinaryFn.ADD, operand, constant=shift)

    def accumulate(
        self, fn: BinaryFn, operand: int, dim: int | None = None, kept: int = 1, factor: int | None = None
    ) -> int:
        if self.single:
            return operand if dim is None else self.reduce(fn, operand, dim, kept)
        source = self.tensors[operand]
        shape = source.shape if dim is None else (*source.shape[:dim], kept, *source.shape[dim + 1 :])
        result = self.tensor(shape, source.dtype, Phase.AFTER)
        self.ops.append(Accumulate(result, fn, operand, dim if shape != source.shape else None, kept, factor))
        return result

    def operator(self, op: Op, args: list[int], shape: Shape) -> list[int]:  # noqa: C901 - one case per operator
        kind, attrs, x = op.kind, op.attrs, args[0]
        source = self.tensors[x].shape
        last = len(source) - 1
        dim = last if attrs.dim is None else attrs.dim
        dimx = self.block.reduction_dimx
        match kind:
            case _ if kind in FUNCTIONS or kind is OpKind.LOGICAL_NOT:
                return [self.map(unary_fn(kind), x)]
            case _ if kind in ARITHMETIC:
                return [self.map(binary_fn(kind), *args, constant=attrs.value)]
            case _ if kind in COMPARISONS:
                return [self.map(binary_fn(kind), *args, constant=attrs.value, dtype=DType.BOOL)]
            case OpKind.SELECT:
                return [self.map(MapFn.SELECT, *args, constant=attrs.value, dtype=self.tensors[args[1]].dtype)]
            case OpKind.MATMUL:
                result = self.tensor(shape, self.tensors[x].dtype, self._phase(tuple(args)))
                self.ops.append(Product(result, x, args[1]))
                return [result]
            case OpKind.SCALE:
                assert attrs.factor is not None
                return [self.scaled(x, attrs.factor)]
            case OpKind.SHIFT:
                assert attrs.shift is not None
                return [self.shifted(x, attrs.shift)]
            case OpKind.CAST:
                assert attrs.dtype is not None
                return [self._cast(x, attrs.dtype)]
            case OpKind.SUM:
                return [self.reduce(BinaryFn.ADD, x, dim)]
            case OpKind.MEAN:
                return [self.scaled(self.reduce(BinaryFn.ADD, x, dim), Fraction(1, source[dim]))]
            case OpKind.MAX:
                return [self.reduce(BinaryFn.MAX, x, dim)]
            case OpKind.SUM_TO_DIMX:
                return [self.reduce(BinaryFn.ADD, x, dim, dimx)]
            case OpKind.RMS_NORM | OpKind.LAYER_NORM:
                return [self._norm(op, args, dim)]
            case OpKind.CONCAT:
                result = self.tensor(shape, self.tensors[x].dtype, self._phase(tuple(args)))
                self.ops.append(Concat(result, x, args[1], dim))
                return [result]
            case OpKind.REPEAT:
                if shape == source:
                    return [x]
                result = self.tensor(shape, self.tensors[x].dtype, self.tensors[x].phase)
                self.ops.append(Repeat(result, x, dim))
                return [result]
            case OpKind.RUNNING_MAX:
                return self._running(x, dim)
            case _:
                return [self._accumulator(op, args, last, dimx)]

    def _accumulator(self, op: Op, args: list[int], last: int, dimx: int) -> int:
        x = args[0]
        count = self.tensors[x].shape[-1] * self.block.forloop_range
        match op.kind:
            case OpKind.ACCUM_SUM:
                return self.accumulate(BinaryFn.ADD, x)
            case OpKind.ACCUM_MAX:
                # The maximum of equal values is the value: it may be read after the loop.
                return x if self.tensors[x].phase is Phase.BEFORE else self.accumulate(BinaryFn.MAX, x)
            case OpKind.ACCUM_SUM_LAST:
                return self.accumulate(BinaryFn.ADD, x, last)
            case OpKind.ACCUM_MEAN_LAST:
                return self.scaled(self.accumulate(BinaryFn.ADD, x, last), Fraction(1, count))
            case OpKind.ACCUM_RMS_LAST:
                total = self.accumulate(BinaryFn.ADD, self.map(OpKind.SQUARE, x), last)
                return self.map(OpKind.SQRT, self.scaled(total, Fraction(1, count)))
            case OpKind.ACCUM_SUM_TO_DIMX:
                return self.accumulate(BinaryFn.ADD, x, last if op.attrs.dim is None else op.attrs.dim, dimx)
            case OpKind.ACCUM_CONCAT:
                assert op.attrs.dim is not None
                return self._gather(x, op.attrs.dim)
            case OpKind.ACCUM_RESCALED_SUM:
                return self.accumulate(BinaryFn.ADD, x, factor=args[1])
            case OpKind.ACCUM_RESCALED_SUM_LAST:
                return self.accumulate(BinaryFn.ADD, x, last, factor=args[1])
            case _:
                raise AssertionError(op.kind)

    def _gather(self, x: int, dim: int) -> int:
        if self.single:
            return x
        source = self.tensors[x]
        shape = (*source.shape[:dim], source.shape[dim] * self.block.forloop_range, *source.shape[dim + 1 :])
        result = self.tensor(shape, source.dtype, Phase.AFTER)
        self.ops.append(LoopConcat(result, x, dim))
        return result

    def _running(self, x: int, dim: int) -> list[int]:
        largest = self.reduce(BinaryFn.MAX, x, dim)
        if self.single:
            # It begins at the lowest finite number, and the first iteration has nothing to rescale.
            largest = self.map(BinaryFn.MAX, largest, constant=_LOWEST)
            return [largest, self.constant(largest, Fraction(0))]
        source = self.tensors[largest]
        results = [self.tensor(source.shape, source.dtype, Phase.LOOP) for _ in range(2)]
        self.ops.append(RunningMax(results[0], results[1], largest))
        return results

    def _cast(self, x: int, dtype: DType) -> int:
        if dtype is self.tensors[x].dtype:
            return x
        if dtype is DType.FLOAT32 or not self.tensors[x].dtype.floating:
            # Values are float32 already, and 0 and 1 are exact; the element type matters to stored values only.
            result = self.map(BinaryFn.MUL, x, constant=Fraction(1))
        else:
            result = self.map(_ROUND[dtype], x)
        found = self.tensors[result]
        self.tensors[result] = PlanTensor(found.shape, dtype, found.phase)
        return result

    def _norm(self, op: Op, args: list[int], dim: int) -> int:
        x = args[0]
        count = Fraction(1, self.tensors[x].shape[dim])
        if op.kind is OpKind.LAYER_NORM:
            x = self.map(BinaryFn.SUB, x, self.scaled(self.reduce(BinaryFn.ADD, x, dim), count))
        below = self.scaled(self.reduce(BinaryFn.ADD, self.map(OpKind.SQUARE, x), dim), count)
        if op.attrs.eps is not None:
            below = self.map(BinaryFn.ADD, below, constant=op.attrs.eps)
        out = self.map(BinaryFn.MUL, x, self.map(KernelFn.RSQRT, below))
        if len(args) > 1:
            out = self.map(BinaryFn.MUL, out, args[1])
        return self.map(BinaryFn.ADD, out, args[2]) if len(args) > 2 else out


def _fuse_reductions(work: _Expansion, outputs: tuple[int, ...]) -> list[FlatOp]:
    """Fuse reductions with adjacent accumulators of the same kind.

    The sum of the iterations' sums is one sum, in any order. So a thread may keep its own part of it until the loop is
    done, and a tensor that is summed after the loop need not be kept whole in the loop.
    """
    readers: dict[int, int] = dict.fromkeys(outputs, 2)
    for op in work.ops:
        for n in operands_of(op):
            readers[n] = readers.get(n, 0) + 1
    out: list[FlatOp] = []
    made: dict[int, int] = {}
    for op in work.ops:
        maker = out[made[op.operand]] if isinstance(op, Accumulate | Reduce) and op.operand in made else None
        if maker is not None and readers[op.operand] == 1:  # type: ignore[union-attr]
            if isinstance(op, Accumulate) and isinstance(maker, Reduce) and _can_finish_after_loop(work, op, maker):
                op = replace(op, operand=maker.operand, dim=maker.dim, kept=maker.kept)
            elif isinstance(op, Reduce) and isinstance(maker, Accumulate) and _can_move_into_loop(work, op, maker):
                op = replace(maker, result=op.result, dim=op.dim, kept=op.kept)
        made.update(dict.fromkeys(defined_tensors(op), len(out)))
        out.append(op)
    return out


def _mark_finite(ops: Sequence[FlatOp], maxima: Set[int]) -> list[FlatOp]:
    """Mark subtractions of maxima from exponents as ``finite``, so that a maximum never counts as -inf."""
    exponents = {op.operands[0] for op in ops if isinstance(op, Elementwise) and op.fn is OpKind.EXP}
    tops = _find_maxima(ops, maxima)

    def changed(op: FlatOp) -> FlatOp:
        match op:
            case Elementwise(result, BinaryFn.SUB, (_, top)) if result in exponents and top in tops:
                return replace(op, finite=True)
            case _:
                return op

    return [changed(op) for op in ops]


def _find_maxima(ops: Iterable[FlatOp], known: Set[int]) -> set[int]:
    """Return the tensors that are maxima along a dim, or casts, repeats and concatenations of maxima.

    Running maxima are left out: they are finite anyway.
    """
    found = set(known)
    for op in ops:
        match op:
            case Elementwise(_, fn, (operand,), constant) if operand in found:
                if fn in _ROUND.values() or (fn, constant) == (BinaryFn.MUL, 1.0):
                    found.add(op.result)
            case Elementwise(_, BinaryFn.MAX, operands, None) if found.issuperset(operands):
                found.add(op.result)
            case Reduce(_, BinaryFn.MAX) | Accumulate(_, BinaryFn.MAX):
                found.add(op.result)
            case Repeat() | LoopConcat() if op.operand in found:
                found.add(op.result)
            case Concat() if found.issuperset((op.a, op.b)):
                found.add(op.result)
            case _:
                pass
    return found


@lru_cache(maxsize=256)
def maxima_of(graph: KernelGraph) -> frozenset[int]:
    """Return the tensors of a kernel graph that are maxima along a dim.

    Exponentials exp(x - m) of such a maximum m are 0 for x = -inf, even if the whole row is -inf, and so m. A row in
    which nothing is selected then has the sum 0, and not NaN. Over the reals nothing changes.



    Args:
        graph: A well-formed graph.
    """
    types = kernel_types(graph)
    found: set[int] = set()
    for number, op in enumerate_results(len(graph.inputs), graph.ops):
        if isinstance(op, Op):
            moved = SPECS[op.kind].family is Family.MOVE or op.kind is OpKind.CAST
            if op.kind is OpKind.MAX or (moved and found.issuperset(op.operands)):
                found.add(number)
            continue
        given = {position for position, operand in enumerate(op.operands) if operand in found}
        flat = flatten(op, tuple(types[operand] for operand in op.operands))
        tops = _find_maxima(flat.ops, given)
        found |= {number + position for position, output in enumerate(flat.outputs) if output in tops}
    return frozenset(found)


def subtracts_maximum(graph: KernelGraph, op: Op, result: int) -> bool:
    """Return whether an operator subtracts a maximum from exponents; see ``maxima_of``.

    Args:
        graph: A well-formed graph.
        op: One of its operators.
        result: The number of the operator's result.
    """
    if op.kind is not OpKind.SUB or op.operands[1] not in maxima_of(graph):
        return False
    readers = (other for other in graph.ops if result in other.operands)
    return any(isinstance(other, Op) and other.kind is OpKind.EXP for other in readers)


def _can_finish_after_loop(work: _Expansion, op: Accumulate, maker: Reduce) -> bool:
    """Return whether a reduction in the loop may be finished after it; loop-invariant ones are done before the loop."""
    return op.dim is None and op.fn is maker.fn and work.tensors[maker.result].phase is Phase.LOOP


def _can_move_into_loop(work: _Expansion, op: Reduce, maker: Accumulate) -> bool:
    """Return whether a reduction after the loop may be done inside it."""
    if maker.dim is not None or op.fn is not maker.fn:
        return False
    return maker.factor is None or work.tensors[maker.factor].shape[op.dim] == 1


def _prune(work: _Expansion, outputs: tuple[int, ...], inputs: int) -> FlatGraph:
    """Return the flattened block graph without dead operators, with tensors renumbered."""
    kept = needed_items([(op, defined_tensors(op), operands_of(op)) for op in work.ops], outputs)
    numbers = sorted({*range(inputs), *(n for op in kept for n in defined_tensors(op))})
    new = {old: position for position, old in enumerate(numbers)}
    return FlatGraph(
        tuple(work.tensors[n] for n in numbers),
        tuple(_renumber(op, new) for op in kept),
        tuple(new[n] for n in outputs),
        work.block.forloop_range,
        tuple(work.makers[n] for n in numbers),
    )


def _renumber(op: FlatOp, new: dict[int, int]) -> FlatOp:
    """Return the operator with other tensor numbers."""
    match op:
        case Elementwise():
            return Elementwise(new[op.result], op.fn, tuple(new[n] for n in op.operands), op.constant, op.finite)
        case Reduce():
            return Reduce(new[op.result], op.fn, new[op.operand], op.dim, op.kept)
        case Product():
            return Product(new[op.result], new[op.a], new[op.b])
        case Concat():
            return Concat(new[op.result], new[op.a], new[op.b], op.dim)
        case Repeat():
            return Repeat(new[op.result], new[op.operand], op.dim)
        case Accumulate():
            factor = None if op.factor is None else new[op.factor]
            return Accumulate(new[op.result], op.fn, new[op.operand], op.dim, op.kept, factor)
        case LoopConcat():
            return LoopConcat(new[op.result], new[op.operand], op.dim)
        case RunningMax():
            return RunningMax(new[op.largest], new[op.rescale], new[op.operand])

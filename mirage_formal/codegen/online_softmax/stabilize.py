"""The numerically stable form of summed exponentials (online softmax): no exponential of a positive number is computed.

A sum of exponentials becomes the sum of exp(s - m), where m is the largest s of its row. Inside a loop m is a running
maximum, and each partial sum is rescaled to it (Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018). Across kernels m is one more result, with which a later kernel weights partial sums. The factor exp(m) is kept
symbolically; it cancels in the quotient of two such sums and becomes + m under a logarithm. A graph in which neither
happens has no stable form. The logarithm of a single exponential, which is a sum of one term, is its argument.

Exponentials that are not summed stay, and so do silu and sigmoid: where exp(-x) is infinite in float32, 1 / (1 +
exp(-x)) is 0, which is right to within underflow, so they need no maximum.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirage_formal.codegen.online_softmax.normalization import is_log_softmax
from mirage_formal.codegen.online_softmax.partials import hoist_exponential, move_parts
from mirage_formal.codegen.online_softmax.rewrite_groups import DisjointSets, OperatorGroup, group_operators, producers
from mirage_formal.codegen.online_softmax.scaled_values import (
    GraphBuilder,
    Maxima,
    MaximumRequest,
    Origin,
    Shift,
    Value,
    block_builder,
    kernel_builder,
)
from mirage_formal.codegen.online_softmax.shapes import NoStableForm
from mirage_formal.graph.check import block_outputs, faults, kernel_types
from mirage_formal.graph.edit import eliminate_dead_code, inline_blocks
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
    enumerate_results,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.rules import iterator_type
from mirage_formal.graph.types import DimMap, DType, Shape, STensor
from mirage_formal.prove.abstract.domain import expressions
from mirage_formal.support.errors import MirageError

_ROUNDS: Final = 200
_MAXIMA: Final = (OpKind.MAX, OpKind.RUNNING_MAX)
_REARRANGED: Final = (OpKind.RESHAPE, OpKind.TRANSPOSE)


@dataclass(frozen=True, slots=True)
class NotStable:
    """The result where there is no stable form, or this rewriting does not find it."""

    reason: str


@dataclass(frozen=True, slots=True)
class StableGraph:
    """A stable form.

    Attributes:
        graph: The stable graph; the given graph if no exponential needs a maximum.
        runs: The given graph's kernel operators in topological order, grouped: operators that change together, and
            between these groups the unchanged operators.
    """

    graph: KernelGraph
    runs: tuple[OperatorGroup, ...]

    @property
    def changed(self) -> bool:
        """Return whether any operator changes."""
        return any(run.changed for run in self.runs)


class _HoistRequest(Exception):
    """A request to compute an exponential in the kernels that read it."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self.origin = origin


class _MoveRequest(Exception):
    """A request to lay partial results along another dim: the kernel that reads them, its iterator, the present dim."""

    def __init__(self, kernel: int, iterator: int, dim: int) -> None:
        super().__init__(kernel, iterator, dim)
        self.kernel = kernel
        self.iterator = iterator
        self.dim = dim


def stabilize(graph: KernelGraph) -> KernelGraph | NotStable:
    """Return the graph with running maxima under every summed exponential; see ``stabilize_with_groups``."""
    found = stabilize_with_groups(graph)
    return found if isinstance(found, NotStable) else found.graph


def stabilize_with_groups(graph: KernelGraph) -> StableGraph | NotStable:
    """Return the graph with running maxima under every summed exponential, and the operators that change.

    Sound: nothing rests on this rewriting; its result is well-formed, and the caller has it proved equal to the graph,
    or to its program. Kernels without such exponentials keep their thread graphs; those of other kernels are inlined,
    to be fused again (search/thread.py).

    Args:
        graph: A well-formed µGraph.

    Raises:
        GraphError: The graph is not well-formed.
    """
    kernel_types(graph)
    before = {inline_blocks(op.graph): op.graph for op in graph.ops if isinstance(op, GraphDefined)}
    flat = (replace(op, graph=inline_blocks(op.graph)) if isinstance(op, GraphDefined) else op for op in graph.ops)
    work = replace(graph, ops=tuple(flat))
    maxima: Maxima = {}
    # For each operator of the graph that is worked on, the given one that it comes from.
    sources, together = list(range(len(graph.ops))), DisjointSets(len(graph.ops))
    terms, settled, rounds = _terms(work), 0, 0
    while rounds < _ROUNDS:
        walk = _Traversal(work, maxima, terms)
        try:
            found = eliminate_dead_code(walk.run())
        except MaximumRequest as need:
            if need.dim in maxima.get(need.origin, frozenset()):
                return NotStable("a maximum over the dim that is summed does not make the sum stable")
            maxima[need.origin] = maxima.get(need.origin, frozenset()) | {need.dim}
        except (_HoistRequest, _MoveRequest) as change:
            kernel = _changed_kernel(work, change)
            other = _apply_request(work, change)
            if isinstance(other, NotStable):
                return other
            together.join(sources[k] for k in _with_readers(work, kernel))
            more = len(other.ops) - len(work.ops)
            sources[kernel + 1 : kernel + 1] = [sources[kernel]] * more
            # What was settled before stays as it was found; the rest lies otherwise now.
            work, terms = other, _terms(other)
            maxima = {origin: dims for origin, dims in maxima.items() if origin[1] < walk.settled}
        except NoStableForm as reason:
            return NotStable(str(reason))
        else:
            for kernels in walk.shared():
                together.join(sources[k] for k in kernels)
            form = _restore_thread_graphs(found, before) if maxima or walk.cancelled else graph
            changed = {sources[kernel] for kernel in (*walk.cancelled, *(kernel for _, kernel, _ in maxima))}
            return form if isinstance(form, NotStable) else StableGraph(form, group_operators(graph, together, changed))
        rounds = 0 if walk.settled > settled else rounds + 1
        settled = max(settled, walk.settled)
    return NotStable(f"expected a stable form of each part within {_ROUNDS} rounds")


def _changed_kernel(graph: KernelGraph, change: _HoistRequest | _MoveRequest) -> int:
    """Return the kernel operator whose results change."""
    if isinstance(change, _HoistRequest):
        return change.origin[1]
    return producers(graph)[graph.ops[change.kernel].operands[change.iterator]]


def _with_readers(graph: KernelGraph, kernel: int) -> list[int]:
    """Return a kernel operator and all operators that read a result of it."""
    made = producers(graph)
    return [kernel, *(k for k, op in enumerate(graph.ops) if any(made[n] == kernel for n in op.operands))]


def _restore_thread_graphs(found: KernelGraph, before: dict[BlockGraph, BlockGraph]) -> KernelGraph | NotStable:
    """Return the new graph, with the thread graphs of unchanged kernels restored."""
    wrong = faults(found)
    if wrong:
        return NotStable(wrong[0])
    ops = (replace(o, graph=before.get(o.graph, o.graph)) if isinstance(o, GraphDefined) else o for o in found.ops)
    return replace(found, ops=tuple(ops))


def _apply_request(graph: KernelGraph, change: _HoistRequest | _MoveRequest) -> KernelGraph | NotStable:
    """Return an equivalent graph that meets a request of the traversal."""
    try:
        if isinstance(change, _HoistRequest):
            return hoist_exponential(graph, change.origin[1], change.origin[2])
        return move_parts(graph, change.kernel, change.iterator, change.dim)
    except NoStableForm as reason:
        return NotStable(str(reason))


#: The terms of the tensors of a graph, and of each of its block graphs.
_Terms = tuple[tuple[Hashable, ...], dict[int, tuple[Hashable, ...]]]


def _terms(graph: KernelGraph) -> _Terms:
    """Return the abstract expression of every tensor; empty where there is none."""
    try:
        trace = expressions(graph)
    except MirageError:
        return (), {}
    return trace.tensors, dict(trace.blocks)


class _Traversal:
    """One traversal of a graph, with the maxima known so far to be needed."""

    def __init__(self, graph: KernelGraph, maxima: Maxima, terms: _Terms) -> None:
        self._graph = graph
        self._maxima = maxima
        self._tensors, self._blocks = terms
        self._level = kernel_builder(maxima)
        self._values: list[Value] = []
        #: The number of leading operators after which no later one reads a tensor with a shift or plain exponentials.
        self.settled = 0
        self.cancelled: set[int] = set()  # kernel operators in which an exponential and a logarithm cancel
        self._last = {n: index for index, op in enumerate(graph.ops) for n in op.operands}
        self._last |= dict.fromkeys(graph.outputs, len(graph.ops))

    def run(self) -> KernelGraph:
        """Return the new graph, before dead operators are removed.

        Raises:
            MaximumRequest, _HoistRequest, _MoveRequest: The traversal must start again.
            NoStableForm: There is no stable form.
        """
        graph, level = self._graph, self._level
        for index, item in enumerate(graph.inputs):
            level.types.append(item.tensor)
            self._values.append(Value(index))
        for index, op in enumerate(graph.ops):
            if isinstance(op, GraphDefined):
                results = self._block(index, op)
            else:
                results = self._op(index, op)
                self.cancelled |= {index} if level.cancelled else set()
            self._values += results
            if not any(
                v.shift is not None or v.raw for n, v in enumerate(self._values) if self._last.get(n, 0) > index
            ):
                self.settled = index + 1
        for number in graph.outputs:
            if self._values[number].shift is not None:
                raise NoStableForm("a sum of exponentials is a result of the program, not divided by another")
        if level.incomplete:
            raise NoStableForm("a running maximum over the loop alone needs a dim of extent 1")
        outputs = tuple(self._values[n].number for n in graph.outputs)
        return KernelGraph(graph.inputs, tuple(level.ops), outputs)

    def shared(self) -> list[list[int]]:
        """Return, after the traversal, sets of an operator that writes a multiple of exp(shift) and its readers."""
        made = producers(self._graph)
        shifted = {made[n] for n, value in enumerate(self._values) if value.shift is not None}
        return [_with_readers(self._graph, kernel) for kernel in sorted(shifted)]

    def _op(self, index: int, op: Op) -> list[Value]:
        """Return the results of a predefined kernel operator."""
        operands = tuple(self._values[n] for n in op.operands)
        key = self._tensors[op.operands[0]] if self._tensors else ("exp", index)
        self._level.cancelled = False
        try:
            found = self._level.apply(op, operands, ("exp", index, -1), key)
        except MaximumRequest as need:
            if self._crosses(need):
                raise _HoistRequest(need.origin) from None
            raise
        bounded = _is_bounded_exponential(len(self._graph.inputs), self._graph.ops, op) or (
            op.kind is OpKind.EXP and is_log_softmax(key)
        )
        if op.kind in _REARRANGED:
            found = (self._renamed(found[0], ("out", index, 0)),)
        return list(_mark_summable(found) if bounded else found)

    def _crosses(self, need: MaximumRequest) -> bool:
        """Return whether a sum goes across the blocks that compute an exponential."""
        kind, kernel, number = need.origin
        op = self._graph.ops[kernel]
        if kind != "exp" or not isinstance(op, GraphDefined):
            return False
        tensor = len(op.graph.inputs) + sum(item.results for item in op.graph.ops[:number])
        return any(
            extent > 1 and dim == need.dim
            for saver in op.graph.outputs
            if saver.operand == tensor
            for dim, extent in zip(saver.omap, op.graph.grid, strict=True)
        )

    def _renamed(self, value: Value, origin: Origin) -> Value:
        """Return the value with a shift under a new origin, whose dims are those of the value in its present layout."""
        if value.shift is None:
            return value
        shift = replace(value.shift, origin=origin)
        if origin in self._maxima:
            return replace(self._level.rebased(value.number, shift, moving=False), raw=value.raw, lost=value.lost)
        return replace(value, shift=shift)

    def _block(self, index: int, op: GraphDefined) -> list[Value]:
        """Return the results of a graph-defined kernel, which gets further iterators and results for shifts."""
        block = op.graph
        sources = [self._values[n] for n in op.operands]
        reads = [(source.number, iterator) for source, iterator in zip(sources, block.inputs, strict=True)]
        shifts: dict[tuple[int, InputIterator], int] = {}
        for position, source in enumerate(sources):
            if source.shift is not None:
                place = (source.shift.tensor, self._follows(index, position, source, block))
                if place not in shifts:
                    shifts[place] = len(reads)
                    reads.append(place)
        tiles: list[STensor] = []
        for number, iterator in reads:
            tile = iterator_type(block.grid, block.forloop_range, iterator, self._level.types[number])
            if isinstance(tile, str):
                raise NoStableForm(tile)
            tiles.append(tile)
        level = block_builder(block.context, self._maxima, tiles)
        moving = [iterator.fmap is not None and block.forloop_range > 1 for _, iterator in reads]
        values: list[Value] = []
        for position, source in enumerate(sources):
            if source.shift is None:
                values.append(Value(position, raw=source.raw, moving=moving[position], lost=source.lost))
            else:
                read = shifts[source.shift.tensor, self._follows(index, position, source, block)]
                # Values that share a shift share its name, so that one maximum is taken for all.
                shift = Shift(read, ("in", index, read), source.shift.key, moving=moving[read])
                values.append(self._loaded(position, source, shift, moving[position], level))
        level.values.update((value.number, value) for value in values)
        for number, inner in enumerate(block.ops):
            assert isinstance(inner, Op)
            values += self._inner(index, number, inner, values, level, block)
        self.cancelled |= {index} if level.cancelled else set()
        if level.incomplete:
            self._level.incomplete |= level.incomplete
        return self._saved(index, op, values, level, reads)

    def _follows(self, index: int, position: int, source: Value, block: BlockGraph) -> InputIterator:
        """Return the input iterator of a shift, which splits the dims that the iterator of its value splits."""
        assert source.shift is not None
        iterator = block.inputs[position]
        rest = list(self._level.shape(source.shift.tensor))

        def cut(dim: int | None, extent: int) -> int | None:
            if dim is None or rest[dim] == 1:
                return None
            if rest[dim] % extent:
                raise _MoveRequest(index, position, dim)
            rest[dim] //= extent
            return dim

        x, y, z = (cut(dim, extent) for dim, extent in zip(iterator.imap, block.grid, strict=True))
        return InputIterator((x, y, z), cut(iterator.fmap, block.forloop_range))

    def _loaded(self, position: int, source: Value, shift: Shift, moving: bool, level: GraphBuilder[STensor]) -> Value:
        """Return the tile of an input iterator as a value whose shift is the tile of another iterator."""
        if shift.origin not in self._maxima:
            return Value(position, shift, source.raw, moving, source.lost)
        for dim, (whole, part) in enumerate(zip(level.shape(position), level.shape(shift.tensor), strict=True)):
            if part not in (1, whole):
                raise _MoveRequest(shift.origin[1], position, dim)
        return level.rebased(position, shift, moving)

    def _inner(
        self, index: int, number: int, op: Op, values: list[Value], level: GraphBuilder[STensor], block: BlockGraph
    ) -> tuple[Value, ...]:
        """Return the results of a block operator."""
        operands = tuple(values[n] for n in op.operands)
        terms = self._blocks.get(index, ())
        key = terms[op.operands[0]] if terms else ("exp", index, number)
        try:
            found = level.apply(op, operands, ("exp", index, number), key)
        except MaximumRequest as need:
            if need.origin[0] == "exp" and need.origin[1] != index:
                raise _HoistRequest(need.origin) from None
            raise
        bounded = _is_bounded_exponential(len(block.inputs), block.ops, op) or (
            op.kind is OpKind.EXP and is_log_softmax(key)
        )
        return _mark_summable(found) if bounded else found

    def _saved(
        self,
        index: int,
        op: GraphDefined,
        values: list[Value],
        level: GraphBuilder[STensor],
        reads: list[tuple[int, InputIterator]],
    ) -> list[Value]:
        """Return the device tensors of a graph-defined kernel, those of shifts last."""
        block, outer = op.graph, self._level
        savers = [replace(saver, operand=values[saver.operand].number) for saver in block.outputs]
        places: dict[tuple[int, DimMap], int] = {}
        for saver in block.outputs:
            shift = values[saver.operand].shift
            if shift is not None:
                # Rounded to the program's type it would not be the number that was subtracted.
                place = (level.cast(shift.tensor, DType.FLOAT32), saver.omap)
                if place not in places:
                    places[place] = len(savers)
                    savers.append(OutputSaver(*place))
        ops: list[BlockOp] = [item for item in level.ops if isinstance(item, Op)]
        made = replace(block, inputs=tuple(iterator for _, iterator in reads), ops=tuple(ops), outputs=tuple(savers))
        operands = tuple(number for number, _ in reads)
        first = len(outer.types)
        outer.types += block_outputs(made, tuple(outer.types[n] for n in operands))
        outer.ops.append(GraphDefined(operands, made))
        results: list[Value] = []
        for r, saver in enumerate(block.outputs):
            value = values[saver.operand]
            if value.shift is None:
                results.append(Value(first + r, raw=value.raw, lost=value.lost))
                continue
            result = places[level.cast(value.shift.tensor, DType.FLOAT32), saver.omap]
            # Values share the maxima of a shift unless it lies otherwise than they do.
            alike = _broadcasts(outer.shape(first + r), outer.shape(first + result))
            origin = ("out", index, result if alike else r)
            shift = Shift(first + result, origin, value.shift.key)
            results.append(self._renamed(Value(first + r, shift, value.raw, lost=value.lost), origin))
        return results


def _broadcasts(whole: Shape, part: Shape) -> bool:
    """Return whether a shift broadcasts to its value, element by element."""
    return all(kept in (1, extent) for extent, kept in zip(whole, part, strict=True))


def _is_bounded_exponential(inputs: int, ops: Sequence[KernelOp | BlockOp], op: Op) -> bool:
    """Return whether an operator yields exponentials of differences from their maximum, which are at most 1.

    The same holds for a masked selection, if the maximum is over the scores selected by the same masks.


    """
    if op.kind not in (OpKind.EXP, OpKind.SELECT):
        return False
    made = {first + r: (item, r) for first, item in enumerate_results(inputs, ops) for r in range(item.results)}

    def maker(number: int, *kinds: OpKind) -> Op | None:
        """Return the operator of one of these kinds whose first result this is; None if there is none."""
        item, result = made.get(number, (None, 0))
        return item if isinstance(item, Op) and item.kind in kinds and not result else None

    def uncast(number: int) -> int:
        """Return the operand of a chain of casts; the tensor itself if no cast produces it."""
        cast = maker(number, OpKind.CAST)
        return number if cast is None else uncast(cast.operands[0])

    def conjuncts(mask: int) -> set[int]:
        """Return the masks whose conjunction a mask is."""
        both = maker(mask, OpKind.MUL)
        return {mask} if both is None else set().union(*map(conjuncts, both.operands))

    masks: set[int] = set()
    exponential: Op | None = op
    while exponential is not None and exponential.kind in (OpKind.SELECT, OpKind.SCALE):
        if exponential.kind is OpKind.SELECT:
            if exponential.attrs.value != 0:
                return False
            masks |= conjuncts(exponential.operands[0])
        exponential = maker(uncast(exponential.operands[-1]), OpKind.EXP, OpKind.SELECT, OpKind.SCALE)
    if exponential is None:
        return False
    difference = maker(exponential.operands[0], OpKind.SUB)
    if difference is None:
        return False
    scores, top = (uncast(number) for number in difference.operands)
    while (largest := maker(top, *_MAXIMA, OpKind.SELECT)) is not None:
        top = uncast(largest.operands[-1])
        if largest.kind is OpKind.SELECT:
            return top == scores and largest.attrs.value is not None and masks == conjuncts(largest.operands[0])
        if top == scores:
            return True
    return False


def _mark_summable(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the values marked as safe to sum without a maximum."""
    return tuple(replace(value, raw=frozenset()) for value in values)


__all__ = ["NotStable", "StableGraph", "stabilize", "stabilize_with_groups"]

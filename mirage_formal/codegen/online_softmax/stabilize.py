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
from functools import lru_cache, partial
from typing import Final

from mirage_formal.codegen.online_softmax.rewrite_groups import DisjointSets, OperatorGroup, group_operators, producers
from mirage_formal.codegen.online_softmax.scaled_values import (
    ChangeRequest,
    Maxima,
    MaximumRequest,
    Origin,
    RestartTraversal,
    ScaledValue,
    Shift,
    ValueRules,
)
from mirage_formal.codegen.online_softmax.stabilization_preparation import hoist_exponential, move_partial_results
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    enumerate_results,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DimMap, DType, Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.rewrite.failure import MatchFailure
from mirage_formal.rewrite.graph_builders import BlockGraphBuilder, KernelGraphBuilder
from mirage_formal.support.errors import MirageError

_ROUNDS: Final = 200


@dataclass(frozen=True, slots=True)
class NoStableForm:
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


def stabilize(graph: KernelGraph) -> KernelGraph | NoStableForm:
    """Return the graph with running maxima under every summed exponential; see ``stabilize_with_groups``."""
    found = stabilize_with_groups(graph)
    return found if isinstance(found, NoStableForm) else found.graph


@lru_cache(maxsize=64)
def stable_form(graph: KernelGraph) -> KernelGraph:
    """Return the graph that kernels are generated from: its form with running maxima, or itself if it has none."""
    form = stabilize(graph)
    return form if isinstance(form, KernelGraph) else graph


def stabilize_with_groups(graph: KernelGraph) -> StableGraph | NoStableForm:
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
    try:
        return _find_stable_form(graph)
    except MatchFailure as reason:
        return NoStableForm(str(reason))


def _find_stable_form(graph: KernelGraph) -> StableGraph:
    before = {inline_blocks(op.graph): op.graph for op in graph.ops if isinstance(op, GraphDefined)}
    flat = (replace(op, graph=inline_blocks(op.graph)) if isinstance(op, GraphDefined) else op for op in graph.ops)
    work = replace(graph, ops=tuple(flat))
    maxima: Maxima = {}
    # For each operator of the graph that is worked on, the given one that it comes from.
    sources, together = list(range(len(graph.ops))), DisjointSets(len(graph.ops))
    terms, settled, rounds = _terms(work), 0, 0
    while rounds < _ROUNDS:
        walk = _Traversal(work, maxima, terms)
        match walk.run():
            case MaximumRequest(origin, dim):
                if dim in maxima.get(origin, frozenset()):
                    raise MatchFailure("a maximum over the dim that is summed does not make the sum stable")
                maxima[origin] = maxima.get(origin, frozenset()) | {dim}
            case ChangeRequest(kernel, change):
                other = change(work)
                together.join(sources[k] for k in _with_readers(work, kernel))
                sources[kernel + 1 : kernel + 1] = [sources[kernel]] * (len(other.ops) - len(work.ops))
                # What was settled before stays as it was found; the rest lies otherwise now.
                work, terms = other, _terms(other)
                maxima = {origin: dims for origin, dims in maxima.items() if origin[1] < walk.settled}
            case None:
                for kernels in walk.shared():
                    together.join(sources[k] for k in kernels)
                form = _restore_thread_graphs(walk.graph(), before) if maxima or walk.cancelled else graph
                changed = {sources[kernel] for kernel in (*walk.cancelled, *(kernel for _, kernel, _ in maxima))}
                return StableGraph(form, group_operators(graph, together, changed))
        rounds = 0 if walk.settled > settled else rounds + 1
        settled = max(settled, walk.settled)
    raise MatchFailure(f"expected a stable form of each part within {_ROUNDS} rounds")


def _with_readers(graph: KernelGraph, kernel: int) -> list[int]:
    """Return a kernel operator and all operators that read a result of it."""
    made = producers(graph)
    return [kernel, *(k for k, op in enumerate(graph.ops) if any(made[n] == kernel for n in op.operands))]


def _restore_thread_graphs(found: KernelGraph, before: dict[BlockGraph, BlockGraph]) -> KernelGraph:
    """Return the new graph, with the thread graphs of unchanged kernels restored."""
    ops = (replace(o, graph=before.get(o.graph, o.graph)) if isinstance(o, GraphDefined) else o for o in found.ops)
    return replace(found, ops=tuple(ops))


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
        self._new = KernelGraphBuilder(graph.inputs)
        makers = {n: op for n, op in enumerate_results(len(graph.inputs), graph.ops) if isinstance(op, Op)}
        self._rules = ValueRules(self._new, None, maxima, makers)
        self._values: list[ScaledValue] = []
        #: The number of leading operators after which no later one reads a tensor with a shift or plain exponentials.
        self.settled = 0
        self.cancelled: set[int] = set()  # kernel operators in which an exponential and a logarithm cancel
        self._last = {n: index for index, op in enumerate(graph.ops) for n in op.operands}
        self._last |= dict.fromkeys(graph.outputs, len(graph.ops))

    def run(self) -> MaximumRequest | ChangeRequest | None:
        """Visit all operators; return a request if the traversal must start again, else None.

        Raises:
            MatchFailure: There is no stable form.
        """
        try:
            self._run()
        except RestartTraversal as restart:
            return restart.request
        return None

    def _run(self) -> None:
        graph = self._graph
        self._values += [ScaledValue(index) for index in range(len(graph.inputs))]
        for index, op in enumerate(graph.ops):
            if isinstance(op, GraphDefined):
                results = self._block(index, op)
            else:
                self._rules.cancelled = False
                results = list(self._visit(self._rules, op, self._values, ("exp", index, -1)))
                if op.kind in (OpKind.RESHAPE, OpKind.TRANSPOSE):
                    results = [self._renamed(results[0], ("out", index, 0))]
                self.cancelled |= {index} if self._rules.cancelled else set()
            self._values += results
            if not any(
                v.shift is not None or v.raw for n, v in enumerate(self._values) if self._last.get(n, 0) > index
            ):
                self.settled = index + 1
        for number in graph.outputs:
            if self._values[number].shift is not None:
                raise MatchFailure("a sum of exponentials is a result of the program, not divided by another")
        if self._rules.incomplete:
            raise MatchFailure("a running maximum over the loop alone needs a dim of extent 1")

    def graph(self) -> KernelGraph:
        """Return the new graph, after the traversal.

        Raises:
            MatchFailure: Two of its outputs are one tensor.
        """
        return self._new.finish([self._values[n].number for n in self._graph.outputs])

    def shared(self) -> list[list[int]]:
        """Return, after the traversal, sets of an operator that writes a multiple of exp(shift) and its readers."""
        made = producers(self._graph)
        shifted = {made[n] for n, value in enumerate(self._values) if value.shift is not None}
        return [_with_readers(self._graph, kernel) for kernel in sorted(shifted)]

    def _visit(
        self, rules: ValueRules, op: Op, values: Sequence[ScaledValue], origin: Origin
    ) -> tuple[ScaledValue, ...]:
        """Return the results of a predefined operator, given the values of all earlier tensors of its graph."""
        _, kernel, number = origin
        terms = self._tensors if number < 0 else self._blocks.get(kernel, ())
        key = terms[op.operands[0]] if terms else origin
        try:
            return rules.apply(op, tuple(values[n] for n in op.operands), origin, key)
        except RestartTraversal as restart:
            need = restart.request
            assert isinstance(need, MaximumRequest)
            kind, maker, part = need.origin
            if kind == "exp" and (self._crosses(need) if number < 0 else maker != kernel):
                hoist = partial(hoist_exponential, kernel=maker, number=part)
                raise RestartTraversal(ChangeRequest(maker, hoist)) from None
            raise

    def _crosses(self, need: MaximumRequest) -> bool:
        """Return whether a sum goes across the blocks that compute an exponential."""
        _, kernel, number = need.origin
        op = self._graph.ops[kernel]
        if not isinstance(op, GraphDefined):
            return False
        tensor = len(op.graph.inputs) + sum(item.results for item in op.graph.ops[:number])
        return any(
            extent > 1 and dim == need.dim
            for saver in op.graph.outputs
            if saver.operand == tensor
            for dim, extent in zip(saver.omap, op.graph.grid, strict=True)
        )

    def _renamed(self, value: ScaledValue, origin: Origin) -> ScaledValue:
        """Return the value with a shift under a new origin, whose dims are those of the value in its present layout."""
        if value.shift is None:
            return value
        shift = replace(value.shift, origin=origin)
        if origin in self._maxima:
            return replace(self._rules.rebased(value.number, shift, moving=False), raw=value.raw, lost=value.lost)
        return replace(value, shift=shift)

    def _block(self, index: int, op: GraphDefined) -> list[ScaledValue]:
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
        new = BlockGraphBuilder(block, (i for _, i in reads), (self._new.types[n] for n, _ in reads))
        makers = {n: item for n, item in enumerate_results(len(block.inputs), block.ops) if isinstance(item, Op)}
        level = ValueRules(new, block.context, self._maxima, makers)
        moving = [iterator.fmap is not None and block.forloop_range > 1 for _, iterator in reads]
        values: list[ScaledValue] = []
        for position, source in enumerate(sources):
            if source.shift is None:
                values.append(ScaledValue(position, raw=source.raw, moving=moving[position], lost=source.lost))
            else:
                read = shifts[source.shift.tensor, self._follows(index, position, source, block)]
                # Values that share a shift share its name, so that one maximum is taken for all.
                shift = Shift(read, ("in", index, read), source.shift.key, moving=moving[read])
                values.append(self._loaded(position, source, shift, moving[position], level))
        level.values.update((value.number, value) for value in values)
        for number, inner in enumerate(makers.values()):
            values += self._visit(level, inner, values, ("exp", index, number))
        self.cancelled |= {index} if level.cancelled else set()
        self._rules.incomplete |= level.incomplete
        return self._saved(index, op, values, new, [number for number, _ in reads])

    def _follows(self, index: int, position: int, source: ScaledValue, block: BlockGraph) -> InputIterator:
        """Return the input iterator of a shift, which splits the dims that the iterator of its value splits."""
        assert source.shift is not None
        iterator = block.inputs[position]
        rest = list(self._new.shape(source.shift.tensor))

        def cut(dim: int | None, extent: int) -> int | None:
            if dim is None or rest[dim] == 1:
                return None
            if rest[dim] % extent:
                raise self._move_parts(index, position, dim)
            rest[dim] //= extent
            return dim

        x, y, z = (cut(dim, extent) for dim, extent in zip(iterator.imap, block.grid, strict=True))
        return InputIterator((x, y, z), cut(iterator.fmap, block.forloop_range))

    def _move_parts(self, kernel: int, iterator: int, dim: int) -> RestartTraversal:
        """Return the request to move the parts that an iterator reads to a dim of their own."""
        maker = producers(self._graph)[self._graph.ops[kernel].operands[iterator]]
        return RestartTraversal(
            ChangeRequest(maker, partial(move_partial_results, kernel=kernel, iterator=iterator, dim=dim))
        )

    def _loaded(self, position: int, source: ScaledValue, shift: Shift, moving: bool, level: ValueRules) -> ScaledValue:
        """Return the tile of an input iterator as a value whose shift is the tile of another iterator."""
        if shift.origin not in self._maxima:
            return ScaledValue(position, shift, source.raw, moving, source.lost)
        for dim, (whole, part) in enumerate(zip(level.new.shape(position), level.new.shape(shift.tensor), strict=True)):
            if part not in (1, whole):
                raise self._move_parts(shift.origin[1], position, dim)
        return level.rebased(position, shift, moving)

    def _saved(
        self, index: int, op: GraphDefined, values: list[ScaledValue], new: BlockGraphBuilder, operands: list[int]
    ) -> list[ScaledValue]:
        """Return the device tensors of a graph-defined kernel, those of shifts last."""
        block, outer = op.graph, self._new
        savers = [replace(saver, operand=values[saver.operand].number) for saver in block.outputs]
        places: dict[tuple[int, DimMap], int] = {}
        for saver in block.outputs:
            shift = values[saver.operand].shift
            if shift is not None:
                # Rounded to the program's type it would not be the number that was subtracted.
                place = (new.cast(shift.tensor, DType.FLOAT32), saver.omap)
                if place not in places:
                    places[place] = len(savers)
                    savers.append(OutputSaver(*place))
        first = outer.define(new.finish(savers), operands)[0]
        results: list[ScaledValue] = []
        for r, saver in enumerate(block.outputs):
            value = values[saver.operand]
            if value.shift is None:
                results.append(ScaledValue(first + r, raw=value.raw, lost=value.lost))
                continue
            result = places[new.cast(value.shift.tensor, DType.FLOAT32), saver.omap]
            # Values share the maxima of a shift unless it lies otherwise than they do.
            alike = _broadcasts(outer.shape(first + r), outer.shape(first + result))
            origin = ("out", index, result if alike else r)
            shift = Shift(first + result, origin, value.shift.key)
            results.append(self._renamed(ScaledValue(first + r, shift, value.raw, lost=value.lost), origin))
        return results


def _broadcasts(whole: Shape, part: Shape) -> bool:
    """Return whether a shift broadcasts to its value, element by element."""
    return all(kept in (1, extent) for extent, kept in zip(whole, part, strict=True))


__all__ = ["NoStableForm", "StableGraph", "stabilize", "stabilize_with_groups"]

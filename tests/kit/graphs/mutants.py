"""Single changes of a µGraph that a faulty search could make, and whether float64 tells them from the program.

Mutants of found candidates are many wrong graphs and some right ones, each decided. The candidates come from the guided
search on small versions of the seven examples, and from the hand-written ones of ``workloads``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import cache, lru_cache
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
    ThreadDefined,
    operators,
)
from mirage_formal.graph.ops import COMPARISONS, SPECS, Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.space import load_space
from mirage_formal.semantics.batched_reference import BatchedDomain, run_many
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.support.errors import GraphError
from tests.kit.graphs import workloads as w

UNARY = (OpKind.EXP, OpKind.SQRT, OpKind.SQUARE, OpKind.SILU)
BINARY = (OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV)
EXTREMES = (OpKind.MAXIMUM, OpKind.MINIMUM)
EXCHANGED_COMPARISONS = (OpKind.EQ, OpKind.LT, OpKind.LE, OpKind.GT, OpKind.GE)
ROUNDINGS = (OpKind.ROUND_FLOAT16, OpKind.ROUND_BFLOAT16, OpKind.RELU)
#: The last of these and of the roundings takes no other one's place: what it is changed to stands above.
QUOTIENTS = (OpKind.DIV_NO_NAN, OpKind.DIV)
ACCUMULATORS = (OpKind.ACCUM_SUM, OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST)
REDUCTIONS = (OpKind.SUM, OpKind.MEAN, OpKind.RMS_NORM, OpKind.LAYER_NORM)
DIMS = (None, 0, 1, 2)

LabelledGraph = tuple[str, KernelGraph]
T = TypeVar("T")


def single_mutants(graph: KernelGraph) -> Iterator[LabelledGraph]:
    """All single changes, in a fixed order."""
    for index, op in enumerate(graph.ops):
        if isinstance(op, GraphDefined):
            for label, block in _block(op.graph):
                yield label, _with_op(graph, index, replace(op, graph=block))
        else:
            for label, changed in _op(op):
                yield f"kernel {label}", _with_op(graph, index, changed)
        first = len(graph.inputs) + sum(earlier.results for earlier in graph.ops[:index])
        for label, operands in _operands(op.operands, first):
            yield f"kernel {label}", _with_op(graph, index, replace(op, operands=operands))


def double_mutants(graph: KernelGraph, rng: random.Random, count: int) -> Iterator[LabelledGraph]:
    """``count`` pairs of changes at random, ten for each first change that is drawn."""
    firsts = list(single_mutants(graph))
    for _ in range(count // 10):
        label, once = rng.choice(firsts)
        for second, twice in rng.sample(list(single_mutants(once)), 10):
            yield f"{label} + {second}", twice


def _with_op(graph: KernelGraph, index: int, op: KernelOp) -> KernelGraph:
    return replace(graph, ops=(*graph.ops[:index], op, *graph.ops[index + 1 :]))


def _set(items: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*items[:index], value, *items[index + 1 :])


def _operands(operands: tuple[int, ...], first: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Operands swapped, or replaced by any earlier tensor."""
    for i in range(len(operands)):
        for j in range(i):
            yield "operand order", _set(_set(operands, i, operands[j]), j, operands[i])
        for other in range(first):
            if other != operands[i]:
                yield "operand", _set(operands, i, other)


def _op(op: Op) -> Iterator[tuple[str, Op]]:
    """Another operator or other attributes, same operands."""
    yield from _operator(op)
    match op.kind:
        case OpKind.ACCUM_SUM:
            yield "accumulator", Op(OpKind.ACCUM_SUM_TO_DIMX, op.operands)
            for dim in (0, 1, 2):
                yield "accumulator", Op(OpKind.ACCUM_CONCAT, op.operands, Attrs(dim=dim))
        case OpKind.ACCUM_SUM_TO_DIMX:
            yield "accumulator", Op(OpKind.ACCUM_SUM, op.operands)
            yield "accumulator", Op(op.kind, op.operands, Attrs(dim=0))
        case OpKind.SCALE:
            factor = op.attrs.factor
            assert factor is not None
            for wrong in (Fraction(1), 1 / factor if factor else Fraction(2), factor / 2, -factor, factor**2):
                yield "scale", Op(op.kind, op.operands, Attrs(factor=wrong))
        case OpKind.SHIFT:
            assert op.attrs.shift is not None
            for shift in (-op.attrs.shift, op.attrs.shift + 1):
                yield "shift", Op(op.kind, op.operands, Attrs(shift=shift))
        case OpKind.SLICE:
            assert op.attrs.start is not None
            assert op.attrs.stop is not None
            for step in (-1, 1):
                moved = replace(op.attrs, start=op.attrs.start + step, stop=op.attrs.stop + step)
                yield "slice", Op(op.kind, op.operands, moved)
        case OpKind.PAD:
            yield "pad", Op(op.kind, op.operands, replace(op.attrs, before=op.attrs.after, after=op.attrs.before))
        case kind if kind in REDUCTIONS:
            yield from _reduction(op)


def _operator(op: Op) -> Iterator[tuple[str, Op]]:
    """Another operator of those that are easily mistaken for it, or another number in place of its last operand."""
    group: tuple[OpKind, ...]
    for group, label in (
        (UNARY, "operator"),
        (BINARY, "operator"),
        (EXTREMES, "operator"),
        (EXCHANGED_COMPARISONS, "comparison"),
        (ACCUMULATORS, "accumulator"),
    ):
        if op.kind in group:
            yield from ((label, Op(kind, op.operands, op.attrs)) for kind in group if kind is not op.kind)
    for group in (ROUNDINGS, QUOTIENTS):
        if op.kind in group[:-1]:
            yield from (("operator", Op(kind, op.operands)) for kind in group if kind is not op.kind)
    if op.attrs.value is not None:
        for value in (op.attrs.value + 1, -op.attrs.value - Fraction(1, 2)):
            yield "value", replace(op, attrs=replace(op.attrs, value=value))


def _reduction(op: Op) -> Iterator[tuple[str, Op]]:
    for kind in REDUCTIONS:
        for dim in (0, 1, 2):
            if (kind, dim) != (op.kind, op.attrs.dim):
                yield "reduction", Op(kind, op.operands, replace(op.attrs, dim=dim))
    if op.kind is OpKind.RMS_NORM:
        yield "eps", Op(op.kind, op.operands, replace(op.attrs, eps=Fraction(1, 10)))


def _block(block: BlockGraph) -> Iterator[tuple[str, BlockGraph]]:
    for number, iterator in enumerate(block.inputs):
        for label, changed in _iterator(iterator):
            yield label, replace(block, inputs=_set(block.inputs, number, changed))
    for number, saver in enumerate(block.outputs):
        for label, written in _saver(saver, len(block.inputs) + len(block.ops)):
            yield label, replace(block, outputs=_set(block.outputs, number, written))
    for extent in (1, 2, 3, 4):
        if extent != block.forloop_range:
            yield "loop range", replace(block, forloop_range=extent)
        if extent != block.reduction_dimx:
            yield "dimx", replace(block, reduction_dimx=extent)
    yield "grid", replace(block, grid=(block.grid[1], block.grid[0], block.grid[2]))
    for index, op in enumerate(block.ops):
        if not isinstance(op, ThreadDefined):
            for label, other in _op(op):
                yield label, replace(block, ops=_set(block.ops, index, other))
            yield from _without(block, index, op)
            yield from _doubled(block, index, op)
        for label, operands in _operands(op.operands, len(block.inputs) + index):
            yield label, replace(block, ops=_set(block.ops, index, replace(op, operands=operands)))


def _entries(maps: tuple[int | None, ...]) -> Iterator[tuple[bool, tuple[int | None, ...]]]:
    """A map with one entry changed, or two swapped: (whether the last entry is concerned, map)."""
    for axis in range(len(maps)):
        for dim in DIMS:
            if dim != maps[axis]:
                yield axis == 3, _set(maps, axis, dim)
        for other in range(axis):
            if maps[axis] != maps[other]:
                yield axis == 3, _set(_set(maps, axis, maps[other]), other, maps[axis])


def _iterator(iterator: InputIterator) -> Iterator[tuple[str, InputIterator]]:
    for loop, maps in _entries((*iterator.imap, iterator.fmap)):
        yield "fmap" if loop else "imap", replace(iterator, imap=(maps[0], maps[1], maps[2]), fmap=maps[3])


def _saver(saver: OutputSaver, tensors: int) -> Iterator[tuple[str, OutputSaver]]:
    for _, omap in _entries(saver.omap):
        yield "omap", replace(saver, omap=(omap[0], omap[1], omap[2]))
    for operand in range(tensors):
        if operand != saver.operand:
            yield "output", replace(saver, operand=operand)


def _renumber(block: BlockGraph, ops: Sequence[tuple[BlockOp, bool]], number: int, step: int) -> BlockGraph:
    """The block with ``ops`` and every use of a tensor after ``number`` moved by ``step``."""

    def moved(i: int) -> int:
        return i + step if i > number else i

    def use(op: BlockOp, at: bool) -> BlockOp:
        return op if at else replace(op, operands=tuple(moved(i) for i in op.operands))

    return replace(
        block,
        ops=tuple(use(op, at) for op, at in ops),
        outputs=tuple(replace(saver, operand=moved(saver.operand)) for saver in block.outputs),
    )


def _without(block: BlockGraph, index: int, op: Op) -> Iterator[tuple[str, BlockGraph]]:
    """Operator ``index`` left out: its users read its first operand."""
    number = len(block.inputs) + index
    label = "missing accumulator" if SPECS[op.kind].accumulator else "dropped operator"

    def around(i: int) -> int:
        return op.operands[0] if i == number else i - (i > number)

    rest = (*block.ops[:index], *block.ops[index + 1 :])
    yield (
        label,
        replace(
            block,
            ops=tuple(replace(other, operands=tuple(around(i) for i in other.operands)) for other in rest),
            outputs=tuple(replace(saver, operand=around(saver.operand)) for saver in block.outputs),
        ),
    )


def _doubled(block: BlockGraph, index: int, op: Op) -> Iterator[tuple[str, BlockGraph]]:
    """Something put behind operator ``index``: the same accumulator again, a square, a factor, a sum."""
    number = len(block.inputs) + index
    extras = [
        ("extra operator", Op(OpKind.SQUARE, (number,))),
        ("extra operator", Op(OpKind.SCALE, (number,), Attrs(factor=Fraction(3)))),
        ("extra operator", Op(OpKind.ADD, (number, number))),
        ("extra operator", Op(OpKind.SUM, (number,), Attrs(dim=0))),
    ]
    if SPECS[op.kind].accumulator:
        extras.append(("doubled accumulator", Op(OpKind.ACCUM_SUM, (number,))))
    for label, extra in extras:
        tail = [(later, False) for later in block.ops[index + 1 :]]
        shifted = _renumber(block, [*((o, True) for o in block.ops[: index + 1]), (extra, True), *tail], number - 1, 1)
        # Uses of the operator itself now read the extra one; uses of later tensors moved by one.
        yield label, shifted


#: Larger values are not trusted; nor are results beside which larger ones were lost.
LARGE = 1e6
LARGEST = 1e8
#: Relative difference up to which rounding may decide a comparison.
NEAR = 1e-9
DIFFERENT = 1e-6
EQUAL = 1e-10
#: Of ones in masks, at each point.
SHARES = (0.6, 0.3, 0.9, 0.0)


class Decision(Enum):
    """What float64 says: unclear are overflow, undefined values, gaps near rounding."""

    SAME = "same"
    DIFFERENT = "different"
    UNCLEAR = "unclear"


@lru_cache(maxsize=64)
def _points(tensors: tuple[DTensor, ...], more: int) -> tuple[np.ndarray, ...]:
    """Four points [4, ...]: positive entries only, normal ones, some of them large, and small ones.

    Masks are nearly full at one of them and empty at another. There are ``more`` points of a few whole numbers, some
    of them equal, and of masks of which half is 1.
    """
    numbers = np.random.default_rng(5)
    found = []
    for tensor in tensors:
        shape = tensor.shape
        if tensor.dtype is DType.BOOL:
            shares = (*SHARES, *([0.5] * more))
            found.append(np.stack([numbers.random(shape) < share for share in shares]).astype(np.float64))
            continue
        kinds = (
            numbers.uniform(0.3, 1.5, shape),
            numbers.normal(0, 1, shape),
            numbers.normal(0, 1, shape) * numbers.choice([0.3, 2.5], shape),
            numbers.normal(0, 0.2, shape),
            *numbers.integers(-1, 3, (more, *shape)).astype(np.float64),
        )
        found.append(np.stack(kinds))
    return tuple(found)


def inputs_of(graph: KernelGraph) -> tuple[np.ndarray, ...]:
    """Return the points at which graphs with these inputs are compared: more where elements are, or several masks."""
    tensors = tuple(source.tensor for source in graph.inputs)
    if sum(tensor.dtype is DType.BOOL for tensor in tensors) > 1:
        return _points(tensors, 16)
    return _points(tensors, 4 if any(op.kind in COMPARISONS for op in operators(graph)) else 0)


@lru_cache(maxsize=256)
def _outputs(graph: KernelGraph) -> tuple[np.ndarray, ...]:
    return run_many(graph, inputs_of(graph))


def differs(program: KernelGraph, mutant: KernelGraph, points: tuple[np.ndarray, ...] | None = None) -> Decision:
    """Compare two well-formed graphs of equal inputs, at ``inputs_of`` the program or at other points.

    Different: at some point, where both are finite and not large, they differ clearly, and extended precision gives the
    same gap. Same: they agree at all points.

    Raises:
        GraphError: The mutant has no meaning, or other output shapes.
    """
    inputs = inputs_of(program) if points is None else points
    expected, got = _outputs(program) if points is None else run_many(program, inputs), run_many(mutant, inputs)
    if [a.shape for a in got] != [a.shape for a in expected]:
        raise GraphError("other output shapes")
    decision = Decision.SAME
    for usable, gap in _gaps(expected, got):
        if usable and gap > DIFFERENT:
            return _precisely(program, mutant, inputs, expected, got)
        if not usable or gap > EQUAL:
            decision = Decision.UNCLEAR
    return decision


def _gaps(expected: tuple[np.ndarray, ...], got: tuple[np.ndarray, ...]) -> Iterator[tuple[bool, float]]:
    """For each output and point whether its values can be trusted, and the relative gap."""
    with np.errstate(all="ignore"):
        for want, have in zip(expected, got, strict=True):
            for a, b in zip(want, have, strict=True):
                size = float(np.maximum(np.abs(a).max(), np.abs(b).max()))
                yield size <= LARGE, float(np.abs(a - b).max() / max(1.0, size))


def _precisely(
    program: KernelGraph,
    mutant: KernelGraph,
    points: tuple[np.ndarray, ...],
    expected: tuple[np.ndarray, ...],
    got: tuple[np.ndarray, ...],
) -> Decision:
    """Different only if extended precision sees nearly the same gap, at a point where intermediate values are small.

    Rounding looks different in another precision, but what is lost beside a large value is lost in both.
    """
    inputs = [array.astype(np.longdouble) for array in points]
    (left, beside_left), (right, beside_right) = (run_watched(graph, inputs) for graph in (program, mutant))
    beside = np.maximum(beside_left, beside_right)
    with np.errstate(all="ignore"):
        for a, b, precise_a, precise_b in zip(expected, got, left, right, strict=True):
            gap = np.abs(precise_a - precise_b)
            size = np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
            sure = np.abs(a - precise_a) + np.abs(b - precise_b) <= 0.01 * gap
            apart = (sure & (gap > DIFFERENT * size)).reshape(len(a), -1).any(axis=1)
            if (apart & (beside <= LARGEST)).any():
                return Decision.DIFFERENT
    return Decision.UNCLEAR


class _WatchingDomain(BatchedDomain):
    """Notes the largest magnitude that occurs on the way, and how much divisors below 1 magnify, for each trial."""

    def __init__(self, trials: int) -> None:
        self.largest = np.zeros(trials)
        self.magnified = np.ones(trials)

    def _seen(self, a: NDArray[Any]) -> NDArray[Any]:
        self.largest = np.fmax(self.largest, np.abs(a).reshape(len(a), -1).max(axis=1).astype(np.float64))
        return a

    def unary(self, kind: OpKind, a: NDArray[Any]) -> NDArray[Any]:
        """See ``Domain.unary``."""
        return self._seen(super().unary(kind, a))

    def binary(self, kind: OpKind, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """See ``Domain.binary``."""
        if kind in (OpKind.DIV, OpKind.DIV_NO_NAN):
            sizes = np.abs(b) if kind is OpKind.DIV else np.where(b == 0, 1.0, np.abs(b))
            smallest = sizes.reshape(len(b), -1).min(axis=1).astype(np.float64)
            self.magnified = self.magnified / np.minimum(smallest, 1.0)
        if kind in COMPARISONS:
            # Where rounding may decide, in both precisions, nothing is said.
            near = np.abs(a - b) <= NEAR * np.maximum(np.abs(a), np.abs(b))
            trials = max(len(a), len(b))
            undecided = np.broadcast_to(near, (trials, *near.shape[1:])).reshape(trials, -1).any(axis=1)
            self.largest = np.where(undecided, np.inf, self.largest)
        return self._seen(super().binary(kind, a, b))

    def matmul(self, a: NDArray[Any], b: NDArray[Any], inner: int) -> NDArray[Any]:
        """See ``Domain.matmul``."""
        return self._seen(super().matmul(a, b, inner))

    def sum(self, a: NDArray[Any], axis: int, extent: int, kept: int) -> NDArray[Any]:
        """See ``Domain.sum``."""
        return self._seen(super().sum(a, axis, extent, kept))


def run_watched(
    graph: KernelGraph, arrays: Sequence[NDArray[Any]]
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.float64]]:
    """As ``run_many``, with the magnitude [trials] beside which anything may have been lost in rounding.

    It is the largest magnitude that a function, quotient, product or sum had on the way, over the product of the
    smallest divisors below 1. What is lost beside a large value is lost in every float type, so this bounds what a gap
    can mean.

    Raises:
        GraphError: The graph is not well-formed.
    """
    domain = _WatchingDomain(len(arrays[0]) if arrays else 1)
    with np.errstate(all="ignore"):
        return evaluate(graph, arrays, domain), domain.largest * domain.magnified


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed candidate.

    Attributes:
        name: The example and what was changed.
        program: The program that the candidate was found for.
        candidate: What was changed.
        graph: The result: well-formed, with the program's inputs and output shapes.
    """

    name: str
    program: KernelGraph
    candidate: KernelGraph
    graph: KernelGraph


#: The examples at small extents, the preset that finds kernels for them there, and how many candidates are changed.
#: Extents that coincide leave more changes well-formed, distinct ones make them show; hence several versions.
SEARCHED = {
    "attn": ("attention", w.attention(b=2, m=4, d=2, n=8, e=4), 10),
    "decode": ("attention", w.attention(b=4, m=1, d=4, n=8, e=4), 10),
    "lora": ("lora", w.lora(b=4, k=4, n=8, r=2), 10),
    "lora, equal extents": ("tiny", w.lora(b=4, k=4, n=4, r=4), 8),
    "gated_mlp": ("mlp", w.gated_mlp(b=4, k=4, n=8), 10),
    "gated_mlp, equal extents": ("tiny", w.gated_mlp(b=4, k=4, n=4), 8),
    "qknorm": ("attention", w.qk_norm(b=1, m=2, d=2, n=4, e=2), 10),
    "ntrans": ("norm", w.ntrans(b=4, n=8), 10),
    "rmsnorm": ("norm", w.rmsnorm(b=4, k=8, n=4), 10),
    "rmsnorm, equal extents": ("tiny", w.rmsnorm(b=4, k=4, n=4), 8),
}
#: Examples whose search takes long: of these the first share is enough.
FIRST_SHARE = frozenset({"qknorm"})
#: Those that take longest of the others: the same of these, where a test asks for a sample.
LONG = frozenset({"attn", "decode"})
#: Written by hand, at extents that coincide.
WRITTEN = {
    "attn, two kernels": (
        w.attention(b=2, m=4, d=4, n=4, e=4),
        w.attention_split(b=2, m=4, d=4, n=4, e=4, split=2, loop=2, rows=2),
    ),
    "attn, one kernel": (
        w.attention(b=2, m=4, d=2, n=8, e=2),
        w.attention_one(b=2, m=4, d=2, n=8, e=2, rows=2, loop=2),
    ),
    "qknorm by hand": (w.qk_norm(b=1, m=4, d=4, n=4, e=4), w.qk_norm_one(b=1, m=4, d=4, n=4, e=4, rows=2, loop=2)),
    "rmsnorm by hand": (w.rmsnorm(b=2, k=4, n=4), w.rmsnorm_by_hand(b=2, k=4, n=4, grid=2, loop=2)),
    "ntrans by hand": (w.ntrans(b=4, n=4), w.ntrans_fused(b=4, n=4, grid=2)),
}


@cache
def found(name: str, every: bool) -> tuple[KernelGraph, ...]:
    """Candidates that the guided search finds for a small example, the same ones in every process."""
    preset, program, wanted = SEARCHED[name]
    engine, space, options = GuidedEngine(1), load_space(preset), SearchOptions()
    graphs: dict[KernelGraph, None] = {}
    first = name in FIRST_SHARE or (name in LONG and not every)
    for unit in engine.units(program, space, options)[: 1 if first else None]:
        graphs |= dict.fromkeys(item.graph for item in engine.run(program, space, options, unit).candidates)
    everything = list(graphs)
    return tuple(random.Random(11).sample(everything, min(wanted, len(everything))))


def candidates(*, every: bool = True) -> Iterator[tuple[str, KernelGraph, KernelGraph]]:
    """(example, program, candidate) of all examples; of long searches every share, or the first."""
    for name, (_, program, _) in SEARCHED.items():
        for graph in found(name, every):
            yield name, program, graph
    for name, (program, graph) in WRITTEN.items():
        yield name, program, graph


def mutants(seed: int, count: int, *, every: bool = True) -> Iterator[Mutant]:
    """``count`` distinct mutants, from all candidates in turn; half of them have two changes.

    ``every``: see ``candidates``.
    """
    streams = [_stream(random.Random(f"{seed} {i}"), *item) for i, item in enumerate(candidates(every=every))]
    seen: set[tuple[KernelGraph, KernelGraph]] = set()
    made = 0
    while made < count and streams:
        for stream in tuple(streams):
            item = next(stream, None)
            if item is None:
                streams.remove(stream)
            elif (item.program, item.graph) not in seen:
                seen.add((item.program, item.graph))
                made += 1
                yield item
                if made == count:
                    return


def _stream(rng: random.Random, name: str, program: KernelGraph, candidate: KernelGraph) -> Iterator[Mutant]:
    """The mutants of one candidate in a random order, single changes and pairs of changes mixed."""
    single = list(single_mutants(candidate))
    rng.shuffle(single)
    double = double_mutants(candidate, rng, 10 * len(single))
    shapes = [kernel_types(program)[number].shape for number in program.outputs]
    for label, graph in chain.from_iterable(_interleaved(single, double)):
        if graph != candidate and not faults(graph):
            types = kernel_types(graph)
            if [types[number].shape for number in graph.outputs] == shapes:
                yield Mutant(f"{name}: {label}", program, candidate, graph)


def _interleaved(
    single: Sequence[tuple[str, KernelGraph]], double: Iterator[tuple[str, KernelGraph]]
) -> Iterator[Iterable[tuple[str, KernelGraph]]]:
    for item in single:
        yield (item,)
        yield tuple(x for _, x in zip(range(2), double, strict=False))
    yield double


def decided(items: Iterator[Mutant]) -> Iterator[tuple[Mutant, Decision]]:
    """Each mutant with what float64 says about it."""
    for item in items:
        yield item, differs(item.program, item.graph)

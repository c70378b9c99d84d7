"""Enumeration of a small search space by its definition, without code of the engines and without pruning.

A block graph is a set of operators, closed under their operands, and so is a kernel graph, some of whose operators are
such block graphs. Sets grow by one operator at a time, and each is visited once. So there is no order of operators,
with which the exhaustive engine avoids repetitions, no memo across configurations, and no abstract expression.

The definition of the space is shared with the engines: the lists and bounds of ``search/bounds.py``, whose docstring
has the rules of every space, and the inputs of an epilogue; so are the types of ``graph``. Differences that are none:

- Two forms of a graph with one digest (``graph/canonical.py``) are one survivor. So grid axes of equal extent are not
  ordered here, and every reduction_dimx is tried where nothing is reduced to it.
- ``max_reread`` counts in some order of the kernels. The engine tries one order; from three kernels on it may find less.
- A tensor that a kernel made is an input of an epilogue if it is a copy of one. The engine takes what has the abstract
  expression of one, so it may find more.

A survivor equals the program at a random point of the checker's fields. A graph without a value there, for example
because a radicand is no residue, is compared over the reals, in float64 at random inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement, permutations, product

import numpy as np

from mirage_formal.check.fingerprint.field_interpreter import RandomPoint, Source, UndefinedValueError, evaluate_steps
from mirage_formal.graph.canonical import canonical_with_digest
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver, operators
from mirage_formal.graph.ops import FUNCTIONS, IN_PLACE, NO_ATTRS, SPECS, VALUED, Attrs, BlockContext, OpKind
from mirage_formal.graph.type_rules import device_results, iterator_type, shared_results
from mirage_formal.graph.types import Dim3, DimMap, DTensor, STensor
from mirage_formal.graph.verifier import block_outputs, kernel_types, output_types
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.epilogue_inputs import epilogue_inputs
from mirage_formal.search.known_incompleteness import is_equal
from mirage_formal.support.errors import FormatError

_LAST = frozenset({OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST})
_NORMS = frozenset({OpKind.RMS_NORM, OpKind.LAYER_NORM})
_WITH_CONSTANTS = VALUED | {OpKind.SCALE, OpKind.SHIFT, OpKind.CAST}
#: Operators that a space has only if the program applies them.
_OF_PROGRAM = _WITH_CONSTANTS | FUNCTIONS | {OpKind.LAYER_NORM, OpKind.LOGICAL_NOT, OpKind.DIV_NO_NAN}
_OPTIONAL = _OF_PROGRAM - {OpKind.SQUARE, OpKind.SCALE}
_LOOP = 3  # behind the grid axes x, y, z
_State = frozenset[int]
#: The type of a device tensor, and whether it is an input of an epilogue.
_Operand = tuple[DTensor, bool]


class EnumerationStopped(Exception):
    """Signal that a limit is reached: the space has more states, or takes more time; nothing is known about it."""


@dataclass(slots=True)
class EnumeratedSpace:
    """Result of an enumeration.

    Attributes:
        states: Configurations of kernels, and sets of operators of block graphs and of kernel graphs.
        graphs: Complete graphs.
        over_reals: Those of them that were compared over the reals.
        survivors: Those that equal the program, in canonical form, by digest.
    """

    states: int = 0
    graphs: int = 0
    over_reals: int = 0
    survivors: dict[str, KernelGraph] = field(default_factory=dict)


def _multisets(numbers: Iterable[int], most: int) -> Iterator[tuple[int, ...]]:
    return (some for size in range(1, most + 1) for some in combinations_with_replacement(sorted(numbers), size))


def _sets(
    depth: int, following: Callable[[_State, int], Iterable[int]], admits: Callable[[_State, int], bool]
) -> Iterator[_State]:
    """Yield every set that grows from the empty one by members that may follow, if each set on the way is admitted."""
    level = [_State()]
    for left in reversed(range(depth)):
        grown = {ops | {new} for ops in level for new in following(ops, left) if new not in ops}
        level = [state for state in grown if admits(state, left)]
        yield from level


class _OperatorRules:
    """Applications of the operators of one level; the program gives the constants."""

    def __init__(self, program: KernelGraph, kinds: Iterable[OpKind]) -> None:
        ops, types = list(operators(program)), kernel_types(program)
        used = {op.kind for op in ops} | {OpKind.EXP for op in ops if op.kind is OpKind.SOFTMAX}
        self.kinds = [kind for kind in dict.fromkeys(kinds) if kind in used or kind not in _OPTIONAL]
        masks = {(n,) for n, tensor in enumerate(types) if not tensor.dtype.floating}
        constants = (op for op in ops if op.kind in _WITH_CONSTANTS)
        self.constants = {(op.kind, op.attrs) for op in constants if op.kind is not OpKind.CAST or op.operands in masks}
        self.eps = {op.attrs.eps for op in ops if op.kind in _NORMS} or {None}
        #: Most operands; only a selection between two tensors has three.
        self.arity = 3 if (OpKind.SELECT, NO_ATTRS) in self.constants else 2

    def applications(self, some: tuple[int, ...], types: list[DTensor] | list[STensor]) -> Iterator[Op]:
        """Yield the operators that read exactly these tensors, in every order that makes a difference."""
        for operands, kind in product(sorted(set(permutations(some))), self.kinds):
            if SPECS[kind].commutative and operands != some:
                continue
            if (kind is OpKind.MUL and OpKind.SQUARE in self.kinds) or (kind is OpKind.SELECT and len(some) == 3):
                if operands[-2:] == operands[-1:] * 2:
                    continue  # a square, and a selection that is none
            for arity, attrs in self._attributes(kind, types[operands[0]]):
                if arity == len(operands) and (kind is not OpKind.CAST or not types[operands[0]].dtype.floating):
                    yield Op(kind, operands, attrs)

    def _attributes(self, kind: OpKind, first: DTensor | STensor) -> Iterator[tuple[int, Attrs]]:
        spec = SPECS[kind]
        if kind in _WITH_CONSTANTS:
            known = (attrs for other, attrs in self.constants if other is kind)
            yield from ((spec.max_arity - (attrs.value is not None), attrs) for attrs in known)
        elif "dim" in spec.required:
            for dim, eps in product(range(len(first.shape)), self.eps if kind in _NORMS else {None}):
                if first.shape[dim] > 1:
                    yield 1, Attrs(dim=dim, eps=eps)
        elif kind not in _LAST or first.shape[-1] > 1:
            yield spec.min_arity, NO_ATTRS


class _BlockSpace:
    """Block graphs of one configuration: grid, maps, loop range and reduction_dimx."""

    def __init__(
        self,
        outer: _KernelSpace,
        operands: tuple[_Operand, ...],
        grid: Dim3,
        iterators: tuple[InputIterator, ...],
        context: BlockContext,
    ) -> None:
        self.outer, self.operands, self.grid, self.iterators, self.context = outer, operands, grid, iterators, context
        found = (
            iterator_type(grid, context.forloop_range, i, t) for i, (t, _) in zip(iterators, operands, strict=True)
        )
        self.types = [tile for tile in found if isinstance(tile, STensor)]
        #: Axes of grid and loop on which each tensor depends.
        self.axes = [frozenset(a for a, d in enumerate((*i.imap, i.fmap)) if d is not None) for i in iterators]
        self.ops: list[Op | None] = [None] * len(iterators)
        self.bytes = [tile.bytes for tile in self.types]
        self.applied: dict[tuple[int, ...], list[int]] = {}
        self.tiles = _State(range(len(iterators)))
        self.cut = {axis for axis, extent in enumerate(grid) if extent > 1}
        #: For each grid axis the dim that it splits in every input that it splits.
        dims = [{i.imap[axis] for i in iterators} - {None} for axis in range(_LOOP)]
        self.aligned = [next(iter(d)) if len(d) == 1 else None for d in dims]

    def graphs(self, most: int) -> Iterator[BlockGraph]:
        """Yield every block graph with at most so many outputs."""
        if sum(self.bytes) <= self.outer.space.shared_bytes:
            depth = self.outer.space.max_block_ops
            for state in _sets(depth, self._following, lambda state, left: self._admits(state, left, most)):
                yield from self._close(state, most)

    def _following(self, state: _State, _left: int) -> Iterator[int]:
        for some in _multisets(self.tiles | state, self.outer.block_rules.arity):
            if some not in self.applied:
                ops = self.outer.block_rules.applications(some, self.types)
                self.applied[some] = [n for op in list(ops) for n in self._results(op)]
            yield from self.applied[some]

    def _results(self, op: Op) -> list[int]:
        """Return the number of an operator's result, in a list; none if it is not allowed."""
        given = self.types[op.operands[0]]
        made = shared_results(op.kind, op.attrs, tuple(self.types[n] for n in op.operands), self.context)
        axes = frozenset[int]().union(*(self.axes[n] for n in op.operands))
        closes = self.context.forloop_range == 1 or _LOOP in axes
        if op.kind is OpKind.ACCUM_MAX:
            late = op.operands[0] in self.tiles and self.operands[op.operands[0]][1]
            mask = not given.dtype.floating and self.context.forloop_range == 1  # a mask has no sum
            allowed = mask or (late and not closes and op.kind in self.outer.space.block_ops)
        else:
            allowed = closes or not SPECS[op.kind].accumulator
        if isinstance(made, str) or not allowed:
            return []
        self.ops.append(op)
        self.types.append(made[0])
        self.bytes.append(0 if op.kind in IN_PLACE else made[0].bytes)
        self.axes.append(axes - {_LOOP} if SPECS[op.kind].accumulator else axes)
        return [len(self.ops) - 1]

    def _unread(self, state: _State) -> _State:
        every = self.tiles | state
        return every.difference(*(op.operands for n in state if (op := self.ops[n]) is not None))

    def _admits(self, state: _State, left: int, most: int) -> bool:
        """Count a state, and return whether ``left`` more operators can complete it within shared memory.

        Sound: an operator of k operands lowers the number of unread tensors by k - 1 at most, each tensor inside the
        loop has to be read, and one at least is behind it in the end.
        """
        unread = self._unread(state)
        inside = sum(not self.types[n].after_loop for n in unread)
        over = inside + max(0, len(unread) - inside + (inside > 0) - most)
        held = sum(self.bytes[n] for n in self.tiles | state)
        if over > left * (self.outer.block_rules.arity - 1) or held > self.outer.space.shared_bytes:
            return False
        self.outer.step()
        return True

    def _close(self, state: _State, most: int) -> Iterator[BlockGraph]:
        """Yield the state with every choice of output savers: all unread tensors, and others behind the loop."""
        unread = self._unread(state)
        savable = {n for n in state if self.types[n].after_loop and self.cut <= self.axes[n]}
        if not unread <= savable or len(unread) > most or not self._is_connected(state):
            return
        numbers = (*sorted(self.tiles), *sorted(state))
        names = {n: place for place, n in enumerate(numbers)}
        given = [op for n in sorted(state) if (op := self.ops[n]) is not None]
        ops = tuple(replace(op, operands=tuple(names[n] for n in op.operands)) for op in given)
        loop, dimx = self.context.forloop_range, self.context.reduction_dimx
        for count in range(most - len(unread) + 1):
            for extra in combinations(sorted(savable - unread), count):
                outputs = sorted((*unread, *extra))
                for omaps in product(*(self._omaps(len(self.types[n].shape)) for n in outputs)):
                    savers = tuple(OutputSaver(names[n], omap) for n, omap in zip(outputs, omaps, strict=True))
                    for block in self.outer.space.block_dims:
                        yield BlockGraph(self.grid, block, loop, dimx, self.iterators, ops, savers)

    def _omaps(self, rank: int) -> list[DimMap]:
        every = self.outer.space.omap_candidates(self.grid, rank)
        return [m for m in every if all(a in (None, dim) for a, dim in zip(self.aligned, m, strict=True))]

    def _is_connected(self, state: _State) -> bool:
        parts = [{n} for n in self.tiles]
        for n in sorted(state):
            joined = {n, *(op.operands if (op := self.ops[n]) is not None else ())}
            parts = [*(p for p in parts if not p & joined), joined.union(*(p for p in parts if p & joined))]
        return len(parts) == 1


class _KernelSpace:
    """Kernel graphs of a space for a program."""

    def __init__(self, program: KernelGraph, space: SearchSpace, limits: tuple[int, float]) -> None:
        self.program, self.space = program, space
        self.most, self.deadline = limits[0], time.process_time() + limits[1]
        self.found = EnumeratedSpace()
        self.kernel_rules = _OperatorRules(program, space.kernel_ops)
        masks = [OpKind.ACCUM_MAX] if OpKind.ACCUM_SUM in space.block_ops else []
        self.block_rules = _OperatorRules(program, (*space.block_ops, *masks))
        late = epilogue_inputs(program)
        self.tensors: list[_Operand] = [(one.tensor, n in late) for n, one in enumerate(program.inputs)]
        read = {n for op in program.ops for n in op.operands} | set(program.outputs)
        self.optional = {n for n in range(len(program.inputs)) if n not in read}
        self.ops: list[tuple[Op | GraphDefined, range]] = []  # with the numbers of their results
        self.blocks: dict[object, list[BlockGraph]] = {}
        self.choices: dict[object, list[int]] = {}

    def step(self) -> None:
        """Count a state.

        Raises:
            EnumerationStopped: A limit is reached.
        """
        self.found.states += 1
        if self.found.states > self.most:
            raise EnumerationStopped(f"more than {self.most:,} states")
        if time.process_time() > self.deadline:
            raise EnumerationStopped(f"stopped after {self.found.states:,} states, for time")

    def graphs(self) -> Iterator[KernelGraph]:
        """Yield every complete kernel graph; inputs that the program does not read may stay unread."""
        wanted = output_types(self.program)
        for state in _sets(self.space.max_kernel_ops, self._following, self._admits):
            unread, tensors = self._unread(state), self._tensors(state)
            if unread.isdisjoint(range(len(self.program.inputs))):
                made = tensors[len(self.program.inputs) :]
                names = {n: place for place, n in enumerate(tensors)}
                for outputs in product(*([n for n in made if self.tensors[n][0] == one] for one in wanted)):
                    if unread <= set(outputs) and len(set(outputs)) == len(outputs):
                        ops = (self.ops[op][0] for op in sorted(state))
                        renamed = (replace(op, operands=tuple(names[n] for n in op.operands)) for op in ops)
                        yield KernelGraph(self.program.inputs, tuple(renamed), tuple(names[n] for n in outputs))

    def _tensors(self, state: _State) -> list[int]:
        return [*range(len(self.program.inputs)), *(n for op in sorted(state) for n in self.ops[op][1])]

    def _unread(self, state: _State) -> _State:
        return _State(self._tensors(state)).difference(self.optional, *(self.ops[op][0].operands for op in state))

    def _admits(self, state: _State, left: int) -> bool:
        self.step()
        held = sum(self.tensors[n][0].bytes for n in self._tensors(state))
        return held <= self.space.device_bytes and len(self._unread(state)) <= self._most_unread(left)

    def _most_unread(self, left: int) -> int:
        """Return how many tensors may be unread: ``left`` operators read them, or they are outputs."""
        inputs = self.space.max_block_inputs if self.space.max_graph_defined else 0
        return len(self.program.outputs) + left * (max(self.kernel_rules.arity, inputs) - 1)

    def _following(self, state: _State, left: int) -> Iterator[int]:
        """Yield the operators that may follow.

        Sound: left out are those with which more tensors are unread than ``left`` operators can read.
        """
        most, tensors, unread = self._most_unread(left), self._tensors(state), self._unread(state)
        for some in _multisets(tensors, self.kernel_rules.arity):
            if len(unread.difference(some)) < most:
                if some not in self.choices:
                    ops = self.kernel_rules.applications(some, [kind for kind, _ in self.tensors])
                    self.choices[some] = [n for op in ops for n in self._predefined(op)]
                yield from self.choices[some]
        defined = [op for op in (self.ops[n][0] for n in state) if isinstance(op, GraphDefined)]
        again = {n for op in defined for n in op.operands}
        if len(defined) < self.space.max_graph_defined:
            for size in range(1, self.space.max_block_inputs + 1):
                for some in combinations(tensors, size):
                    if len(unread.difference(some)) < most and len(again.intersection(some)) <= self.space.max_reread:
                        yield from self._graph_defined(some, min(self.space.max_block_outputs, most))

    def _predefined(self, op: Op) -> list[int]:
        made = device_results(op.kind, op.attrs, tuple(self.tensors[n][0] for n in op.operands))
        return [] if isinstance(made, str) else [self._add(op, [(made[0], False)])]

    def _graph_defined(self, some: tuple[int, ...], most: int) -> list[int]:
        operands = tuple(self.tensors[n] for n in some)
        if (operands, most) not in self.blocks:
            self.blocks[operands, most] = list(self._block_graphs(operands, most))
        if (some, most, "graph-defined") not in self.choices:
            self.choices[some, most, "graph-defined"] = added = []
            for block in self.blocks[operands, most]:
                makers = (block.ops[saver.operand - len(some)] for saver in block.outputs)
                late = [_copied_late(op, operands, block.forloop_range) for op in makers if isinstance(op, Op)]
                types = block_outputs(block, tuple(kind for kind, _ in operands))
                added.append(self._add(GraphDefined(some, block), list(zip(types, late, strict=True))))
        return self.choices[some, most, "graph-defined"]

    def _add(self, op: Op | GraphDefined, results: list[_Operand]) -> int:
        self.ops.append((op, range(len(self.tensors), len(self.tensors) + len(results))))
        self.tensors += results
        return len(self.ops) - 1

    def _block_graphs(self, operands: tuple[_Operand, ...], most: int) -> Iterator[BlockGraph]:
        """Yield the block graphs of every configuration."""
        space, shapes = self.space, [kind.shape for kind, _ in operands]
        for grid in space.grid_candidates(shapes):
            for imaps in product(*(space.imap_candidates(grid, shape) for shape in shapes)):
                if any(extent > 1 and all(m[a] is None for m in imaps) for a, extent in enumerate(grid)):
                    continue
                slabs = [_slab(shape, grid, imap) for shape, imap in zip(shapes, imaps, strict=True)]
                for fmaps in product(*map(space.fmap_candidates, slabs)):
                    split = [slab[dim] for slab, dim in zip(slabs, fmaps, strict=True) if dim is not None]
                    iterators = tuple(map(InputIterator, imaps, fmaps))
                    for loop, dimx in product(space.loop_candidates(split), space.reduction_dimx):
                        self.step()
                        yield from _BlockSpace(self, operands, grid, iterators, BlockContext(loop, dimx)).graphs(most)


def _slab(shape: tuple[int, ...], grid: Dim3, imap: DimMap) -> tuple[int, ...]:
    return tuple(
        n // int(np.prod([g for g, mapped in zip(grid, imap, strict=True) if mapped == dim]))
        for dim, n in enumerate(shape)
    )


def _copied_late(op: Op, operands: tuple[_Operand, ...], loop: int) -> bool:
    """Return whether an accumulator's result is a copy of an input of an epilogue."""
    kept = op.kind is OpKind.ACCUM_MAX or (op.kind is OpKind.ACCUM_SUM and loop == 1)
    return kept and op.operands[0] < len(operands) and operands[op.operands[0]][1]


def enumerate_space(
    program: KernelGraph, space: SearchSpace, point: RandomPoint, source: Source, limits: tuple[int, float]
) -> EnumeratedSpace:
    """Enumerate a space, and compare its complete graphs with a program of predefined operators.

    Args:
        program: The program.
        space: The space.
        point: A random point at which the program has a value.
        source: The program's inputs there.
        limits: Most states, and seconds of processor time.

    Raises:
        EnumerationStopped: A limit is reached.
        FormatError: The program has no picture in the fields.
        UndefinedValueError: It has no value at the point.
    """
    wanted = evaluate_steps(program, point, source)
    space_of_kernels = _KernelSpace(program, space, limits)
    found = space_of_kernels.found
    for graph in space_of_kernels.graphs():
        found.graphs += 1
        try:
            outputs = evaluate_steps(graph, point, source)
            equal = all(np.array_equal(a, b) for a, b in zip(outputs, wanted, strict=True))
        except (UndefinedValueError, FormatError):
            found.over_reals += 1
            equal = is_equal(program, graph)
        if equal:
            form, name = canonical_with_digest(graph)
            found.survivors[name] = form
    return found


__all__ = ["EnumeratedSpace", "EnumerationStopped", "enumerate_space"]

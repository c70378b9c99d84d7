"""Enumeration of a small search space by its definition, without code of the engines and without pruning.

A block graph is a set of operators, closed under their operands, and so is a kernel graph, some of whose operators are
such block graphs. Operators are numbered when they are first met, so after their operands, and a set is reached from
itself without its last member only. There is no memo across configurations, and no abstract expression.

The definition is shared with the engines: the bounds of ``search/bounds.py``, whose docstring has the rules of every
space, the inputs of an epilogue, and the types of ``graph``. What differs from the exhaustive engine is this:

- Grid axes of equal extent are not ordered, and every reduction_dimx is tried where nothing is reduced to it. Such
  graphs have one digest (``graph/canonical.py``).
- ``max_reread`` counts in the order of these numbers; the engine's order is another one from three kernels on.
- An accum_max carries inputs of the program. The engine's also carries what has the abstract expression of such an
  input, as its copy that an earlier kernel made: from two kernels on it may find more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, combinations_with_replacement, permutations, product

from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver, operators
from mirage_formal.graph.ops import FUNCTIONS, IN_PLACE, NO_ATTRS, SPECS, VALUED, Attrs, OpKind
from mirage_formal.graph.type_rules import device_results, iterator_type, shared_results
from mirage_formal.graph.types import DTensor, Shape, STensor
from mirage_formal.graph.verifier import block_outputs, kernel_types, output_types
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.epilogue_inputs import epilogue_inputs

_LAST = frozenset({OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST})
_NORMS = frozenset({OpKind.RMS_NORM, OpKind.LAYER_NORM})
_WITH_CONSTANTS = VALUED | {OpKind.SCALE, OpKind.SHIFT, OpKind.CAST}
#: Operators that a space has only if the program applies them.
_OPTIONAL = (_WITH_CONSTANTS | FUNCTIONS | {OpKind.LAYER_NORM, OpKind.LOGICAL_NOT, OpKind.DIV_NO_NAN}) - {OpKind.SQUARE}
_LOOP = 3  # behind the grid axes x, y, z
_State = frozenset[int]
#: The type of a device tensor, and whether it is an input of an epilogue.
_Operand = tuple[DTensor, bool]


class EnumerationStopped(Exception):
    """Signal that the space has more states, or takes more time, than allowed: nothing is known about it."""


def _multisets(numbers: Iterable[int], most: int) -> Iterator[tuple[int, ...]]:
    return (some for size in range(1, most + 1) for some in combinations_with_replacement(sorted(numbers), size))


def _sets(
    depth: int, following: Callable[[_State, int], Iterable[int]], admits: Callable[[_State, int], bool]
) -> Iterator[_State]:
    """Yield every set that grows from the empty one, if each set on the way is admitted; the last member comes last."""
    level = [_State()]
    for left in reversed(range(depth)):
        last, level = level, []
        for state in last:
            for new in following(state, left):
                if new > max(state, default=-1) and admits(grown := state | {new}, left):
                    level += [grown] if left else []
                    yield grown


class _OperatorRules:
    """Applications of the operators of one level; the program gives the constants."""

    def __init__(self, program: KernelGraph, kinds: Iterable[OpKind]) -> None:
        ops, types = list(operators(program)), kernel_types(program)
        used = {op.kind for op in ops} | {OpKind.EXP for op in ops if op.kind is OpKind.SOFTMAX}
        self.kinds = [kind for kind in dict.fromkeys(kinds) if kind in used or kind not in _OPTIONAL]
        known = (op for op in ops if op.kind is not OpKind.CAST or not types[op.operands[0]].dtype.floating)
        self.constants = {(op.kind, op.attrs) for op in known if op.kind in _WITH_CONSTANTS}
        self.eps = {op.attrs.eps for op in ops if op.kind in _NORMS} or {None}
        self.arity = 3 if (OpKind.SELECT, NO_ATTRS) in self.constants else 2  # most operands

    def applications(self, some: tuple[int, ...], types: Mapping[int, DTensor] | Mapping[int, STensor]) -> Iterator[Op]:
        """Yield the operators that read exactly these tensors, in every order that makes a difference."""
        for operands, kind in product(sorted(set(permutations(some))), self.kinds):
            one = types[operands[0]]
            nothing = OpKind.SQUARE in self.kinds if kind is OpKind.MUL else kind is OpKind.SELECT and len(some) == 3
            if (SPECS[kind].commutative and operands != some) or (nothing and operands[-2:] == operands[-1:] * 2):
                continue  # a square has a name of its own, and a selection from equal values is none
            for arity, attrs in self._attributes(kind, one.shape):
                if arity == len(operands) and (kind is not OpKind.CAST or not one.dtype.floating):
                    yield Op(kind, operands, attrs)

    def _attributes(self, kind: OpKind, shape: Shape) -> Iterator[tuple[int, Attrs]]:
        spec = SPECS[kind]
        if kind in _WITH_CONSTANTS:
            known = (attrs for other, attrs in self.constants if other is kind)
            yield from ((spec.max_arity - (attrs.value is not None), attrs) for attrs in known)
        elif "dim" in spec.required:
            dims, eps = (dim for dim, n in enumerate(shape) if n > 1), self.eps if kind in _NORMS else {None}
            yield from ((1, Attrs(dim=dim, eps=one)) for dim, one in product(dims, eps))
        elif kind not in _LAST or shape[-1] > 1:
            yield spec.min_arity, NO_ATTRS


class _BlockSpace:
    """Block graphs of one configuration, the graph without operators; an epilogue reads the inputs ``late``."""

    def __init__(self, outer: SpaceEnumeration, operands: tuple[_Operand, ...], shell: BlockGraph) -> None:
        self.outer, self.shell, self.tiles = outer, shell, _State(range(len(operands)))
        self.late = {n for n, (_, late) in enumerate(operands) if late}
        found = [iterator_type(shell.grid, shell.forloop_range, i, operands[n][0]) for n, i in enumerate(shell.inputs)]
        self.types = [tile for tile in found if isinstance(tile, STensor)]
        self.bytes = [tile.bytes for tile in self.types]
        #: Axes of grid and loop on which each tensor depends.
        self.axes = [frozenset(a for a, d in enumerate((*i.imap, i.fmap)) if d is not None) for i in shell.inputs]
        self.ops: dict[int, Op] = {}
        self.applied: dict[tuple[int, ...], list[int]] = {}
        self.cut = {axis for axis, extent in enumerate(shell.grid) if extent > 1}
        #: For each grid axis the dim that it splits in every input that it splits.
        dims = [{i.imap[axis] for i in shell.inputs} - {None} for axis in range(_LOOP)]
        self.aligned = [next(iter(d)) if len(d) == 1 else None for d in dims]

    def graphs(self, most: int) -> Iterator[BlockGraph]:
        """Yield every block graph with ``most`` outputs or fewer."""
        rules = partial(self._following, most), partial(self._admits, most)
        for state in _sets(self.outer.space.max_block_ops, *rules):
            yield from self._close(most, state)

    def _following(self, most: int, state: _State, left: int) -> Iterator[int]:
        """Yield the operators that may follow, but for those that leave more unread than others can read."""
        rules, unread = self.outer.block_rules, self._unread(state)
        for some in _multisets(self.tiles | state, rules.arity):
            if len(unread.difference(some)) < most + left * (rules.arity - 1):
                if some not in self.applied:
                    ops = rules.applications(some, {n: self.types[n] for n in some})
                    self.applied[some] = [n for op in ops for n in self._result(op)]
                yield from self.applied[some]

    def _result(self, op: Op) -> Iterator[int]:
        """Yield the number of an operator's result, unless a rule forbids the operator."""
        (first, *_), looped = op.operands, self.shell.forloop_range > 1
        made = shared_results(op.kind, op.attrs, tuple(self.types[n] for n in op.operands), self.shell.context)
        axes = frozenset[int]().union(*(self.axes[n] for n in op.operands))
        allowed = not SPECS[op.kind].accumulator or not looped or _LOOP in axes
        if op.kind is OpKind.ACCUM_MAX:  # carries masks, which have no sum, and what the loop does not change
            carried = first in self.late and op.kind in self.outer.space.block_ops
            allowed = carried and _LOOP not in axes if looped else not self.types[first].dtype.floating
        if allowed and not isinstance(made, str):
            self.ops[len(self.types)] = op
            self.types.append(made[0])
            self.bytes.append(0 if op.kind in IN_PLACE else made[0].bytes)
            self.axes.append(axes - {_LOOP} if SPECS[op.kind].accumulator else axes)
            yield len(self.types) - 1

    def _unread(self, state: _State) -> _State:
        return (self.tiles | state).difference(*(self.ops[n].operands for n in state))

    def _admits(self, most: int, state: _State, left: int) -> bool:
        """Return whether ``left`` more operators can complete a state within shared memory, and count it if so.

        Sound: an operator of k operands makes k - 1 fewer tensors unread, each one inside the loop has to be read, and
        one at least is behind it in the end.
        """
        unread = self._unread(state)
        inside = sum(not self.types[n].after_loop for n in unread)
        over = inside + max(0, len(unread) - inside + (inside > 0) - most)
        held = sum(self.bytes[n] for n in self.tiles | state)
        fits = over <= left * (self.outer.block_rules.arity - 1) and held <= self.outer.space.shared_bytes
        return fits and self.outer.count()

    def _close(self, most: int, state: _State) -> Iterator[BlockGraph]:
        """Yield the state with every choice of output savers: all unread tensors, and others behind the loop."""
        unread, order = self._unread(state), sorted(state)
        savable = {n for n in state if self.types[n].after_loop and self.cut <= self.axes[n]}
        if not unread <= savable or not self._is_connected(order):
            return
        names = {n: place for place, n in enumerate((*self.tiles, *order))}
        ops = tuple(replace(self.ops[n], operands=tuple(names[i] for i in self.ops[n].operands)) for n in order)
        for count in range(most - len(unread) + 1):
            for extra in combinations(sorted(savable - unread), count):
                for savers in product(*(self._savers(n, names[n]) for n in sorted((*unread, *extra)))):
                    yield replace(self.shell, ops=ops, outputs=savers)

    def _savers(self, n: int, name: int) -> Iterator[OutputSaver]:
        for omap in self.outer.space.omap_candidates(self.shell.grid, len(self.types[n].shape)):
            if all(dim in (None, out) for dim, out in zip(self.aligned, omap, strict=True)):
                yield OutputSaver(name, omap)

    def _is_connected(self, order: list[int]) -> bool:
        parts = [{n} for n in self.tiles]
        for joined in ({n, *self.ops[n].operands} for n in order):
            parts = [*(p for p in parts if not p & joined), joined.union(*(p for p in parts if p & joined))]
        return len(parts) == 1


class SpaceEnumeration:
    """Kernel graphs of a space for a program, within limits: most states, and seconds of processor time."""

    def __init__(self, program: KernelGraph, space: SearchSpace, limits: tuple[int, float]) -> None:
        self.program, self.space = program, space
        self.states = 0  # configurations of kernels, and sets of operators of block and kernel graphs
        self._most, self._deadline = limits[0], time.process_time() + limits[1]
        self._rules = _OperatorRules(program, space.kernel_ops)
        masks = [OpKind.ACCUM_MAX] if OpKind.ACCUM_SUM in space.block_ops else []
        self.block_rules = _OperatorRules(program, (*space.block_ops, *masks))
        self._tensors = [(one.tensor, n in epilogue_inputs(program)) for n, one in enumerate(program.inputs)]
        self._inputs = range(len(program.inputs))
        self._optional = set(self._inputs).difference(program.outputs, *(op.operands for op in program.ops))
        self._ops: list[tuple[Op | GraphDefined, range]] = []  # and the numbers of their results
        self._blocks: dict[tuple[_Operand, ...], list[BlockGraph]] = {}
        self._known: dict[object, list[int]] = {}

    def count(self, states: int = 1) -> bool:
        """Count states; true. Raises EnumerationStopped if a limit is reached."""
        self.states += states
        if self.states > self._most:
            raise EnumerationStopped(f"more than {self._most:,} states")
        if time.process_time() > self._deadline:
            raise EnumerationStopped(f"stopped for time after {self.states:,} states")
        return True

    def graphs(self) -> Iterator[KernelGraph]:
        """Yield every complete kernel graph, with every choice of outputs; see ``count``."""
        for state in _sets(self.space.max_kernel_ops, self._following, self._admits):
            unread, tensors = self._unread(state), self._numbers(state)
            names = {n: place for place, n in enumerate(tensors)}
            places = ([n for n in tensors if self._tensors[n][0] == one] for one in output_types(self.program))
            for outputs in product(*places):
                if unread <= set(outputs) and len({*self._inputs, *outputs}) == len(self._inputs) + len(outputs):
                    self.count(0)
                    ops = (self._ops[op][0] for op in sorted(state))
                    renamed = tuple(replace(op, operands=tuple(names[n] for n in op.operands)) for op in ops)
                    yield KernelGraph(self.program.inputs, renamed, tuple(names[n] for n in outputs))

    def _numbers(self, state: _State) -> list[int]:
        return [*self._inputs, *(n for op in sorted(state) for n in self._ops[op][1])]

    def _unread(self, state: _State) -> _State:
        return _State(self._numbers(state)).difference(self._optional, *(self._ops[op][0].operands for op in state))

    def _most_unread(self, state: _State, left: int) -> int:
        """Return how many tensors may be unread: ``left`` operators read them, or they are outputs."""
        defined = self.space.max_graph_defined - sum(isinstance(self._ops[n][0], GraphDefined) for n in state)
        wider = min(left, defined) * max(0, self.space.max_block_inputs - self._rules.arity)
        return len(self.program.outputs) + left * (self._rules.arity - 1) + wider

    def _admits(self, state: _State, left: int) -> bool:
        held = sum(self._tensors[n][0].bytes for n in self._numbers(state))
        few = len(self._unread(state)) <= self._most_unread(state, left)
        return few and held <= self.space.device_bytes and self.count()

    def _following(self, state: _State, left: int) -> Iterator[int]:
        """Yield the operators that may follow, but for those that leave more unread than others can read."""
        most, tensors, unread = self._most_unread(state, left), self._numbers(state), self._unread(state)
        defined = [op for op in (self._ops[n][0] for n in state) if isinstance(op, GraphDefined)]
        sizes = range(1, self.space.max_block_inputs + 1) if len(defined) < self.space.max_graph_defined else ()
        sets = (some for size in sizes for some in combinations(tensors, size))
        again = {n for op in defined for n in op.operands}
        sets = (some for some in sets if len(again.intersection(some)) <= self.space.max_reread)
        pairs = ((self._predefined, _multisets(tensors, self._rules.arity)), (self._graph_defined, sets))
        for make, some in ((make, some) for make, each in pairs for some in each):
            if len(unread.difference(some)) < most:
                if (make, some) not in self._known:
                    self._known[make, some] = list(make(some))
                yield from self._known[make, some]

    def _add(self, op: Op | GraphDefined, results: tuple[DTensor, ...]) -> int:
        self._ops.append((op, range(len(self._tensors), len(self._tensors) + len(results))))
        self._tensors += [(made, False) for made in results]
        return len(self._ops) - 1

    def _predefined(self, some: tuple[int, ...]) -> Iterator[int]:
        types = {n: self._tensors[n][0] for n in some}
        for op in self._rules.applications(some, types):
            made = device_results(op.kind, op.attrs, tuple(types[n] for n in op.operands))
            if not isinstance(made, str):
                yield self._add(op, made)

    def _graph_defined(self, some: tuple[int, ...]) -> Iterator[int]:
        operands = tuple(self._tensors[n] for n in some)
        if operands not in self._blocks:
            self._blocks[operands] = list(self._block_graphs(operands))
        for block in self._blocks[operands]:
            yield self._add(GraphDefined(some, block), block_outputs(block, tuple(kind for kind, _ in operands)))

    def _block_graphs(self, operands: tuple[_Operand, ...]) -> Iterator[BlockGraph]:
        """Yield the block graphs of every configuration."""
        space, shapes = self.space, [kind.shape for kind, _ in operands]
        most = min(space.max_block_outputs, self._most_unread(_State(), space.max_kernel_ops - 1))
        for grid in space.grid_candidates(shapes):
            for imaps in product(*(space.imap_candidates(grid, shape) for shape in shapes)):
                if any(n > 1 and all(imap[axis] is None for imap in imaps) for axis, n in enumerate(grid)):
                    continue
                cut = [dict(zip(imap, grid, strict=True)) for imap in imaps]
                slabs = [tuple(n // by.get(d, 1) for d, n in enumerate(s)) for s, by in zip(shapes, cut, strict=True)]
                for fmaps in product(*map(space.fmap_candidates, slabs)):
                    split = [slab[dim] for slab, dim in zip(slabs, fmaps, strict=True) if dim is not None]
                    inputs = tuple(map(InputIterator, imaps, fmaps))
                    for loop, dimx in product(space.loop_candidates(split), space.reduction_dimx):
                        self.count()
                        for block in space.block_dims:
                            shell = BlockGraph(grid, block, loop, dimx, inputs, (), ())
                            yield from _BlockSpace(self, operands, shell).graphs(most)

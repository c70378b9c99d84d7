"""Enumeration of graph-defined kernels without extents: which structures and classes compute given outputs.

A last kernel must reach the program's output; an earlier one may write any set of useful classes. Two reuse
techniques and some filters keep this small. Each can be switched off by its name, and a test compares the results:

- "share": a grid part on an axis that the program never reduces does not change the closure, so structures that differ
  only there share one.
- "merge": parts of an axis that no output distinguishes are carried to later kernels as one part (kernel_interface.py).
- "filter": before the structures of a last kernel are enumerated, its most permissive ones are tried.
- "ties": inputs that share an index wherever they occur in the target are split alike along it (shared_indices.py).
- "apart": copies of one axis are split in different ways (symbolic_tiling.py).
- "diagonal": no tensor depends on the loop or a grid axis through two indices at once (saturation.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from itertools import combinations, product
from typing import Final

from msgspec import Struct, structs

from mirage_formal.graph.ops import OpKind
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.search.engine_interface import SearchCounters, SearchOptions
from mirage_formal.search.epilogue_inputs import epilogue_inputs
from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.part_masks import Frame, unsplit_frame
from mirage_formal.search.guided.algebra.part_numbering import (
    SLOTS,
    Axis,
    Part,
    Parts,
    Split,
    child_part,
    is_unsplit,
    part_axis,
    unsplit_part,
)
from mirage_formal.search.guided.axes import ProgramAxes, TensorId
from mirage_formal.search.guided.extract import (
    Dag,
    all_inputs,
    extract_graphs,
    min_costs,
    min_operators,
    reachable_inputs,
)
from mirage_formal.search.guided.index_renaming import Dims, IndexRenaming
from mirage_formal.search.guided.kernel_interface import KernelInterface, merge_parts
from mirage_formal.search.guided.saturation import PRUNED, ClassId, Closure, Saturator
from mirage_formal.search.guided.shared_indices import shared_index_dims
from mirage_formal.search.guided.solved_kernel import Placement, SolvedClosure, SolvedKernel
from mirage_formal.search.guided.symbolic_tiling import (
    AxisCopies,
    AxisCopyAssigner,
    G,
    KTensor,
    L,
    SymbolicTiling,
    T,
    TilingRules,
    leaves_of,
)
from mirage_formal.search.space import SearchSpace


class _EarlierKernel(Struct, frozen=True):
    """A solved kernel before the last one whose outputs are not yet chosen.

    Attributes:
        tensors: Its inputs in device memory.
        read: Its inputs with the index copies and parts under which it reads them.
        frame: The frame before it.
        structure: Its structure.
        solved: Its closure.
    """

    tensors: tuple[KTensor, ...]
    read: tuple[KTensor, ...]
    frame: Frame
    structure: SymbolicTiling
    solved: SolvedClosure


class _Outputs(Struct, frozen=True):
    """The sets of outputs that an earlier kernel may write.

    Attributes:
        kernels: For each set the interface, and the kernel that writes it.
        pruned: Number of further sets by the test that prunes them.
    """

    kernels: list[tuple[KernelInterface, SolvedKernel]]
    pruned: Counter[str]


#: The full sum that each partial reduction becomes if the part that it would keep is left out of the structure.
_WHOLE: Final = {OpKind.SUM_TO_DIMX: OpKind.SUM, OpKind.ACCUM_SUM_TO_DIMX: OpKind.ACCUM_SUM_LAST}

#: An output that an earlier kernel may write: its class, the device tensor, and the dims that concatenate grid parts.
_Export = tuple[ClassId, KTensor, Placement]


class KernelSolver:
    """Solver of graph-defined kernels of one program in one space; memoised, deterministic."""

    def __init__(self, axes: ProgramAxes, space: SearchSpace, options: SearchOptions, tally: SearchCounters) -> None:
        self.axes = axes
        self.space = space
        self.algebra = algebra = Algebra(len(axes.extents), laws_of(options.choice))
        self.tally = tally
        self._share = "share" not in options.off
        self._filter = "filter" not in options.off
        self._merge = "merge" not in options.off
        ops = frozenset(space.block_ops)
        self._closer = Saturator(axes, algebra, ops, options)
        loose = ops | {_WHOLE[op] for op in ops & _WHOLE.keys()}
        self._loose_closer = self._closer if loose == ops else Saturator(axes, algebra, loose, options)
        most = space.max_axes_per_split
        self.target, self.goal = axes.target(algebra)
        repeats = axes.repeats(algebra, self.target)
        self.names = AxisCopies(algebra.width, max(most, min(repeats, 2)), 1 if repeats == 1 else repeats + 1)
        folds = space.fold_tiles and bool(ops & {OpKind.SUM_TO_DIMX, OpKind.ACCUM_SUM_TO_DIMX})
        self._rules = TilingRules(axes.free, axes.bound, folds, self.names, most, "apart" not in options.off)
        self.inputs = tuple(KTensor(*axes.tensor(algebra, TensorId(i))) for i in range(len(axes.program.inputs)))
        tied = self.names.ways > 1 and "ties" not in options.off
        places = shared_index_dims(algebra, self.target, self.inputs) if tied else {}
        self._reader = AxisCopyAssigner(self.names, places, frozenset(tensor.form for tensor in self.inputs))
        self._first: KernelSolver | None = None  # see ``continuation``
        self._outputs: dict[tuple[tuple[KTensor, ...], tuple[KTensor, ...], Frame, SymbolicTiling], _Outputs] = {}
        self._solved: dict[tuple[Saturator, tuple[KTensor, ...], Frame, SymbolicTiling], SolvedClosure | None] = {}
        self._shared_structures: dict[SymbolicTiling, SymbolicTiling] = {}
        self._last: dict[tuple[tuple[KTensor, ...], Frame], list[SolvedKernel]] = {}
        self._earlier: dict[tuple[tuple[KTensor, ...], Frame], dict[KernelInterface, list[SolvedKernel]]] = {}
        self.frame = unsplit_frame(self.names.count)
        self._raw = {tensor.form for tensor in self.inputs}
        self._late = {self.inputs[i].form for i in epilogue_inputs(axes.program)}

    @property
    def repeatable(self) -> bool:
        """Return whether ``continuation`` makes what it makes in any case, with the same counts."""
        return self._closer.repeatable and self.algebra.lawless

    def continuation(self, options: SearchOptions, tally: SearchCounters) -> KernelSolver:
        """Return a solver of the same program and space that need not solve again what this one has solved.

        Everything is counted, and offered to the sample of decisions, when it is first asked for, as if it were solved
        then. What the solver returns depends on this one's state, so only solvers in one state may be continued, or
        units would depend on the units that a process has searched before.

        Sound: a closure rests on its inputs, its structure and the frame, by which it is told apart; the numbers of
        forms are those of this solver.

        Args:
            options: Options that differ in their sample only.
            tally: The counts of the other solver.
        """
        other = copy(self)
        other._first, other.tally = self, tally
        other.algebra = self.algebra.snapshot()
        other._closer = self._closer.copy_for(other.algebra, options.sample)
        other._loose_closer = other._closer
        if self._loose_closer is not self._closer:
            other._loose_closer = self._loose_closer.copy_for(other.algebra, options.sample)
        other._solved, other._outputs, other._last, other._earlier = {}, {}, {}, {}
        return other

    def views(self, frame: Frame) -> IndexRenaming:
        """Return the index renaming of device tensors: an axis that an earlier kernel left split keeps its name.

        Args:
            frame: The frame at that point of the kernel graph.
        """
        names = self.names

        def peers(axis: Axis) -> list[Axis]:
            if frame[axis] != 1 << unsplit_part(axis):
                return [axis]
            copies = names.axes[names.base(axis) :: names.width]
            return [copy for copy in copies if frame[copy] == 1 << unsplit_part(copy)]

        return IndexRenaming(self.algebra, peers)

    def keeps(self, form: Form, frame: Frame) -> bool:
        """Return whether a tensor of device memory may be part of a candidate.

        Args:
            form: Its form.
            frame: The frame at that point of the kernel graph.
        """
        return self._closer.keeps(form, self.target, frame)

    def device_tensor(self, form: Form, dims: Dims, frame: Frame) -> KTensor | None:
        """Return a device tensor with its index copies renamed canonically.

        Args:
            form: Its form.
            dims: Its dims.
            frame: The frame at that point of the kernel graph.

        Returns:
            The tensor; None if an axis has too few copies for it.
        """
        if self.names.single:
            return KTensor(form, dims)
        try:
            return KTensor(*self.views(frame).canonical(form, dims))
        except ValueError:
            return None

    def _goals(self, leaves: Parts) -> Iterator[tuple[Form, Dims]]:
        """Yield form and dims of the program's output for each choice of the given leaves as its indices.

        Where some tensors carry an axis in parts and another has it whole, the output may use either.
        """
        names = self.names
        held: dict[Axis, list[Parts]] = {}
        for leaf in leaves:
            ways = held.setdefault(part_axis(leaf), [()])
            if is_unsplit(leaf):
                ways.insert(0, (leaf,))
            else:
                ways[-1] += (leaf,)
        axes = [part_axis(part) for dim in self.goal for part in dim]
        choices = [
            [(a, way) for a, ways in held.items() if names.base(a) == names.base(axis) for way in ways if way]
            for axis in axes
        ]
        for chosen in product(*choices):
            used: dict[Axis, int] = {}
            final: dict[Axis, tuple[Axis, Parts]] = {}
            for axis, (name, way) in zip(axes, chosen, strict=True):
                twin = used[name] = used.get(name, -1) + 1
                step = twin * names.width * names.ways
                final[axis] = (Axis(name + step), tuple(Part(leaf + step * SLOTS) for leaf in way))
            if any(twin >= names.twins for twin in used.values()):
                continue
            pairs = tuple((a, b) for a, (b, _) in final.items() if a != b)
            dims = tuple(tuple(leaf for part in dim for leaf in final[part_axis(part)][1]) for dim in self.goal)
            yield self.algebra.substitute(self.target, pairs), dims

    def dags(self, kernel: SolvedKernel) -> list[Dag]:
        """Return all operator DAGs of a kernel within the operator limit."""
        found = kernel.solved.dags.get(kernel.goals)
        if found is None:
            solved = kernel.solved
            found = extract_graphs(solved.closure, kernel.goals, self.space.max_block_ops, solved.cost)
            solved.dags[kernel.goals] = found
        return found

    # --- closures ----------------------------------------------------------------------------------------------

    def _shared(self, structure: SymbolicTiling) -> SymbolicTiling:
        """Return the structure without grid parts of axes that the program never reduces."""
        if not self._share:
            return structure
        known = self._shared_structures.get(structure)
        if known is not None:
            return known
        bound, base = self.axes.bound, self.names.base
        splits = tuple(
            (leaf, split if base(part_axis(leaf)) in bound else tuple(k for k in split if k is not G))
            for leaf, split in structure.splits
        )
        shared = self._shared_structures[structure] = SymbolicTiling(splits, structure.loops, structure.names)
        return shared

    def _solve(self, tensors: tuple[KTensor, ...], frame: Frame, structure: SymbolicTiling) -> SolvedClosure | None:
        """Return the closure of a kernel under a structure; None where the structure does not fit its inputs."""
        self.tally.add("structures")
        if any(structure.block_dims(t.dims) is None or not structure.opens(t.dims) for t in tensors):
            return None
        return self._closed(self._closer, tensors, frame, self._shared(structure))

    def _closed(
        self, closer: Saturator, tensors: tuple[KTensor, ...], frame: Frame, structure: SymbolicTiling
    ) -> SolvedClosure | None:
        """Return the memoised closure of a kernel under this structure; None where it does not fit the inputs."""
        key = (closer, tensors, frame, structure)
        if key not in self._solved:
            first = self._first
            before = None if first is None or closer is not self._closer else (first._closer, *key[1:])
            if first is not None and before in first._solved:
                self._solved[key] = self._repeat(first._solved[before], first._closer, frame, structure)
            else:
                self._solved[key] = self._close(closer, tensors, frame, structure)
        return self._solved[key]

    def _repeat(
        self, solved: SolvedClosure | None, made_by: Saturator, frame: Frame, structure: SymbolicTiling
    ) -> SolvedClosure | None:
        """Return a closure that the first solver has made, and count it."""
        if solved is not None:
            inner, loose = structure.frame(frame), len(structure.loops) > 1
            self._closer.repeat(solved.closure, made_by, self.target, inner, loose=loose)
            self._count(solved.closure)
        return solved

    def _close(
        self, closer: Saturator, tensors: tuple[KTensor, ...], frame: Frame, structure: SymbolicTiling
    ) -> SolvedClosure | None:
        inputs: list[tuple[Form, Dims]] = []
        for tensor in tensors:
            form = self.algebra.rename(tensor.form, structure.renaming)
            dims = structure.block_dims(tensor.dims)
            if form is None or dims is None:
                return None
            inputs.append((form, dims))
        if len(set(inputs)) < len(inputs):
            return None
        inner = structure.frame(frame)
        carried = frozenset(ClassId(i) for i, tensor in enumerate(tensors) if tensor.form in self._late)
        closure = closer.close(inputs, structure, inner, self.target, self.space.max_block_ops, carried)
        self._count(closure)
        return SolvedClosure(closure, min_costs(closure), reachable_inputs(closure))

    def _count(self, closure: Closure) -> None:
        self.tally.add("classes", len(closure.classes))
        self.tally.add("states", closure.tried)
        for reason, count in closure.dropped.items():
            self.tally.prune(reason, "block", count)
        self.tally.check()

    # --- the last kernel ---------------------------------------------------------------------------------------

    def last(self, tensors: tuple[KTensor, ...], frame: Frame) -> list[SolvedKernel]:
        """Return every way in which one kernel computes the program's output.

        Args:
            tensors: Its inputs in device memory.
            frame: The frame before it.
        """
        key = (tensors, frame)
        found = self._last.get(key)
        if found is None:
            readings = list(self._reader.readings(tensors, frame, self.algebra))
            found = self._last[key] = []
            for read in readings:
                if self._filter and len(readings) == 1 and not self._may_reach(read, frame):
                    self.tally.prune("filter", "kernel")
                    continue
                found += self._last_kernels(read, frame)
        return found

    def _last_kernels(self, tensors: tuple[KTensor, ...], frame: Frame) -> Iterator[SolvedKernel]:
        goals = list(self._goals(self._leaves(tensors)))
        for structure in self._rules.structures(tensors, last=True):
            for form, goal in goals:
                kernel = self._last_kernel(tensors, frame, structure, form, goal)
                if kernel is not None and self.dags(kernel):
                    yield kernel

    def _leaves(self, tensors: tuple[KTensor, ...]) -> Parts:
        return tuple(sorted({self.names.first(leaf) for leaf in leaves_of(tensors)}))

    def _last_kernel(
        self, tensors: tuple[KTensor, ...], frame: Frame, structure: SymbolicTiling, form: Form, goal: Dims
    ) -> SolvedKernel | None:
        tile = structure.block_dims(goal)
        if tile is None or not structure.opens(goal):
            return None
        if any(L in structure.split(leaf) for dim in goal for leaf in dim):
            return None
        placement = tuple((leaf, _dim_of_leaf(goal, leaf)) for leaf in structure.grid_leaves)
        if any(dim < 0 for _, dim in placement):
            return None
        solved = self._solve(tensors, frame, structure)
        if solved is None:
            return None
        number = solved.closure.index.get((form, tile, True), PRUNED)
        need = all_inputs(len(tensors))
        if number == PRUNED or solved.reach[number] != need or solved.cost[number] > self.space.max_block_ops:
            return None
        return SolvedKernel(tensors, structure, solved, (number,), (placement,), last=True)

    def _may_reach(self, tensors: tuple[KTensor, ...], frame: Frame) -> bool:
        """Return whether some most permissive structure reaches the target.

        Sound: leaving out an unreduced free axis removes every constraint that its parts could add (dims that must be
        empty, the order of parts in a dim); what an operator needs of it, a part that folding keeps, is in ``_WHOLE``.
        Keeping any other axis unsplit leaves every operator of a split one available; the loop range may be the whole
        axis, so each such loop is tried as well. Checked by the on/off test.
        """
        base_of = self.names.base
        leaves = self._leaves(tensors)
        left_out = self.axes.free - self.axes.bound
        base: dict[Part, Split] = {leaf: (() if base_of(part_axis(leaf)) in left_out else (T,)) for leaf in leaves}
        need = all_inputs(len(tensors))
        for loops in self._rules.loop_groups(tensors):
            ways: list[Split] = [(L,), (L, T)] if len(loops) > 1 else [(L,)]
            for splits in product(ways, repeat=len(loops)):
                every = {**base, **dict(zip(loops, splits, strict=True))}
                structure = SymbolicTiling(tuple(sorted(every.items())), loops, self.names)
                solved = self._closed(self._loose_closer, tensors, frame, structure)
                if solved is None:
                    continue
                for form, goal in self._goals(leaves):
                    tile = tuple(tuple(p for leaf in dim for p in structure.local(leaf)) for dim in goal)
                    number = solved.closure.index.get((form, tile, True), PRUNED)
                    if number != PRUNED and solved.reach[number] == need:
                        return True
        return False

    # --- an earlier kernel -------------------------------------------------------------------------------------

    def earlier(self, tensors: tuple[KTensor, ...], frame: Frame) -> dict[KernelInterface, list[SolvedKernel]]:
        """Return the interfaces that one kernel can have, with the ways to compute them.

        Args:
            tensors: Its inputs in device memory.
            frame: The frame before it.
        """
        key = (tensors, frame)
        found = self._earlier.get(key)
        if found is None:
            found = self._earlier[key] = {}
            for read in self._reader.readings(tensors, frame, self.algebra):
                if _has_ambiguous_axis(read):
                    continue
                for structure in self._rules.structures(read, last=False):
                    solved = self._solve(read, frame, structure)
                    if solved is not None:
                        self._add_outputs(found, _EarlierKernel(tensors, read, frame, structure, solved))
        return found

    def _add_outputs(self, out: dict[KernelInterface, list[SolvedKernel]], kernel: _EarlierKernel) -> None:
        key = (kernel.tensors, kernel.read, kernel.frame, kernel.structure)
        found = None if self._first is None else self._first._outputs.get(key)
        if found is None:
            found = self._outputs[key] = self._outputs_of(kernel)
        for reason, count in found.pruned.items():
            self.tally.prune(reason, "kernel", count)
        for handover, complete in found.kernels:
            out.setdefault(handover, []).append(complete)

    def _outputs_of(self, kernel: _EarlierKernel) -> _Outputs:
        """Return the sets of outputs that a kernel may write."""
        found = _Outputs([], Counter())
        exports = self._exports(kernel)
        for count in range(1, self.space.max_block_outputs + 1):
            for chosen in combinations(exports, count):
                written = self._written(kernel, chosen)
                if isinstance(written, str):
                    found.pruned[written] += 1
                elif written is not None:
                    found.kernels.append(written)
        return found

    def _written(
        self, kernel: _EarlierKernel, chosen: tuple[_Export, ...]
    ) -> tuple[KernelInterface, SolvedKernel] | str | None:
        """Return the interface of the kernel that writes these classes, and the kernel.

        None if it may not, or the name of the test that prunes it.
        """
        solved = kernel.solved
        numbers = [number for number, _, _ in chosen]
        used = 0
        for number in numbers:
            used |= solved.reach[number]
        if used != all_inputs(len(kernel.tensors)) or len(set(numbers)) < len(numbers):
            return None
        if min_operators([solved.cost[n] for n in numbers]) > self.space.max_block_ops:
            return None
        tensors = [tensor for _, tensor, _ in chosen]
        collapsed = merge_parts(self.algebra, tensors, kernel.structure, kernel.frame, merge=self._merge)
        if collapsed is None:
            return "parts"
        handover, origins = collapsed
        outputs = [self.device_tensor(o.form, o.dims, handover.frame) for o in handover.outputs]
        named = [o for o in outputs if o is not None]
        if len(named) < len(outputs) or len(set(named)) < len(named) or any(o in kernel.tensors for o in named):
            return None
        if any(o.form in self._raw for o in named):
            return "copy"
        order = sorted(range(len(named)), key=lambda i: (named[i].form, named[i].dims))
        goals = tuple(numbers[i] for i in order)
        placements = tuple(chosen[i][2] for i in order)
        return (
            structs.replace(handover, outputs=tuple(named[i] for i in order)),
            SolvedKernel(kernel.read, kernel.structure, solved, goals, placements, origins),
        )

    def _exports(self, kernel: _EarlierKernel) -> list[_Export]:
        out: list[_Export] = []
        solved = kernel.solved
        closure = solved.closure
        for number in map(ClassId, range(closure.inputs, len(closure.classes))):
            form, dims, after = closure.classes[number]
            if after and solved.cost[number] <= self.space.max_block_ops:
                out += [(number, t, p) for t, p in self._placed(form, dims, kernel.structure, kernel.read)]
        return out

    def _placed(
        self, form: Form, dims: Dims, structure: SymbolicTiling, tensors: tuple[KTensor, ...]
    ) -> Iterator[tuple[KTensor, Placement]]:
        """Yield the device tensors that the blocks' tiles can form: every grid part goes in front of its own tile part.

        A grid part whose tile part was reduced goes to the dim that it splits in the inputs, or to any if they
        disagree. No two grid parts go to one dim.
        """
        choices: list[list[int]] = []
        for leaf in structure.grid_leaves:
            if not self.algebra.free[form] >> child_part(leaf, G) & 1:
                return  # blocks along this axis would write the same values
            local = structure.local(leaf)
            holding = [i for i, dim in enumerate(dims) if any(p in local for p in dim)]
            if holding and dims[holding[0]][0] not in local:
                return
            sources = {i for t in tensors for i, dim in enumerate(t.dims) if leaf in dim}
            choices.append(holding or (sorted(sources) if len(sources) == 1 else list(range(len(dims)))))
        for positions in product(*choices):
            if len(set(positions)) < len(positions):
                continue
            placed = [list(dim) for dim in dims]
            for leaf, position in zip(structure.grid_leaves, positions, strict=True):
                placed[position].insert(0, child_part(leaf, G))
            tensor = KTensor(form, tuple(tuple(dim) for dim in placed))
            yield tensor, tuple(zip(structure.grid_leaves, positions, strict=True))


def _has_ambiguous_axis(read: tuple[KTensor, ...]) -> bool:
    """Return whether one name stands for two indices: an axis is carried in parts and also occurs whole.

    Sound: a last kernel can only reach its goal through one of them; the outputs of an earlier one could hold both.
    """
    leaves = leaves_of(read)
    return not {part_axis(p) for p in leaves if is_unsplit(p)}.isdisjoint(
        part_axis(p) for p in leaves if not is_unsplit(p)
    )


def _dim_of_leaf(dims: Dims, leaf: Part) -> int:
    return next((i for i, dim in enumerate(dims) if leaf in dim), -1)

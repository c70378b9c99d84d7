"""Graph-defined kernels as problems over classes: the last kernel reaches the target, an earlier one any useful set.

Two sharings and one filter keep this small; each can be switched off and a test compares the results:

- "share": a grid part on an axis that the program never reduces does not change the closure, so structures that differ
  only there share one.
- "filter": before the structures of a last kernel are enumerated, its most permissive ones are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

from mirage_formal.ir.ops import OpKind
from mirage_formal.search.engine import SearchOptions, Tally
from mirage_formal.search.guided.axes import ProgramAxes
from mirage_formal.search.guided.closure import Closer, Closure
from mirage_formal.search.guided.extract import Dag, costs, extract, reachable_inputs
from mirage_formal.search.guided.structure import Dims, Frame, G, KTensor, L, Structure, StructureRules, T, leaves_of
from mirage_formal.search.space import SearchSpace
from mirage_formal.semantics.index.algebra import Algebra, Renaming
from mirage_formal.semantics.index.parts import Parts, Split, axis_of, child, mask, whole

#: For each grid leaf the output dim that concatenates it.
Placement = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Solved:
    """The closure of one kernel, with what is derived from it on demand."""

    target: int
    closure: Closure
    cost: list[int]
    reach: list[int]
    dags: dict[tuple[int, ...], list[Dag]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastKernel:
    """A kernel that computes the program's output: its structure and goal class."""

    structure: Structure
    solved: Solved
    goals: tuple[int, ...]
    placements: tuple[Placement, ...]
    outer: bool = False


@dataclass(frozen=True, slots=True)
class FirstKernel:
    """A kernel that computes intermediate tensors: goal class and placement of each, in the order of the outputs."""

    structure: Structure
    solved: Solved
    goals: tuple[int, ...]
    placements: tuple[Placement, ...]
    outer: bool = True


Kernel = LastKernel | FirstKernel
#: Outputs of a first kernel and the frame behind it.
OutputSet = tuple[tuple[KTensor, ...], Frame]


class KernelSolver:
    """Solves graph-defined kernels of one program in one space; memoised, deterministic."""

    def __init__(self, axes: ProgramAxes, space: SearchSpace, options: SearchOptions, tally: Tally) -> None:
        self.axes = axes
        self.space = space
        self.algebra = Algebra()
        self.tally = tally
        self._share = "share" not in options.off
        self._filter = "filter" not in options.off
        ops = frozenset(space.block_ops)
        self._closer = Closer(axes, self.algebra, ops, options.prune)
        self._rules = StructureRules(
            axes.free, axes.bound, space.fold_tiles and bool(ops & {OpKind.SUM_TO_DIMX, OpKind.ACCUM_SUM_TO_DIMX})
        )
        self._targets: dict[Frame, int] = {}
        self._solved: dict[tuple[int, tuple[KTensor, ...], Frame, Structure], Solved | None] = {}
        self._last: dict[tuple[int, tuple[KTensor, ...], Frame], list[LastKernel]] = {}
        self._first: dict[tuple[int, tuple[KTensor, ...], Frame], dict[OutputSet, list[FirstKernel]]] = {}
        self.inputs = tuple(
            KTensor(axes.variable(self.algebra, i), tuple(tuple(whole(a) for a in dim) for dim in axes.dims[i]))
            for i in range(len(axes.program.inputs))
        )
        self.frame: Frame = tuple(1 << whole(a) for a in range(len(axes.extents)))
        self._raw = {tensor.form for tensor in self.inputs}

    def target(self, frame: Frame) -> int:
        """Normal form of the program's output in a frame."""
        found = self._targets.get(frame)
        if found is None:
            found = self._targets[frame] = self.axes.target(self.algebra, frame)
        return found

    def goal_dims(self, leaves: tuple[int, ...]) -> Dims:
        """Dims of the program's output over the leaves at hand."""
        return tuple(tuple(leaf for a in dim for leaf in leaves if axis_of(leaf) == a) for dim in self.axes.output)

    def dags(self, kernel: Kernel) -> list[Dag]:
        """All operator DAGs of a kernel within the operator limit."""
        found = kernel.solved.dags.get(kernel.goals)
        if found is None:
            solved = kernel.solved
            found = extract(solved.closure, kernel.goals, self.space.max_block_ops, solved.cost)
            solved.dags[kernel.goals] = found
        return found

    # --- closures ----------------------------------------------------------------------------------------------

    def _shared(self, structure: Structure) -> Structure:
        """The structure without grid parts of axes that the program never reduces."""
        if not self._share:
            return structure
        splits = tuple(
            (leaf, split if axis_of(leaf) in self.axes.bound else tuple(k for k in split if k is not G))
            for leaf, split in structure.splits
        )
        return Structure(structure.level, splits, structure.loop)

    def _solve(self, tensors: tuple[KTensor, ...], frame: Frame, structure: Structure) -> Solved | None:
        """Closure of a kernel under a structure; None where the structure does not fit its inputs."""
        self.tally.add("structures")
        if any(structure.block_dims(tensor.dims) is None for tensor in tensors):
            return None
        shared = self._shared(structure)
        key = (structure.level, tensors, frame, shared)
        if key not in self._solved:
            self._solved[key] = self._close(tensors, frame, shared)
        return self._solved[key]

    def _close(self, tensors: tuple[KTensor, ...], frame: Frame, structure: Structure) -> Solved | None:
        inputs: list[tuple[int, Dims]] = []
        for tensor in tensors:
            form = self.algebra.rename(tensor.form, structure.renaming)
            dims = structure.block_dims(tensor.dims)
            if form is None or dims is None:
                return None
            inputs.append((form, dims))
        if len(set(inputs)) < len(inputs):
            return None
        inner = structure.frame(frame)
        target = self.target(inner)
        closure = self._closer.close(inputs, inner, structure.loop_mask, target, self.space.max_block_ops)
        self.tally.add("classes", len(closure.classes))
        self.tally.add("states", closure.tried)
        return Solved(target, closure, costs(closure), reachable_inputs(closure))

    # --- the last kernel ---------------------------------------------------------------------------------------

    def last(self, tensors: tuple[KTensor, ...], frame: Frame, level: int) -> list[LastKernel]:
        """Every way in which one kernel computes the program's output from these tensors."""
        key = (level, tensors, frame)
        found = self._last.get(key)
        if found is None:
            found = self._last[key] = list(self._last_kernels(tensors, frame, level))
        return found

    def _last_kernels(self, tensors: tuple[KTensor, ...], frame: Frame, level: int) -> Iterator[LastKernel]:
        leaves = leaves_of(tensors)
        goal = self.goal_dims(leaves)
        need = (1 << len(tensors)) - 1
        if self._filter and not self._may_reach(tensors, frame, level, leaves, goal):
            self.tally.prune("filter")
            return
        for structure in self._rules.structures(level, leaves, last=True):
            tile = structure.block_dims(goal)
            if tile is None or any(L in structure.split(leaf) for dim in goal for leaf in dim):
                continue
            solved = self._solve(tensors, frame, structure)
            if solved is None:
                continue
            number = solved.closure.index.get((solved.target, tile, True), -1)
            if number < 0 or solved.reach[number] != need or solved.cost[number] > self.space.max_block_ops:
                continue
            placement = tuple((leaf, _dim_with(goal, leaf)) for leaf in structure.grid_leaves)
            if any(dim < 0 for _, dim in placement):
                continue
            kernel = LastKernel(structure, solved, (number,), (placement,))
            if self.dags(kernel):
                yield kernel

    def _may_reach(
        self, tensors: tuple[KTensor, ...], frame: Frame, level: int, leaves: tuple[int, ...], goal: Dims
    ) -> bool:
        """Whether some most permissive structure reaches the target.

        Sound: putting an unreduced free axis wholly on the grid removes the only constraint that its tile could add
        (a dim that must be empty), and keeping any other axis unsplit leaves every operator of a split one available;
        the loop range may be the whole axis, so each such loop is tried as well. Checked by the on/off test.
        """
        grid_only = [leaf for leaf in leaves if axis_of(leaf) in self.axes.free - self.axes.bound]
        base: dict[int, Split] = {leaf: ((G,) if leaf in grid_only else (T,)) for leaf in leaves}
        tries: list[tuple[dict[int, Split], int | None]] = [(base, None)]
        need = (1 << len(tensors)) - 1
        tries += [({**base, leaf: (L,)}, leaf) for leaf in leaves if axis_of(leaf) in self.axes.bound]
        for splits, loop in tries:
            structure = self._shared(Structure(level, tuple(sorted(splits.items())), loop))
            key = (level, tensors, frame, structure)
            if key not in self._solved:
                self._solved[key] = self._close(tensors, frame, structure)
            solved = self._solved[key]
            tile = tuple(tuple(p for leaf in dim for p in structure.local(leaf)) for dim in goal)
            if solved is None:
                continue
            number = solved.closure.index.get((solved.target, tile, True), -1)
            if number >= 0 and solved.reach[number] == need:
                return True
        return False

    # --- an earlier kernel -------------------------------------------------------------------------------------

    def first(
        self, tensors: tuple[KTensor, ...], frame: Frame, level: int, part: tuple[int, int] = (0, 1)
    ) -> dict[OutputSet, list[FirstKernel]]:
        """Output sets of one kernel over these tensors, with the ways to compute each.

        ``part`` = (i, n) restricts the kernel's structures to those numbered i modulo n.
        """
        key = (level, tensors, frame)
        found = self._first.get(key)
        if found is None:
            found = self._first[key] = self._output_sets(tensors, frame, level, part)
        return found

    def _output_sets(
        self, tensors: tuple[KTensor, ...], frame: Frame, level: int, part: tuple[int, int]
    ) -> dict[OutputSet, list[FirstKernel]]:
        out: dict[OutputSet, list[FirstKernel]] = {}
        need = (1 << len(tensors)) - 1
        for number, structure in enumerate(self._rules.structures(level, leaves_of(tensors), last=False)):
            if number % part[1] != part[0]:
                continue
            solved = self._solve(tensors, frame, structure)
            if solved is None:
                continue
            exports = self._exports(solved, structure, tensors)
            for count in range(1, self.space.max_block_outputs + 1):
                for chosen in combinations(exports, count):
                    self._add_output_set(out, solved, structure, frame, tensors, need, chosen)
        return out

    def _add_output_set(
        self,
        out: dict[OutputSet, list[FirstKernel]],
        solved: Solved,
        structure: Structure,
        frame: Frame,
        tensors: tuple[KTensor, ...],
        need: int,
        chosen: tuple[tuple[int, KTensor, Placement], ...],
    ) -> None:
        numbers = [number for number, _, _ in chosen]
        used = 0
        for number in numbers:
            used |= solved.reach[number]
        if used != need or len(set(numbers)) < len(numbers):
            return
        if max(solved.cost[n] for n in numbers) + len(numbers) - 1 > self.space.max_block_ops:
            return
        collapsed = collapse(self.algebra, [tensor for _, tensor, _ in chosen], structure, frame)
        if collapsed is None:
            return
        outputs, behind = collapsed
        if len(set(outputs)) < len(outputs) or any(o in tensors for o in outputs):
            return
        if any(o.form in self._raw for o in outputs):
            self.tally.prune("copy")
            return
        order = sorted(range(len(outputs)), key=lambda i: (outputs[i].form, outputs[i].dims))
        key = (tuple(outputs[i] for i in order), behind)
        goals = tuple(numbers[i] for i in order)
        placements = tuple(chosen[i][2] for i in order)
        out.setdefault(key, []).append(FirstKernel(structure, solved, goals, placements))

    def _exports(
        self, solved: Solved, structure: Structure, tensors: tuple[KTensor, ...]
    ) -> list[tuple[int, KTensor, Placement]]:
        out = []
        closure = solved.closure
        for number in range(closure.inputs, len(closure.classes)):
            form, dims, after = closure.classes[number]
            if after and solved.cost[number] <= self.space.max_block_ops:
                out += [(number, t, p) for t, p in self._placed(form, dims, structure, tensors)]
        return out

    def _placed(
        self, form: int, dims: Dims, structure: Structure, tensors: tuple[KTensor, ...]
    ) -> Iterator[tuple[KTensor, Placement]]:
        """The device tensors that an STensor's blocks can form: every grid part goes in front of its own tile part.

        A part whose tile is no longer there goes to the dim that it splits in the inputs, or to any if they disagree;
        no two parts go to one dim.
        """
        choices: list[list[int]] = []
        for leaf in structure.grid_leaves:
            if not self.algebra.free[form] >> child(leaf, G, structure.level) & 1:
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
                placed[position].insert(0, child(leaf, G, structure.level))
            tensor = KTensor(form, tuple(tuple(dim) for dim in placed))
            yield tensor, tuple(zip(structure.grid_leaves, positions, strict=True))


def _dim_with(dims: Dims, leaf: int) -> int:
    return next((i for i, dim in enumerate(dims) if leaf in dim), -1)


def collapse(
    algebra: Algebra, outputs: list[KTensor], structure: Structure, frame: Frame
) -> tuple[list[KTensor], Frame] | None:
    """Merge the parts of a leaf again where no output is partial on it; the frame behind keeps the others split."""
    behind = list(frame)
    merged: dict[int, Parts] = {}
    renaming: list[tuple[int, int]] = []
    bounds = [algebra.bound_masks(o.form) for o in outputs]
    for leaf, _ in structure.splits:
        children = structure.children(leaf)
        whole_mask = mask(children)
        if all(_entire(o.dims, children) for o in outputs) and not any(
            b & whole_mask not in (0, whole_mask) for masks in bounds for b in masks
        ):
            merged[leaf] = children
            renaming.append((whole_mask, 1 << leaf))
        else:
            axis = axis_of(leaf)
            behind[axis] = behind[axis] & ~(1 << leaf) | whole_mask
    out: list[KTensor] = []
    for tensor in outputs:
        form = algebra.rename(tensor.form, _only_bound(tuple(renaming)))
        if form is None:
            return None
        out.append(KTensor(form, tuple(_merge(dim, merged) for dim in tensor.dims)))
    return out, tuple(behind)


def _only_bound(renaming: Renaming) -> Renaming:
    return tuple((source, target) for source, target in renaming if source)


def _entire(dims: Dims, children: Parts) -> bool:
    """Whether the dims hold none of the children or all of them, side by side in order."""
    present = [(i, dim.index(p)) for p in children for i, dim in enumerate(dims) if p in dim]
    if not present:
        return True
    if len(present) < len(children):
        return False
    dim, start = present[0]
    return dims[dim][start : start + len(children)] == children


def _merge(dim: Parts, merged: dict[int, Parts]) -> Parts:
    out = list(dim)
    for leaf, children in merged.items():
        if children and children[0] in out:
            start = out.index(children[0])
            out[start : start + len(children)] = [leaf]
    return tuple(out)

"""Engine of guided search: enumerates kernel sequences over classes and instantiates them as µGraphs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import msgspec
from msgspec import Struct

from mirage_formal.graph.canonical import canonical
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, row_major
from mirage_formal.graph.verdict import Candidate, Different
from mirage_formal.search.bounds import Extents as ExtentKind
from mirage_formal.search.engine_interface import LimitReached, SearchCounters, SearchOptions, Stats, Unit, UnitResult
from mirage_formal.search.guided.algebra.part_numbering import unsplit_part
from mirage_formal.search.guided.axes import ProgramAxes, require_normal_form
from mirage_formal.search.guided.emit import block_graph
from mirage_formal.search.guided.extent_choice import Assignment, DagFilter, ExtentAssigner, Extents
from mirage_formal.search.guided.extract import Dag
from mirage_formal.search.guided.kernel_sequences import GraphDefinedStep, Path, PathFinder
from mirage_formal.search.guided.kernel_solver import KernelSolver
from mirage_formal.search.guided.saturation import ClassId
from mirage_formal.search.guided.solved_kernel import SolvedKernel
from mirage_formal.search.space import SearchSpace

#: Number of shares of a search; each explores its own subset of the first kernels' interfaces.
SHARES = 4


class _ConcreteKernel(Struct, frozen=True):
    """One concrete kernel: a symbolic kernel, one of its DAGs, and its extents."""

    kernel: SolvedKernel
    dag: Dag
    assignment: Assignment


#: Units share their first kernels if these take at most a quarter of the states that a unit may visit: a unit that ends
#: at its limit may not need them all.
_MOST_SHARED = 4
#: Weight of a predefined operator's launch, in the units of Assigner's weights.
_LAUNCH = 3.0
#: Candidates instantiated for each sequence of kernel kinds, per unit of ``best``.
_PER_BEST = 64


class GuidedEngine:
    """Search engine over symbolic extents.

    Args:
        best: How many assignments (and, of each, how many DAGs) of a structure are instantiated, by a rough weight;
            None instantiates all, which only small spaces allow.

    Left out by construction: graphs that cancel (x * y / x), compute one value twice, only copy, or rescale by
    constants that the program does not contain; disconnected block graphs; programs with several outputs; and the cases
    of docs/search.md.
    """

    name = "guided"

    def __init__(self, best: int | None = 6) -> None:
        self._best = best

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """Return the work units: single kernels, and shares of the first kernels' interfaces if there may be several.

        The unit of single kernels is short and comes first, so its results exist whenever a search ends.

        Raises:
            UnsupportedError: The program is outside this engine; see ``require_normal_form``.
        """
        require_normal_form(program)
        space = options.bounded(space)
        if space.max_graph_defined <= 1:
            return [Unit(0, "first kernels 1 of 1", "0/1")]
        units = [Unit(0, "single kernels", "0/0")]
        shares = SHARES if space.max_kernel_ops > 1 else 0
        return units + [Unit(i, f"first kernels {i} of {shares}", f"{i - 1}/{shares}") for i in range(1, shares + 1)]

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        """Run one share and return its canonical candidates, each once, in the order found."""
        share, shares = (int(n) for n in unit.payload.split("/"))
        space = options.bounded(space)
        tally = SearchCounters(space.max_states)
        solver = _solver(program, space, options, tally) if shares > 1 else None
        solver = solver or KernelSolver(ProgramAxes(program), space, options, tally)
        builder = _PathBuilder(solver, space, self._best)
        found: dict[KernelGraph, Candidate] = {}
        paths = self._confirmed(PathFinder(solver, (share, shares)).paths(), builder, options, tally)
        for graph in builder.graphs(paths):
            final = canonical(graph)
            found.setdefault(final, Candidate(final, self.name))
        tally.add("candidates", len(found))
        algebra = solver.algebra
        counts = Stats(oracle_calls=algebra.queries, cache_hits=algebra.queries - algebra.misses)
        return UnitResult(tuple(found.values()), tally.stats() + counts)

    def _confirmed(
        self, paths: Iterator[Path], builder: _PathBuilder, options: SearchOptions, tally: SearchCounters
    ) -> list[Path]:
        """Return the paths whose small instance the caller's fingerprint does not refute.

        The normal form has already shown each of them equal; a refutation here is a bug and is counted as rejected. At
        the limit on states, return the paths found by then.
        """
        out = []
        try:
            for path in paths:
                tally.add("complete")
                scaled = builder.scaled(path) if options.accept is not None else None
                if scaled is not None and options.accept is not None:
                    verdict = options.accept(Candidate(scaled[1], self.name, scaled))
                    if isinstance(verdict, Different):
                        tally.add("rejected")
                        continue
                out.append(path)
        except LimitReached:
            tally.add("cut")
        return out


def _solver(
    program: KernelGraph, space: SearchSpace, options: SearchOptions, tally: SearchCounters
) -> KernelSolver | None:
    """Return a solver for one of several shares that need not solve the first kernels, which all shares have in common.

    None where shares divide the first kernels, or these are many.
    """
    method = msgspec.structs.replace(options, accept=None, cost=None, sample=None)
    first = _first_kernels(program, space, method)
    return None if first is None else first.continuation(options, tally)


@lru_cache(maxsize=1)  # a process searches the shares of one program after another
def _first_kernels(program: KernelGraph, space: SearchSpace, options: SearchOptions) -> KernelSolver | None:
    """Return a solver that has solved the first kernels of a program; None if they are not to be shared."""
    tally = SearchCounters(None if space.max_states is None else space.max_states // _MOST_SHARED, shown=False)
    solver = KernelSolver(ProgramAxes(program), space, options, tally)
    finder = PathFinder(solver, (0, SHARES))
    if finder.divides_first_kernels or not solver.repeatable:
        return None
    try:
        finder.solve_first_kernels()
    except LimitReached:
        return None
    return solver


class _BestChoices:
    """Collection of the choices of least weight, earlier ones first among equals; unlimited if there is no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._count = 0
        self._kept: list[tuple[float, int, int, tuple[_ConcreteKernel | None, ...]]] = []

    def takes(self, weight: float) -> bool:
        """Return whether a choice of at least this weight may still be kept."""
        return self._limit is None or len(self._kept) < self._limit or weight < -self._kept[0][0]

    def add(self, weight: float, path: int, choices: tuple[_ConcreteKernel | None, ...]) -> None:
        """Keep a choice for the path with this number, if it is among the best."""
        if not self.takes(weight):
            return
        self._count += 1
        item = (-weight, -self._count, path, choices)
        if self._limit is None or len(self._kept) < self._limit:
            heapq.heappush(self._kept, item)
        else:
            heapq.heapreplace(self._kept, item)

    def ordered(self) -> Iterator[tuple[int, tuple[_ConcreteKernel | None, ...]]]:
        """Return the kept items by ascending weight."""
        for _, _, path, choices in sorted(self._kept, key=lambda item: (-item[0], -item[1])):
            yield path, choices


def _extents_after(kernel: SolvedKernel, assignment: Assignment, outer: Extents) -> Extents:
    """Return the extents of the parts that later kernels read."""
    if not kernel.origins:
        return outer
    inside = assignment.extents
    return {**outer, **{part: prod(inside[p] for p in made_of) for part, made_of in kernel.origins}}


class _PathBuilder:
    """Builder of µGraphs from paths."""

    def __init__(self, solver: KernelSolver, space: SearchSpace, best: int | None) -> None:
        self._solver = solver
        self._space = space
        self._best = best
        self._axes = solver.axes
        width = self._axes.dtype.bytes
        self._assigner = ExtentAssigner(space, width)
        self._small = ExtentAssigner(_unbounded_space(space), width)
        self._cache: dict[tuple[int, tuple[int, ...]], list[_ConcreteKernel]] = {}
        self._fitting: dict[tuple[int, tuple[ClassId, ...]], DagFilter] = {}
        self._kernels: list[SolvedKernel] = []

    def graphs(self, paths: list[Path]) -> Iterator[KernelGraph]:
        """Yield µGraphs of the paths: all of them, or those of least rough weight for each sequence of kernel kinds."""
        extents = self._extents(self._axes.extents)
        groups: dict[tuple[bool, ...], _BestChoices] = {}
        for number, path in enumerate(paths):
            kinds = tuple(isinstance(step, GraphDefinedStep) for step in path)
            best = groups.setdefault(kinds, _BestChoices(None if self._best is None else self._best * _PER_BEST))
            for weight, choices in self._extend(path, 0, extents, (), 0.0, best):
                best.add(weight, number, choices)
        for best in groups.values():
            for number, choices in best.ordered():
                yield self._emit(paths[number], choices, self._assigner)

    def _extents(self, sizes: Sequence[int]) -> Extents:
        """Return the extents of unsplit axes; copies of one axis have one extent."""
        names = self._solver.names
        return {unsplit_part(a): sizes[names.base(a)] for a in names.axes} if sizes else {}

    def scaled(self, path: Path) -> tuple[KernelGraph, KernelGraph] | None:
        """Return the program and a candidate of this path at small extents; None where constants depend on extents."""
        axes = self._axes
        if axes.kinds & {OpKind.MEAN, OpKind.RESHAPE}:
            return None
        sizes = sorted(set(axes.extents))
        for step in (12, 24, 48):
            small = self._extents([step * (1 + sizes.index(n)) for n in axes.extents])
            choices = self._any(path, 0, small)
            if choices is not None:
                inputs = tuple(
                    _resize_input(i, tuple(prod(small[unsplit_part(a)] for a in dim) for dim in axes.dims[n]))
                    for n, i in enumerate(axes.program.inputs)
                )
                candidate = self._emit(path, choices, self._small)
                return replace(axes.program, inputs=inputs), replace(candidate, inputs=inputs)
        return None

    def _any(self, path: Path, at: int, extents: Extents) -> tuple[_ConcreteKernel | None, ...] | None:
        if at == len(path):
            return ()
        step = path[at]
        if not isinstance(step, GraphDefinedStep):
            rest = self._any(path, at + 1, extents)
            return None if rest is None else (None, *rest)
        for kernel in step.kernels:
            for dag in self._solver.dags(kernel)[:1]:
                for assignment in self._small.assignments(kernel, extents):
                    if not self._small.folds(kernel, dag, assignment):
                        continue
                    rest = self._any(path, at + 1, _extents_after(kernel, assignment, extents))
                    if rest is not None:
                        return (_ConcreteKernel(kernel, dag, assignment), *rest)
        return None

    def _extend(
        self,
        path: Path,
        at: int,
        extents: Extents,
        done: tuple[_ConcreteKernel | None, ...],
        weight: float,
        best: _BestChoices,
    ) -> Iterator[tuple[float, tuple[_ConcreteKernel | None, ...]]]:
        """Yield every choice for the rest of a path that may be among the best, with its weight."""
        if at == len(path):
            yield weight, done
            return
        step = path[at]
        if not isinstance(step, GraphDefinedStep):
            yield from self._extend(path, at + 1, extents, (*done, None), weight + _LAUNCH, best)
            return
        for kernel in step.kernels:
            for choice in self._choices(kernel, extents):
                sofar = weight + choice.assignment.weight
                if not best.takes(sofar):
                    break  # they come in ascending order
                inner = _extents_after(kernel, choice.assignment, extents)
                yield from self._extend(path, at + 1, inner, (*done, choice), sofar, best)

    def _choices(self, kernel: SolvedKernel, extents: Extents) -> list[_ConcreteKernel]:
        """Return the choices for a kernel by ascending weight."""
        key = (id(kernel), tuple(extents[leaf] for leaf, _ in kernel.structure.splits))
        found = self._cache.get(key)
        if found is None:
            self._kernels.append(kernel)  # keeps the identity in the keys alive
            found = self._cache[key] = self._best_choices(kernel, extents)
        return found

    def _best_choices(self, kernel: SolvedKernel, extents: Extents) -> list[_ConcreteKernel]:
        key = (id(kernel.solved), kernel.goals)  # all that DAGs and what they store rest on; kept by ``_choices``
        dags = self._fitting.get(key)
        if dags is None:
            dags = self._assigner.fitting(kernel, sorted(self._solver.dags(kernel), key=len))
            self._fitting[key] = dags
        assignments = sorted(self._assigner.assignments(kernel, extents), key=lambda a: a.weight)
        # A later kernel depends only on the extents of the parts left split: keep the best choices for each of these
        # extents.
        out: list[_ConcreteKernel] = []
        kept: dict[tuple[int, ...], int] = {}
        for assignment in assignments:
            group = tuple(prod(assignment.extents[p] for p in made_of) for _, made_of in kernel.origins)
            if self._best is not None and kept.get(group, 0) >= self._best:
                continue
            fitting = dags.first(assignment.extents, self._best)
            if fitting:
                kept[group] = kept.get(group, 0) + 1
                out += [_ConcreteKernel(kernel, dag, assignment) for dag in fitting]
        return out

    def _emit(self, path: Path, choices: tuple[_ConcreteKernel | None, ...], assigner: ExtentAssigner) -> KernelGraph:
        program = self._axes.program
        tensors = self._solver.inputs
        ops: list[KernelOp] = []
        for step, choice in zip(path, choices, strict=True):
            if isinstance(step, GraphDefinedStep):
                assert choice is not None
                block = block_graph(
                    choice.kernel,
                    choice.dag,
                    choice.assignment,
                    self._space.block_dims[0],
                    assigner.folds_to,
                )
                ops.append(GraphDefined(step.operands, block))
            else:
                ops.append(Op(step.kind, step.operands, step.attrs))
            tensors = (*tensors, *step.outputs)
        return KernelGraph(program.inputs, tuple(ops), (len(tensors) - 1,))


def _resize_input(program_input: Input, shape: tuple[int, ...]) -> Input:
    return Input(program_input.name, DTensor(shape, program_input.tensor.dtype), row_major(shape))


def _unbounded_space(space: SearchSpace) -> SearchSpace:
    """Return the space with every divisor allowed, for small instances."""
    rules = replace(
        space.free,
        grids=None,
        imaps=None,
        omaps=None,
        fmaps=None,
        forloop_ranges=None,
        min_blocks=1,
        max_blocks=4096,
    )
    return replace(space, extents=ExtentKind.FREE, free=rules, reduction_dimx=tuple(range(2, 512)))

"""Partition of a program into subgraphs that can be searched and proved one by one.

A subgraph (part) is a set of operators with one result that is used outside, that of its root. Such a set is connected
and convex. Any choice of such sets has a topological order, because a root's number is larger than those of the roots
that its part reads.

The cut points are found by dynamic programming over immediate post-dominators: an operator ends at the one operator
that every path from it to an output passes next. Once a root's part is chosen, the operators that end in it and do not
belong to it are roots themselves. The operators below each root are an independent problem. So the least cost below a
root is the minimum, over its parts, of the part's cost plus the least costs below these roots.

An operator whose result is a view stays as it is and costs nothing. The cost of any other part comes from a callback: a
lower bound (``floor_us``) before its search, the found cost after it. Cuts cost launches and memory traffic, so the
fewest bytes and kernels win. Among equal costs more and smaller parts win, which are easier to search.

The minimum is taken over all parts of a root, unless it has more than about 4096: then over that number, smaller ones
first, and ``Partition.limited`` counts such roots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final, TypeVar

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import is_view
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.search.horizontal_fusion.slices import extract_subgraph
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_fusible
from mirage_formal.search.preprocess import cancelling_maxima
from mirage_formal.support.errors import ProgramError

#: Most sets of operators enumerated for one root, smaller ones first; wide programs have very many.
_MOST_SETS: Final = 4096
_NANOS: Final = 1000.0
#: Least rows of a product's result that one block computes: those of one tensor-core instruction.
_ROWS: Final = 16
#: Operators that commute with a product: linear ones, and data movement.
_PASSED: Final = frozenset(
    {OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.DIV_NO_NAN, OpKind.SCALE, OpKind.SUM, OpKind.MEAN}
    | {OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.SLICE, OpKind.PAD}
)

#: Cost in microseconds of operators as a program of their own; None if no search takes them together.
Price = Callable[[KernelGraph], float | None]
#: Replacements of operators: number of kernels and microseconds of each; empty if no search takes them.
Offers = tuple[tuple[int, float], ...]
Prices = Callable[[KernelGraph], Offers]


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Size limits of a part that one search can take.

    Attributes:
        operators: Most operators of a part, beside those that compute maxima which candidates may leave out.
        inputs: Most tensors that one kernel reads; a part that reads more is expected to need another kernel.
    """

    operators: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Subgraph of a program that is searched as one, or a single operator that is kept.

    Attributes:
        operators: Numbers of its operators in the program, ascending.
        program: The subgraph as a program; inputs are named x0, x1, ... in the order of their first use.
        reads: For each of its inputs, the number of the program's tensor.
        results: For each of its outputs, the number of the program's tensor that is used outside.
        searched: Whether a search takes it; else it is one predefined operator that is kept.
        kernels: Number of kernels of its replacement; None for the cheapest replacement.
    """

    operators: tuple[int, ...]
    program: KernelGraph
    reads: tuple[int, ...]
    results: tuple[int, ...]
    searched: bool
    kernels: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition of a program into subgraphs.

    Attributes:
        parts: The subgraphs in topological order.
        limited: Number of roots whose sets of operators were not enumerated completely; if 0, the partition is optimal.
    """

    parts: tuple[Subgraph, ...]
    limited: int


def extract_subprogram(
    program: KernelGraph, operators: Sequence[int]
) -> tuple[KernelGraph, tuple[int, ...], tuple[int, ...]]:
    """Extract operators of a program as a program whose outputs are their results that are used outside.

    If none is used outside, the output is the last operator's result.

    Returns:
        The program, for each of its inputs the number of the given program's tensor, and likewise for its outputs.
    """
    base, inside = len(program.inputs), set(operators)
    outside = (op.operands for number, op in enumerate(program.ops) if number not in inside)
    used = {i for operands in (*outside, program.outputs) for i in operands}
    results = tuple(base + number for number in operators if base + number in used) or (base + operators[-1],)
    graph, reads = extract_subgraph(program, kernel_types(program), operators, results)
    return graph, reads, results


def partition_program(
    program: KernelGraph, target: Target, limits: PartLimits, price: Price, kernel_us: float = 0.0
) -> Partition:
    """Return the cheapest partition of a program, among the enumerated sets of operators.

    Args:
        program: A program of predefined operators.
        target: The GPU of the cost model.
        limits: Size limits of one search.
        price: Function that returns the cost of a subgraph within the limits.
        kernel_us: Microseconds that each subgraph costs in addition to its price, except views.

    Raises:
        ProgramError: An operator is graph-defined.
        GraphError: The program is not well-formed.
    """

    def offers(part: KernelGraph) -> Offers:
        us = price(part)
        return () if us is None else ((1, us),)

    (found,) = _partitions(_PartitionSolver(program, target, limits, offers, front=False, kernel_us=kernel_us))
    return found


def partitions(program: KernelGraph, target: Target, limits: PartLimits, prices: Prices) -> tuple[Partition, ...]:
    """Return the Pareto front of partitions: of each number of kernels the cheapest, if those with fewer cost more.

    Args:
        program: A program of predefined operators.
        target: The GPU of the cost model.
        limits: Size limits of one search.
        prices: Function that returns the replacements of a subgraph within the limits, with their costs.

    Returns:
        Partitions by ascending cost and descending number of kernels.

    Raises:
        ProgramError: An operator is graph-defined.
        GraphError: The program is not well-formed.
    """
    return _partitions(_PartitionSolver(program, target, limits, prices, front=True))


def _partitions(cutter: _PartitionSolver) -> tuple[Partition, ...]:
    return tuple(Partition(parts, len(cutter.limited)) for parts in list(cutter.partitions()))


@dataclass(frozen=True, slots=True)
class _PartChoice:
    """A subgraph with a given root, and the choices for the roots below it: a cover of all operators below the root.

    Attributes:
        key: Cost in nanoseconds, then minus the number of subgraphs, so that more subgraphs win at equal costs.
        kernels: Number of kernels.
        part: The subgraph.
        below: The choices for the roots below it.
    """

    key: tuple[int, int]
    kernels: int
    part: Subgraph
    below: tuple[_PartChoice, ...]


@dataclass(frozen=True, slots=True)
class _ChoiceSum:
    """Choices for several roots, with their summed cost and kernels; the attributes are as in ``_PartChoice``."""

    key: tuple[int, int]
    kernels: int
    below: tuple[_PartChoice, ...]


_C = TypeVar("_C", _PartChoice, _ChoiceSum)


class _PartitionSolver:
    def __init__(
        self,
        program: KernelGraph,
        target: Target,
        limits: PartLimits,
        prices: Prices,
        *,
        front: bool,
        kernel_us: float = 0.0,
    ) -> None:
        self._program = program
        self._types = kernel_types(program)
        if any(isinstance(op, GraphDefined) for op in program.ops):
            hint = "describe the program with predefined operators; the search finds the graph-defined ones"
            raise ProgramError("expected predefined operators only, got a customized one", where="partition", hint=hint)
        self._target = target
        self._limits = limits
        self._prices = prices
        self._front = front
        self._kernel_us = kernel_us
        self._base = len(program.inputs)
        self._readers: list[list[int]] = [[] for _ in program.ops]
        for number, op in enumerate(program.ops):
            for operand in dict.fromkeys(op.operands):
                if operand >= self._base:
                    self._readers[operand - self._base].append(number)
        self._shown = {output - self._base for output in program.outputs}
        self._end = len(program.ops)  # stands for the caller, who reads the outputs
        self._ends = self._post_dominators()
        self._dominated: dict[int, list[int]] = {}
        for number, end in enumerate(self._ends):
            self._dominated.setdefault(end, []).append(number)
        self._shifts = cancelling_maxima(program)
        self.limited: set[int] = set()
        self._best: dict[int, list[_PartChoice]] = {}
        self._judged: dict[KernelGraph, tuple[bool, Offers]] = {}

    def partitions(self) -> Iterator[tuple[Subgraph, ...]]:
        """Yield the cheapest partition, or the Pareto front of cost and number of kernels."""
        for root in range(len(self._program.ops)):  # the roots below a root have smaller numbers
            self._best[root] = self._cheapest_choices(self._choices(root))
        roots = self._dominated.get(self._end, [])
        for total in self._together(roots):
            found: list[Subgraph] = []
            todo = list(total.below)
            while todo:
                choice = todo.pop()
                found.append(choice.part)
                todo += choice.below
            yield tuple(sorted(found, key=lambda part: part.results))

    def _cheapest_choices(self, choices: Iterable[_C]) -> list[_C]:
        """Return the cheapest choice; of a solver with ``front``, the Pareto front of cost and kernels by cost."""
        if not self._front:
            return [min(choices, key=lambda choice: choice.key)]
        found: list[_C] = []
        for choice in sorted(choices, key=lambda choice: (choice.key, choice.kernels)):
            if not found or choice.kernels < found[-1].kernels:
                found.append(choice)
        return found

    def _together(self, roots: Sequence[int]) -> list[_ChoiceSum]:
        """Return the combined choices for all of several roots, reduced by ``_cheapest_choices``."""
        sums = [_ChoiceSum((0, 0), 0, ())]
        for root in roots:
            sums = self._cheapest_choices(
                _ChoiceSum(
                    (one.key[0] + choice.key[0], one.key[1] + choice.key[1]),
                    one.kernels + choice.kernels,
                    (*one.below, choice),
                )
                for one in sums
                for choice in self._best[root]
            )
        return sums

    def _post_dominators(self) -> list[int]:
        """Return, for each operator, its immediate post-dominator, or ``_end``.

        A result without readers counts as read by the caller.
        """
        ends = [self._end] * len(self._program.ops)
        for number in reversed(range(len(self._program.ops))):
            readers = self._readers[number]
            if number in self._shown or not readers:
                continue
            meet = readers[0]
            for other in readers[1:]:
                while meet != other:
                    low = min(meet, other)
                    meet, other = ends[low], max(meet, other)
            ends[number] = meet
        return ends

    def _choices(self, root: int) -> Iterator[_PartChoice]:
        for operators in self._sets(root):
            result = self._base + root
            graph, reads = extract_subgraph(self._program, self._types, operators, (result,))
            view = len(operators) == 1 and is_view(self._program, result)
            searched, offers = (False, ((0, 0.0),)) if view else self._judge(graph)
            if not offers:
                continue
            inside = set(operators)
            part = Subgraph(operators, graph, reads, (result,), searched)
            below = sorted(n for end in operators for n in self._dominated.get(end, ()) if n not in inside)
            for one in self._together(below):
                for kernels, us in offers:
                    key = (one.key[0] + round(_NANOS * (us + kernels * self._kernel_us)), one.key[1] - 1)
                    own = replace(part, kernels=kernels) if self._front else part
                    yield _PartChoice(key, one.kernels + kernels, own, one.below)

    def _sets(self, root: int) -> list[tuple[int, ...]]:
        """Return the sets of operators whose only result used outside is the root's; smaller sets come first."""
        found: dict[frozenset[int], None] = {frozenset({root}): None}
        layer = list(found)
        for _ in range(1, self._limits.operators + len(self._shifts)):
            grown: dict[frozenset[int], None] = {}
            for inside in layer:
                for number in self._addable(inside):
                    if len(inside - self._shifts) < self._limits.operators or number in self._shifts:
                        grown.setdefault(inside | {number})
                if len(found) + len(grown) > _MOST_SETS:
                    self.limited.add(root)
                    break
            layer = list(grown)
            found |= grown
        return [tuple(sorted(inside)) for inside in found]

    def _addable(self, inside: frozenset[int]) -> list[int]:
        """Return the operators whose readers are all in the set."""
        near = {i - self._base for number in inside for i in self._program.ops[number].operands if i >= self._base}
        fit = [n for n in near - inside if n not in self._shown and inside.issuperset(self._readers[n])]
        return sorted(fit, reverse=True)

    def _judge(self, graph: KernelGraph) -> tuple[bool, Offers]:
        """Return whether a part is searched, and its offers; none for several operators that no search takes."""
        if graph not in self._judged:
            offers = self._prices(graph)
            searched = bool(offers)
            if not offers and len(graph.ops) == 1:
                offers = ((1, estimate(graph, self._target).us),)
            self._judged[graph] = (searched, offers)
        return self._judged[graph]


def floor_us(part: KernelGraph, target: Target, most_inputs: int, *, cuts: bool = True) -> float:
    """Return a lower bound in microseconds for the best fused form of a subgraph, by the figures of the target.

    The bound is that of one kernel that reads every input once and writes every output once, or does the arithmetic at
    peak rate, whichever takes longer. More kernels are counted in two cases: more inputs than one kernel reads, and
    chained products whose rows give too few blocks. In the second case blocks compute partial sums, which go through
    device memory. If it is cheaper to send the inner product through memory, the bound is that of one kernel with few
    blocks, with the bandwidth and arithmetic of as many SMs; without ``cuts``, of one kernel at the rate of the device.
    """
    types, model = kernel_types(part), target.model
    extra, crossing, fewest = _chained_product_costs(part, types, target)
    active = target.sms if fewest is None or not cuts else fewest
    rate = min(target.bandwidth_gbs * model.bandwidth_efficiency, active * model.sm_bandwidth_gbs) * 1e3
    traffic = sum(types[i].bytes for i in range(len(part.inputs))) + sum(types[i].bytes for i in part.outputs)
    compute = sum(kernel.compute_us for kernel in estimate(part, target).kernels) * model.library_efficiency
    # Kernels of several outputs, and those without products, are united ones, each of which reads a few of the inputs.
    alone = len(part.outputs) == 1 and any(isinstance(op, Op) and op.kind is OpKind.MATMUL for op in part.ops)
    wide = max(0, -(-(len(part.inputs) - 1) // max(1, most_inputs - 1)) - 1) if alone else 0
    later = max(extra, wide)
    # A floor: all kernels may be generated ones, whose launches behind one another are shorter.
    launches = model.launch_us + later * min(model.launch_us, model.dependent_launch_us)
    busy = max((traffic + crossing) / rate, compute * target.sms / active)
    return launches + (1 + later) * model.latency_us + busy


def is_single_kernel_best(part: KernelGraph, target: Target) -> bool:
    """Return whether candidates with several kernels for a subgraph are no better than its own subgraphs, as expected.

    Several kernels can be better in three cases. The first is split-K partial sums, where few rows do not fill the
    device and the partial sums are smaller than the inner product. The second is another order of products, where an
    operand of a product comes from another product through operators that commute with a product. The third, without
    products, is partial sums of few long rows.

    Sound: it decides which kernels are searched for a part, whose own parts are searched as well.
    """
    types = kernel_types(part)
    if _chained_product_costs(part, types, target)[0]:
        return False
    if not any(isinstance(op, Op) and op.kind is OpKind.MATMUL for op in part.ops):
        return is_fusible(part) and not _few_rows(part, target)
    passed: set[int] = set()  # products, and results of such operators on them
    for number, op in enumerate(part.ops, len(part.inputs)):
        behind = not passed.isdisjoint(op.operands)
        if isinstance(op, Op) and op.kind is OpKind.MATMUL:
            if behind:
                return False
            passed.add(number)
        elif behind and isinstance(op, Op) and op.kind in _PASSED:
            full = all(1 not in types[i].shape[-2:] for i in op.operands)
            if (
                op.kind not in (OpKind.MUL, OpKind.DIV, OpKind.DIV_NO_NAN) or not full
            ):  # an elementwise factor does not commute with a product
                passed.add(number)
    return True


def _few_rows(part: KernelGraph, target: Target) -> bool:
    """Return whether an operator reduces or normalizes rows that are too few to fill the device."""
    types, base = kernel_types(part), len(part.inputs)
    for number, op in enumerate(part.ops, base):
        dim = op.attrs.dim if isinstance(op, Op) else None
        if dim is not None and 2 * prod(types[number].shape) < target.sms * types[number].shape[dim]:
            return True
    return False


def _chained_product_costs(part: KernelGraph, types: Sequence[DTensor], target: Target) -> tuple[int, int, int | None]:
    """Return the costs of a subgraph with chained matrix products (a product as operand of a product).

    Returns:
        Number of extra kernels for partial sums, bytes of these, and number of blocks that can be active at once where
        partial sums do not pay; None where they do, or there are enough blocks.
    """
    inner: list[int] = [0] * len(part.inputs)  # bytes of the smallest product below each tensor, 0 if there is none
    extra = crossing = 0
    fewest: int | None = None
    for number, op in enumerate(part.ops, len(part.inputs)):
        below = min((inner[i] for i in op.operands if inner[i]), default=0)
        inner.append(below)
        if not isinstance(op, Op) or op.kind is not OpKind.MATMUL:
            continue
        inner[number] = types[number].bytes
        shape = types[number].shape
        blocks = prod(shape[:-2]) * -(-shape[-2] // _ROWS)
        if not below or 2 * blocks >= target.sms:  # that many SMs reach most of the device's bandwidth
            continue
        partial = 2 * types[number].bytes * -(-target.sms // blocks)
        if 2 * below <= partial:
            fewest = min(fewest or target.sms, blocks)
            continue
        extra, crossing = extra + 1, crossing + partial
    return extra, crossing, fewest


__all__ = [
    *("Offers", "Part", "PartLimits", "Partition", "Price", "Prices"),
    *("extract", "floor_us", "one_by_one", "partition", "partitions"),
]

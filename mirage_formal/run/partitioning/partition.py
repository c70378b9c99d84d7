"""Cutting a program into parts that can be searched and proved one by one.

A part is a set of operators of which one result, its root's, is used outside. Such a set is connected and convex, and
any choice of them has an order in which each reads only what earlier ones computed: a root's number is larger than
those of the roots that its part reads.

The cut points are found by dynamic programming. An operator ends at the one operator that every path from it to an
output goes through next (its immediate post-dominator). Once a root's part is chosen, the operators that end in it and
do not belong to it are roots themselves, whatever else is chosen, and what lies below each is a problem of its own; so
the best cost below a root is the least, over its parts, of the part's cost and of the best costs below those.

An operator whose result is a view stays as it is and costs nothing. What any other part costs is asked for: a floor
(``floor_us``) for one that was not searched yet, what was found for one that was. Cuts cost launches and traffic, so
the fewest bytes and kernels win; of equal costs, more and smaller parts do, which are easier to search.

The least is taken over all parts of a root, unless it has more than about 4096: then over so many, smaller ones first,
and ``Partition.limited`` counts such roots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final, TypeVar

from mirage_formal.errors import ProgramError
from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.views import is_view
from mirage_formal.kernels.cost import estimate
from mirage_formal.kernels.target import Target
from mirage_formal.search.horizontal_fusion.slices import taken_out
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_mirrored
from mirage_formal.search.preprocess import shifts

#: Sets of operators that are looked at for one root, smaller ones first: wide programs have very many.
_MOST_SETS: Final = 4096
_NANOS: Final = 1000.0
#: Rows of a product's result that one block computes at least: those of one instruction of the tensor cores.
_ROWS: Final = 16
#: Operators that a product may pass: what is linear, and moves.
_PASSED: Final = frozenset(
    {OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.DIV_NO_NAN, OpKind.SCALE, OpKind.SUM, OpKind.MEAN}
    | {OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.SLICE, OpKind.PAD}
)

#: Microseconds of operators, as a program of their own, if one search takes them all; None if none does, so that they
#: are no part together, and one alone stays as it is.
Price = Callable[[KernelGraph], float | None]
#: What may take the place of operators: kernels and microseconds of each; nothing if no search takes them.
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
class Part:
    """Operators of a program that are searched together, or one operator that is kept.

    Attributes:
        operators: Their numbers in the program, ascending.
        program: They alone, as a program; inputs are named x0, x1, ... in the order of their first use.
        reads: For each of its inputs, the number of the program's tensor.
        results: Likewise for each of its outputs: those of its operators' results that are used outside.
        searched: Whether a search takes it; else it is one predefined operator that is kept.
        kernels: Kernels of what is to take its place; None for whatever costs least.
    """

    operators: tuple[int, ...]
    program: KernelGraph
    reads: tuple[int, ...]
    results: tuple[int, ...]
    searched: bool
    kernels: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition of a program into parts.

    Attributes:
        parts: In an order in which they can be computed.
        limited: Operators below which there are more sets than were looked at; if 0, no partition costs less.
    """

    parts: tuple[Part, ...]
    limited: int


def extract(program: KernelGraph, operators: Sequence[int]) -> tuple[KernelGraph, tuple[int, ...], tuple[int, ...]]:
    """Some operators of a program as a program of their own, whose outputs are those results that are used outside.

    Where none is used, it is the last one's.

    Returns:
        The program, for each of its inputs the number of the given program's tensor, and likewise for its outputs.
    """
    base, inside = len(program.inputs), set(operators)
    outside = (op.operands for number, op in enumerate(program.ops) if number not in inside)
    used = {i for operands in (*outside, program.outputs) for i in operands}
    results = tuple(base + number for number in operators if base + number in used) or (base + operators[-1],)
    graph, reads = taken_out(program, kernel_types(program), operators, results)
    return graph, reads, results


def partition(
    program: KernelGraph, target: Target, limits: PartLimits, price: Price, kernel_us: float = 0.0
) -> Partition:
    """The cheapest partition of a program, as far as the sets of operators that are looked at tell.

    Args:
        program: A program of predefined operators.
        target: The GPU whose figures the costs are made of.
        limits: What one search can take.
        price: What a part costs; asked about parts within the limits.
        kernel_us: Microseconds that each part counts for beside its price, views apart.

    Raises:
        ProgramError: An operator is graph-defined.
        GraphError: The program is not well-formed.
    """

    def offers(part: KernelGraph) -> Offers:
        us = price(part)
        return () if us is None else ((1, us),)

    (found,) = _partitions(_Cutter(program, target, limits, offers, front=False, kernel_us=kernel_us))
    return found


def partitions(program: KernelGraph, target: Target, limits: PartLimits, prices: Prices) -> tuple[Partition, ...]:
    """The front of the partitions: of each number of kernels the cheapest, if those with fewer kernels cost more.

    Args:
        program: A program of predefined operators.
        target: The GPU whose figures the costs are made of.
        limits: What one search can take.
        prices: What may take the place of a part; asked about parts within the limits.

    Returns:
        Partitions by ascending cost and descending number of kernels.

    Raises:
        ProgramError: An operator is graph-defined.
        GraphError: The program is not well-formed.
    """
    return _partitions(_Cutter(program, target, limits, prices, front=True))


def _partitions(cutter: _Cutter) -> tuple[Partition, ...]:
    return tuple(Partition(parts, len(cutter.limited)) for parts in list(cutter.partitions()))


@dataclass(frozen=True, slots=True)
class _Choice:
    """A part of a root, and the choices for the roots below it: all operators below the root.

    Attributes:
        key: Their cost in nanoseconds, less for more parts at equal costs.
        kernels: Their kernels.
        part: The part.
        below: The choices.
    """

    key: tuple[int, int]
    kernels: int
    part: Part
    below: tuple[_Choice, ...]


@dataclass(frozen=True, slots=True)
class _Sum:
    """Choices for several roots; the attributes are as those of ``_Choice``."""

    key: tuple[int, int]
    kernels: int
    below: tuple[_Choice, ...]


_C = TypeVar("_C", _Choice, _Sum)


class _Cutter:
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
        self._shifts = shifts(program)
        self.limited: set[int] = set()
        self._best: dict[int, list[_Choice]] = {}
        self._judged: dict[KernelGraph, tuple[bool, Offers]] = {}

    def partitions(self) -> Iterator[tuple[Part, ...]]:
        """The cheapest, or the front: for each number of kernels that costs less than fewer ones the cheapest."""
        for root in range(len(self._program.ops)):  # the roots below a root have smaller numbers
            self._best[root] = self._kept(self._choices(root))
        roots = [number for number, end in enumerate(self._ends) if end == self._end]
        for total in self._together(roots):
            found: list[Part] = []
            todo = list(total.below)
            while todo:
                choice = todo.pop()
                found.append(choice.part)
                todo += choice.below
            yield tuple(sorted(found, key=lambda part: part.results))

    def _kept(self, choices: Iterable[_C]) -> list[_C]:
        """The cheapest choice, or the front of all, fewest kernels last."""
        if not self._front:
            return [min(choices, key=lambda choice: choice.key)]
        found: list[_C] = []
        for choice in sorted(choices, key=lambda choice: (choice.key, choice.kernels)):
            if not found or choice.kernels < found[-1].kernels:
                found.append(choice)
        return found

    def _together(self, roots: Sequence[int]) -> list[_Sum]:
        """The ways to compute all of some roots that are worth keeping."""
        sums = [_Sum((0, 0), 0, ())]
        for root in roots:
            sums = self._kept(
                _Sum(
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

        A result that nobody reads counts as read by the caller.
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

    def _choices(self, root: int) -> Iterator[_Choice]:
        for operators in self._sets(root):
            result = self._base + root
            graph, reads = taken_out(self._program, self._types, operators, (result,))
            view = len(operators) == 1 and is_view(self._program, result)
            searched, offers = (False, ((0, 0.0),)) if view else self._judge(graph)
            if not offers:
                continue
            inside = set(operators)
            part = Part(operators, graph, reads, (result,), searched)
            for one in self._together([n for n, end in enumerate(self._ends) if end in inside and n not in inside]):
                for kernels, us in offers:
                    key = (one.key[0] + round(_NANOS * (us + kernels * self._kernel_us)), one.key[1] - 1)
                    own = replace(part, kernels=kernels) if self._front else part
                    yield _Choice(key, one.kernels + kernels, own, one.below)

    def _sets(self, root: int) -> list[tuple[int, ...]]:
        """Sets of operators of which only the root's result is used outside, within the limit, smaller ones first."""
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
        """Operators that only members of the set read."""
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
    """Microseconds that the best fused form of a part needs at least, as far as the figures of the target tell.

    One kernel that reads every input once and writes every output once, or does the arithmetic at peak rate, whichever
    takes longer. There are more kernels where there are more inputs than one reads, and for a product of a product
    whose rows make too few blocks: then blocks compute partial sums, which cross device memory. Where it would be
    cheaper to let the inner product cross, it is one kernel of few blocks, with the bandwidth and the arithmetic of as
    many SMs; without ``cuts`` it is one kernel at the rate of the device.
    """
    types, model = kernel_types(part), target.model
    extra, crossing, fewest = _chained(part, types, target)
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


def one_by_one(part: KernelGraph, target: Target) -> bool:
    """Return whether candidates of several kernels for a part are expected to be no better than its parts, one by one.

    They are where there is something to gain between kernels: partial sums, where rows are too few to fill the device
    and these cost less traffic than the inner product, or another order of products, where an operand of a product is
    made of another product by operators that a product may pass. Without products there are partial sums of few long
    rows, and several kernels may be better.

    Sound: it decides which kernels are searched for a part, whose own parts are searched as well.
    """
    types = kernel_types(part)
    if _chained(part, types, target)[0]:
        return False
    if not any(isinstance(op, Op) and op.kind is OpKind.MATMUL for op in part.ops):
        return is_mirrored(part) and not _few_rows(part, target)
    passed: set[int] = set()  # products, and what such operators make of them
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
            ):  # a factor for each element lets nothing pass
                passed.add(number)
    return True


def _few_rows(part: KernelGraph, target: Target) -> bool:
    """Return whether an operator works along rows that are too few to fill the device."""
    types, base = kernel_types(part), len(part.inputs)
    for number, op in enumerate(part.ops, base):
        dim = op.attrs.dim if isinstance(op, Op) else None
        if dim is not None and 2 * prod(types[number].shape) < target.sms * types[number].shape[dim]:
            return True
    return False


def _chained(part: KernelGraph, types: Sequence[DTensor], target: Target) -> tuple[int, int, int | None]:
    """Return the costs of a part with chained matrix products (a product as operand of a product).

    Returns:
        Further kernels for partial sums, the bytes of these, and the blocks that can be active at once where partial
        sums are not worth it; None where they are, or there are blocks enough.
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
        if not below or 2 * blocks >= target.sms:  # as many SMs have most of the device's bandwidth
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

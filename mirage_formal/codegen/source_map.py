"""A source map: the lines of a kernel's CUDA C++ that belong to each operator of its block graph.

The CUDA text is not changed for it. The steps of the plan are lowered once more, in the same order, and each statement
is printed by itself to count its lines. No proof rests on the map; it is for readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirage_formal.codegen.cuda_printer import emit_cuda, line_counts
from mirage_formal.codegen.lowering.assemble import Owned, statements
from mirage_formal.codegen.planning.expand import flatten
from mirage_formal.codegen.program.flat_graph import defined_tensors, operands_of
from mirage_formal.codegen.program.lines import LineRange, node_names
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import (
    Barrier,
    Commit,
    For,
    GridWait,
    If,
    LaunchDependents,
    Program,
    Stmt,
    TileCopy,
    WaitGroups,
)
from mirage_formal.codegen.program.step import (
    Accumulation,
    AdvanceStep,
    AwaitTile,
    BeginProduct,
    BlockReduce,
    Computation,
    EndProduct,
    Fetch,
    Initialize,
    Load,
    MultiplyAccumulate,
    OtherIteration,
    OverlapProducts,
    Prefetch,
    ReleaseTile,
    Rescale,
    Step,
    StoreResult,
)
from mirage_formal.graph.graph import GraphDefined
from mirage_formal.graph.types import DTensor

#: Descriptions of steps; all other steps "compute".
_DOES: Final[dict[type, str]] = {
    Accumulation: "adds an iteration's part",
    BlockReduce: "adds up what threads hold",
    Fetch: "copies to shared memory",
    Initialize: "starts at the neutral element",
    Load: "reads into registers",
    MultiplyAccumulate: "computes and adds an iteration's part",
    Prefetch: "starts copies ahead of their iteration",
    AwaitTile: "waits for a tile that the producer copies",
    ReleaseTile: "gives a tile back to the producer",
    BeginProduct: "begins the product of the next iteration",
    EndProduct: "waits for the product of the next iteration",
    OverlapProducts: "computes the last product, and begins the next iteration's first",
    AdvanceStep: "computes for a later iteration",
    Rescale: "rescales what was added so far",
    StoreResult: "writes to device memory",
}


def kernel_lines(program: Program, plan: Plan, op: GraphDefined, operands: Sequence[DTensor]) -> tuple[LineRange, ...]:
    """Return the lines of a graph-defined kernel that belong to a part of its block graph, in order.

    Barriers, declarations, and the first and last lines of loops belong to none.



    Args:
        program: The Program that code generation made of the plan.
        plan: The plan.
        op: The operator that was planned.
        operands: Types of its operands.

    Raises:
        ValueError: The program is not that of the plan.
    """
    cut = replace(op.graph, forloop_range=op.graph.forloop_range * plan.schedule.cut)
    tensors = node_names(op.graph, flatten(replace(op, graph=cut), tuple(operands)).makers)
    text = emit_cuda(program).splitlines()
    end = len(text) - 1  # the last line closes the kernel
    about = _LineAnnotator(plan, tensors)
    levels = statements(plan)
    found: list[LineRange] = []
    if program.producer:
        behind = next(number for number, line in enumerate(text) if line.startswith("  MF_CONSUMERS("))
        _add_producer(found, program, about, (program.producer, 2, behind - 1))

    def annotate(body: Sequence[Stmt], depth: int, end: int) -> None:
        for one, steps, first, last in _number_lines(program, body, levels[depth], end, depth + 1):
            if isinstance(one, For | If) and not steps:
                annotate(one.body, depth + 1, last - 1)
            else:
                about.add(found, steps, first, last)

    annotate(program.body, 0, end)
    return tuple(found)


def _add_producer(
    found: list[LineRange], program: Program, about: _LineAnnotator, part: tuple[Sequence[Stmt], int, int]
) -> None:
    """Add the lines of the producer's copies; a part is statements, their nesting depth, and their last line."""
    body, depth, last = part
    sizes = line_counts(program, body, depth)
    at = last - sum(sizes)
    for one, size in zip(body, sizes, strict=True):
        if isinstance(one, For):
            _add_producer(found, program, about, (one.body, depth + 1, at + size - 1))
        elif isinstance(one, TileCopy):
            places = ((n, about.plan.tensors[n].placement.shared) for n in about.plan.ring)
            copied = (Fetch(n, asynchronous=True) for n, place in places if place and place.buffer == one.buffer)
            about.add(found, tuple(copied), at + 1, at + size)
        at += size


def _number_lines(
    program: Program, body: Sequence[Stmt], owned: Owned, last: int, depth: int
) -> Iterator[tuple[Stmt, tuple[Step, ...], int, int]]:
    """Yield statements with their steps, first and last lines; ``last`` is the last line of all of them."""
    sizes = line_counts(program, body, depth)
    at = last - sum(sizes)
    left = list(owned)
    for one, size in zip(body, sizes, strict=True):
        steps: tuple[Step, ...] = ()
        # Code generation moves copies ahead of the wait for the launch before; other statements keep their order.
        if (found := next((n for n, (_, theirs) in enumerate(left) if theirs == one), None)) is not None:
            steps, _ = left.pop(found)
        elif not isinstance(one, GridWait | LaunchDependents):  # which code generation puts between the plan's own
            raise ValueError("expected the statements of the plan, got others")
        yield one, steps, at + 1, at + size
        at += size
    if left:
        raise ValueError("expected all statements of the plan, got fewer")


@dataclass(frozen=True, slots=True)
class _LineAnnotator:
    """A collector of line annotations; ``tensors`` names the node that produces each flattened tensor."""

    plan: Plan
    tensors: tuple[str, ...]

    def add(self, found: list[LineRange], steps: tuple[Step, ...], first: int, last: int) -> None:
        """Add the lines of steps, merged with the preceding lines if these have the same annotation."""
        own = [step for step in steps if not isinstance(step, Barrier | WaitGroups | Commit)]
        if not own:
            return
        nodes = tuple(dict.fromkeys(node for step in own for node in self._nodes(step)))
        does = _DOES.get(type(own[0]), "computes")
        if found and (found[-1].nodes, found[-1].does, found[-1].last) == (nodes, does, first - 1):
            first = found.pop().first
        found.append(LineRange(first, last, nodes, does))

    def _nodes(
        self,
        step: Computation | Fetch | Load | StoreResult | Prefetch | AwaitTile | ReleaseTile | OtherIteration,
    ) -> Iterator[str]:
        match step:
            case BeginProduct(product) | EndProduct(product):
                yield from self._nodes(product)
            case OverlapProducts(last, first, _):
                yield from self._nodes(last)
                yield from self._nodes(first)
            case AdvanceStep(ahead):
                yield from self._nodes(ahead)
            case Fetch(tensor) | Load(tensor) | AwaitTile(tensor) | ReleaseTile(tensor):
                yield self.tensors[tensor]
            case Prefetch():
                yield from (self.tensors[n] for n in self.plan.ring)
            case StoreResult(saver):
                yield f"sv{saver}"
                yield from self._inline((self.plan.savers[saver].tensor,))
            case MultiplyAccumulate():
                yield self.tensors[step.op.result]
                yield self.tensors[step.into.result]
                yield from self._inline(operands_of(step.op))
            case Rescale():
                yield self.tensors[step.op.result]
            case Initialize() | BlockReduce():
                yield self.tensors[defined_tensors(step.op)[0]]
            case _:
                yield self.tensors[defined_tensors(step.op)[0]]
                yield from self._inline(operands_of(step.op))

    def _inline(self, tensors: Iterable[int]) -> Iterator[str]:
        """Yield the nodes of inline tensors among ``tensors``, and those of their inline operands."""
        makers = {result: op for op in self.plan.ops for result in defined_tensors(op)}
        left = list(tensors)
        while left:
            tensor = left.pop(0)
            if tensor in makers and self.plan.tensors[tensor].placement.inline:
                yield self.tensors[tensor]
                left += operands_of(makers[tensor])


__all__ = ["LineRange", "kernel_lines"]

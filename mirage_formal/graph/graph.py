"""The µGraph: kernel, block and thread graphs as frozen values with positional operands.

Tensors of a graph are numbered: first its inputs, then the results of its operators in order. An operand is such a
number and must be smaller than the numbers of the operator's own results, so a graph is acyclic by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Final, TypeVar

from mirage_formal.graph.ops import NO_ATTRS, SPECS, Attrs, BlockContext, OpKind
from mirage_formal.graph.types import Band, Dim3, DimMap, DTensor


@dataclass(frozen=True, slots=True)
class Op:
    """A predefined operator of any level, applied to tensors of its own graph."""

    kind: OpKind
    operands: tuple[int, ...]
    attrs: Attrs = NO_ATTRS

    @property
    def results(self) -> int:
        """Return the number of tensors it defines."""
        return SPECS[self.kind].outputs


@dataclass(frozen=True, slots=True)
class ThreadGraph:
    """Sequence of elementwise operators on RTensors.

    Tensors 0..inputs-1 are read from shared memory; ``outputs`` are written back.
    """

    inputs: int
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThreadDefined:
    """A block-level operator that a thread graph defines."""

    operands: tuple[int, ...]
    graph: ThreadGraph

    @property
    def results(self) -> int:
        """Return the number of tensors it defines."""
        return len(self.graph.outputs)


BlockOp = Op | ThreadDefined


@dataclass(frozen=True, slots=True)
class InputIterator:
    """Tile load of one device tensor by a block: ``imap`` splits by grid axis, ``fmap`` is the dim the loop splits."""

    imap: DimMap
    fmap: int | None


@dataclass(frozen=True, slots=True)
class OutputSaver:
    """Tile store of the blocks' results to a device tensor: ``omap`` has for each grid axis the dim it concatenates."""

    operand: int
    omap: DimMap


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """The program of one thread block: input iterators, a loop of operators, accumulators, output savers.

    Where a grid axis and the loop split one dim, the block's slab is cut first and the loop chunk inside it; grid axes
    that split one dim do so in the order x, y, z.
    """

    grid: Dim3
    block: Dim3
    forloop_range: int
    reduction_dimx: int
    inputs: tuple[InputIterator, ...]
    ops: tuple[BlockOp, ...]
    outputs: tuple[OutputSaver, ...]

    @property
    def context(self) -> BlockContext:
        """Return the attributes that shape rules may depend on."""
        return BlockContext(self.forloop_range, self.reduction_dimx)

    @property
    def blocks(self) -> int:
        """Return the number of thread blocks."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Return the number of threads of one block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, slots=True)
class GraphDefined:
    """A kernel that a block graph defines; operand i is read by the block graph's input iterator i."""

    operands: tuple[int, ...]
    graph: BlockGraph

    @property
    def results(self) -> int:
        """Return the number of tensors it defines."""
        return len(self.graph.outputs)


KernelOp = Op | GraphDefined


@dataclass(frozen=True, slots=True)
class Input:
    """Program input: its name, type and strides in elements.

    An input with a band is that mask, and no caller passes it.
    """

    name: str
    tensor: DTensor
    strides: tuple[int, ...]
    band: Band | None = None


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """A tensor program, or a candidate for one: kernels over device tensors."""

    inputs: tuple[Input, ...]
    ops: tuple[KernelOp, ...]
    outputs: tuple[int, ...]


def operators(graph: KernelGraph) -> Iterator[Op]:
    """Yield all predefined operators of a program, those in block and thread graphs included."""
    for op in graph.ops:
        for inner in (op,) if isinstance(op, Op) else op.graph.ops:
            yield from (inner,) if isinstance(inner, Op) else inner.graph.ops


_Found = TypeVar("_Found")
#: Graphs whose results are kept by each function.
_RECENT: Final = 256


def cache_by_identity(function: Callable[[KernelGraph], _Found]) -> Callable[[KernelGraph], _Found]:
    """Return a function of a graph that keeps its results for recent graphs, told apart by identity.

    One way through the package asks for the types of a graph many times, and a graph's hash takes as long as its types.
    A graph whose result is kept is held, so that no other one gets its identity.
    """
    recent: dict[int, tuple[KernelGraph, _Found]] = {}

    @wraps(function)
    def cached(graph: KernelGraph) -> _Found:
        known = recent.get(id(graph))
        if known is None:
            if len(recent) >= _RECENT:
                recent.clear()
            known = recent[id(graph)] = graph, function(graph)
        return known[1]

    return cached


_AnyOp = TypeVar("_AnyOp", bound=KernelOp | BlockOp)


def enumerate_results(first: int, ops: Sequence[_AnyOp]) -> Iterator[tuple[int, _AnyOp]]:
    """Yield pairs (number of the first result, operator) of a graph whose operators follow ``first`` inputs."""
    number = first
    for op in ops:
        yield number, op
        number += op.results

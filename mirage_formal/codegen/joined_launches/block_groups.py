"""Groups of blocks of a joined launch: the last block of a group runs the group's blocks of the second kernel.

A joined launch has the grid of its first kernel. Each of its blocks runs that kernel's block, makes what it wrote
visible, and takes a ticket of the counter of its group. The block with the last ticket then runs the second kernel's
blocks of this group, one after another, and sets the counter to 0 again. No block waits for another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Final

from mirage_formal.codegen.program.access import GRID
from mirage_formal.codegen.program.integers import add, make_binary, multiply
from mirage_formal.codegen.program.program import (
    GridWait,
    Int,
    IntExpr,
    IntOp,
    LaunchDependents,
    Param,
    Program,
    TensorMap,
    Var,
    all_statements,
)
from mirage_formal.graph.graph import GraphDefined
from mirage_formal.graph.types import Dim3, DimMap

#: Variables of the second kernel's blocks: the group, and the position of a block in it.
GROUP: Final = "mf_group"
ROUND: Final = "mf_round"
#: Prefix of the second kernel's parameters in the text of the launch.
SECOND: Final = "then_"


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """The groups of a joined launch.

    Attributes:
        handed: The second kernel's parameters that the first one writes, each with the name that it has there.
        count: Number of groups; each has a counter.
        blocks: Blocks of the first kernel in a group, that is, tickets of its counter.
        group: The group of a block of the first kernel, over ``bx``, ``by`` and ``bz``.
        rounds: Blocks of the second kernel in a group.
        then_block: The coordinates of such a block, over ``mf_group`` and ``mf_round``.
    """

    handed: tuple[tuple[str, str], ...]
    count: int
    blocks: int
    group: IntExpr
    rounds: int
    then_block: tuple[IntExpr, IntExpr, IntExpr]


@dataclass(frozen=True, slots=True)
class JoinedProgram:
    """Two Programs that one launch runs; each computes its own operator, whoever runs its blocks.

    Attributes:
        first: The Program whose blocks the launch has.
        then: The Program whose blocks are run by the last blocks of the groups.
        groups: The groups.
    """

    first: Program
    then: Program
    groups: BlockGroups

    @property
    def name(self) -> str:
        """Return the name of the launched kernel."""
        return self.first.name

    @property
    def grid(self) -> Dim3:
        """Return the blocks of the launch."""
        return self.first.grid

    @property
    def threads(self) -> int:
        """Return the threads of a block."""
        return self.first.threads

    @property
    def launch_threads(self) -> int:
        """Return the threads of a block of the launch, which has no producer."""
        return self.threads

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """Return the tensor maps of the launch: none, as it has no producer."""
        return ()

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block needs: both kernels use the same."""
        return max(self.first.shared_bytes, self.then.shared_bytes)

    @property
    def handed(self) -> frozenset[str]:
        """Return the names of the first kernel's results that the second one reads."""
        return frozenset(name for _, name in self.groups.handed)

    @property
    def params(self) -> tuple[Param, ...]:
        """Return the parameters of the launch: the first kernel's, and those of the second that are not handed over."""
        own = dict(self.groups.handed)
        read = {own[param.name]: param.align for param in self.then.params if param.name in own}
        first = (replace(one, align=max(one.align, read.get(one.name, 1))) for one in self.first.params)
        then = (one for one in self.then.params if one.name not in own)
        return (*first, *(replace(one, name=f"{SECOND}{one.name}") for one in then))

    def faults(self) -> Iterator[str]:
        """Yield the reasons why two Programs do not fit into one launch, by form alone."""
        first, then = self.first, self.then
        if first.threads != then.threads:
            yield f"expected kernels of equal numbers of threads, got {first.threads} and {then.threads}"
        if first.producer or then.producer:
            yield "expected kernels without a producer, whose threads end before the second kernel's blocks begin"
        names = [*(param.name for param in self.params), GROUP, ROUND, *GRID]
        if len(set(names)) < len(names) or len({first.name, then.name, *map(block_name, (first, then))}) < 4:
            yield "expected distinct names of kernels and parameters"
        if any(isinstance(one, GridWait | LaunchDependents) for one in all_statements(then.body)):
            yield "expected a second kernel that orders no launches, for it has none of its own"
        if any(param.given for param in then.params):
            yield "expected a second kernel without parameters that are read ahead of a wait"
        written = {param.name: param for param in first.params if param.written}
        read = {param.name: param for param in then.params if not param.written}
        handed = self.groups.handed
        if not handed or len({name for name, _ in handed}) < len(handed):
            yield "expected results that are handed over, each once"
        for name, source in handed:
            a, b = read.get(name), written.get(source)
            if a is None or b is None or (a.dtype, a.elements) != (b.dtype, b.elements):
                yield f"expected {name} to be a result of the first kernel, of the same elements, got {source}"


def block_name(program: Program) -> str:
    """Return the name of the function that runs one block of a Program."""
    return f"{program.name}_block"


def block_groups(ops: tuple[GraphDefined, GraphDefined], handed: Sequence[HandedTensor]) -> BlockGroups:
    """Return the finest groups that the grids of two operators show, by the dims that they cut.

    If some axes of the first grid cut a dim of every tensor that is handed over, and the same axes of the second grid
    do, the dim has as many parts as the greatest common divisor of both numbers of slabs: slabs of both are nested in
    them. A group has one part of each such dim, and all blocks along the other axes.

    Sound: nothing rests on this. That each block of the second kernel reads only what its own group wrote is an
    obligation on the Programs' indices (``codegen.safety.joined_obligations``).

    Args:
        ops: The two operators.
        handed: The tensors that are handed over.
    """
    first, then = ops[0].graph.grid, ops[1].graph.grid
    pairs = [
        (a, b, parts) for a, b in _pairs(first, then, handed) if (parts := gcd(_extent(a, first), _extent(b, then))) > 1
    ]
    count = prod(parts for _, _, parts in pairs)
    rounds = prod(then) // count
    group: IntExpr = Int(0)
    block: dict[int, IntExpr] = {}
    stride = step = 1
    for a, b, parts in pairs:
        group = add(group, multiply(_part(a, first, _extent(a, first) // parts), stride))
        inner = _extent(b, then) // parts
        slab = add(multiply(_digit(GROUP, stride, parts, count), inner), _digit(ROUND, step, inner, rounds))
        block |= _coordinates(slab, b, then)
        stride, step = stride * parts, step * inner
    for axis in (axis for axis in range(3) if axis not in block):
        block[axis] = _digit(ROUND, step, then[axis], rounds)
        step *= then[axis]
    names = tuple((one.name, one.source) for one in handed)
    return BlockGroups(names, count, prod(first) // count, group, rounds, (block[0], block[1], block[2]))


@dataclass(frozen=True, slots=True)
class HandedTensor:
    """A tensor that the first kernel writes and the second one reads.

    Attributes:
        name, source: Its parameter of the second kernel, and of the first one.
        imap, omap: The dims that the axes of the second grid and of the first one cut.
    """

    name: str
    source: str
    imap: DimMap
    omap: DimMap


#: Axes of a grid that cut one dim, in the order in which they do.
_Axes = tuple[int, ...]


def _pairs(first: Dim3, then: Dim3, handed: Sequence[HandedTensor]) -> list[tuple[_Axes, _Axes]]:
    """Return the axes of the first grid, and of the second one, that cut a dim of every tensor that is handed over."""

    def of_tensor(one: HandedTensor) -> list[tuple[_Axes, _Axes]]:
        dims = sorted({dim for dim in one.omap if dim is not None})
        return [(_cutting(dim, one.omap, first), _cutting(dim, one.imap, then)) for dim in dims]

    tensors = [of_tensor(one) for one in handed]
    return [pair for pair in tensors[0] if all(pair) and all(pair in other for other in tensors)] if tensors else []


def _cutting(dim: int, dims: DimMap, grid: Dim3) -> _Axes:
    return tuple(axis for axis in range(3) if dims[axis] == dim and grid[axis] > 1)


def _extent(axes: _Axes, grid: Dim3) -> int:
    return prod(grid[axis] for axis in axes)


def _part(axes: _Axes, grid: Dim3, size: int) -> IntExpr:
    """Return the part of a dim that a block lies in, if a part has ``size`` of the slabs that the axes cut."""
    while axes and size % grid[axes[-1]] == 0:
        size //= grid[axes[-1]]
        axes = axes[:-1]
    slab: IntExpr = Int(0)
    for axis in axes:
        slab = add(multiply(slab, grid[axis]), Var(GRID[axis]))
    return _divide(slab, size)


def _coordinates(slab: IntExpr, axes: _Axes, grid: Dim3) -> dict[int, IntExpr]:
    """Return the coordinates along some axes of a block by the number of its slab; the last axis counts fastest."""
    found: dict[int, IntExpr] = {}
    for axis in reversed(axes[1:]):
        found[axis], slab = make_binary(IntOp.MOD, slab, Int(grid[axis])), _divide(slab, grid[axis])
    return found | {axes[0]: slab}


def _divide(e: IntExpr, by: int) -> IntExpr:
    return e if by == 1 else make_binary(IntOp.DIV, e, Int(by))


def _digit(name: str, stride: int, count: int, total: int) -> IntExpr:
    """Return the digit of a variable below ``total`` that has ``count`` values, each for ``stride`` ones in a row."""
    if count == 1:
        return Int(0)
    found = _divide(Var(name), stride)
    return found if stride * count == total else make_binary(IntOp.MOD, found, Int(count))


__all__ = ["GROUP", "ROUND", "SECOND", "BlockGroups", "HandedTensor", "JoinedProgram", "block_groups", "block_name"]

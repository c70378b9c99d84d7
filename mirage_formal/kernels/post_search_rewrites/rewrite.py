"""The rewritings of a kernel, alone and one after the other, and what each makes of a graph of one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.edit import pruned
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.kernels.cost import estimate
from mirage_formal.kernels.post_search_rewrites.block import NoForm
from mirage_formal.kernels.post_search_rewrites.products import tile
from mirage_formal.kernels.post_search_rewrites.retile import otherwise, retile
from mirage_formal.kernels.post_search_rewrites.scale_hoisting import hoist_scales
from mirage_formal.kernels.post_search_rewrites.split_k import split
from mirage_formal.kernels.target import Target

#: However slow a form is estimated to be.
ANY: Final = 1e9
#: How often more blocks the loop is dealt to.
_PARTS: Final = (2, 4, 8, 16, 32)
#: The same of a product by itself, of which there may be few results.
_MORE_PARTS: Final = (64, 128)
#: All of them.
PARTS: Final = (*_PARTS, *_MORE_PARTS)
#: How many times fewer blocks a kernel without products has, and how many times more.
_FEWER_BLOCKS: Final = (2, 4, 8, 16)
_MORE_BLOCKS: Final = (2, 4)
#: Other grids of kernels with products that are tried.
_GRIDS: Final = (1, 2, 3, 4, 5)


class Factors(Enum):
    """Which factors of the operands of products move."""

    NONE = ""
    #: Behind their products.
    BEHIND = "factors"
    #: There, or to the other operand, if need be with a kernel that computes them first.
    ALL = "all-factors"


@dataclass(frozen=True, slots=True)
class Change:
    """Rewrites of kernels.

    Attributes:
        factors: Which factors move.
        parts: Into how many parts the loop is split; 1: none.
        products: Whether it is done to predefined products, which become kernels first, and to nothing else.
        fewer: How many times fewer blocks kernels without products have; 1: as many. Nothing else is done then.
        more: How many times more blocks they have; likewise.
        tiles: Which of the other grids kernels with products have, the best by its estimate first; 0: their own.
            Likewise.
    """

    factors: Factors = Factors.NONE
    parts: int = 1
    products: bool = False
    fewer: int = 1
    more: int = 1
    tiles: int = 0

    @property
    def grids(self) -> bool:
        """Return whether kernels are the same on other grids."""
        return self.fewer > 1 or self.more > 1 or self.tiles > 0

    @property
    def name(self) -> str:
        """As in "factors split-4"."""
        words = (
            "products" if self.products else "",
            self.factors.value,
            f"split-{self.parts}" if self.parts > 1 else "",
            f"fewer-{self.fewer}" if self.fewer > 1 else "",
            f"more-{self.more}" if self.more > 1 else "",
            f"tiles-{self.tiles}" if self.tiles else "",
        )
        return " ".join(word for word in words if word) or "own"


#: All of them; the first changes nothing.
CHANGES: Final = (
    *(Change(factors, parts) for factors in Factors for parts in (1, *_PARTS)),
    *(Change(parts=parts, products=True) for parts in (1, *PARTS)),
    *(Change(fewer=times) for times in _FEWER_BLOCKS),
    *(Change(more=times) for times in _MORE_BLOCKS),
    *(Change(tiles=rank) for rank in _GRIDS),
)


def rewritten(graph: KernelGraph, change: Change, target: Target, slack: float) -> KernelGraph:
    """A graph of one kernel with a change; the graph itself where a part of the change does not apply.

    Sound: nothing rests on this; whoever uses its result has it proved equal to the graph.

    Args:
        graph: A well-formed graph of one operator.
        change: What is done to it.
        target: The GPU that estimates are for.
        slack: A loop is split, or a predefined product becomes a kernel, only if the estimate of what it becomes is at
            most this times the estimate of what it was.
    """
    if change.products:
        return _product(graph, change.parts, target, slack)
    if not isinstance(graph.ops[-1], GraphDefined):
        return graph
    changed = graph
    try:
        if change.grids:
            return _retiled(graph, change, target, slack)
        if change.factors is not Factors.NONE:
            changed = hoist_scales(graph, target if change.factors is Factors.ALL else None)
        return changed if change.parts == 1 else _split(changed, change.parts, target, slack)
    except NoForm:
        return graph


def _product(graph: KernelGraph, parts: int, target: Target, slack: float) -> KernelGraph:
    """The graph with a predefined product as a kernel, or as two with its loop split; itself where there is no form."""
    if len(graph.ops) > 1:
        return graph
    try:
        made = tile(graph, parts, target)
        made = made if parts == 1 else _split(made, parts, target, ANY)
    except NoForm:
        return graph
    shape, found = (kernel_types(one)[one.outputs[0]].shape for one in (graph, made))
    if found != shape:
        view = Op(OpKind.RESHAPE, made.outputs, Attrs(shape=shape))
        made = replace(made, ops=(*made.ops, view), outputs=(len(kernel_types(made)),))
    return made if estimate(made, target).us <= slack * estimate(graph, target).us else graph


def _retiled(graph: KernelGraph, change: Change, target: Target, slack: float) -> KernelGraph:
    """The graph with its last kernel on another grid.

    Raises:
        NoForm: It has no such form, or one that is estimated slow.
    """
    *before, op = graph.ops
    assert isinstance(op, GraphDefined)
    types = kernel_types(graph)
    operands = [types[n] for n in op.operands]
    if change.tiles:
        block = otherwise(op, operands, change.tiles, target)
    else:
        block = retile(op, operands, max(change.fewer, change.more), target, larger=change.fewer > 1)
    made = replace(graph, ops=(*before, replace(op, graph=block)))
    if estimate(made, target).us > slack * estimate(graph, target).us:
        raise NoForm("another grid is not estimated to pay")
    return made


def _split(graph: KernelGraph, parts: int, target: Target, slack: float) -> KernelGraph:
    """The graph with its last kernel split.

    Raises:
        NoForm: It has no such form, or one that is estimated slow.
    """
    *before, op = graph.ops
    assert isinstance(op, GraphDefined)
    types = kernel_types(graph)
    found = split(op, [types[n] for n in op.operands], parts, target)
    if found.us > slack * estimate(graph, target).kernels[-1].us:
        raise NoForm("more blocks along the loop are not estimated to pay")
    first = len(types) - op.results
    handed = range(first, first + len(found.first.outputs))
    given = tuple(op.operands[i] for i in found.loads)
    read = tuple(op.operands[i] for i in found.reads)
    ops = (*before, GraphDefined(given, found.first), GraphDefined((*handed, *read), found.second))
    return pruned(KernelGraph(graph.inputs, ops, tuple(number + len(handed) for number in graph.outputs)))


__all__ = ["ANY", "CHANGES", "PARTS", "Change", "Factors", "rewritten"]

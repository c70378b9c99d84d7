"""The post-search rewrites, alone and composed, and their application to a graph of one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.post_search_rewrites.matmul_kernels import tile_product
from mirage_formal.codegen.post_search_rewrites.retile import retile, retile_product
from mirage_formal.codegen.post_search_rewrites.scale_hoisting import hoist_scales
from mirage_formal.codegen.post_search_rewrites.split_k import split_loop
from mirage_formal.codegen.target import Target
from mirage_formal.graph.edit import eliminate_dead_code
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.verifier import kernel_types

#: The slack that accepts any estimate.
ANY: Final = 1e9
#: Numbers of parts that loops are split into (split-K).
_PARTS: Final = (2, 4, 8, 16, 32)
#: Further numbers of parts for predefined products, which may have few results.
_MORE_PARTS: Final = (64, 128)
#: All of them.
PARTS: Final = (*_PARTS, *_MORE_PARTS)
#: Factors by which kernels without products get fewer blocks, and more blocks.
_FEWER_BLOCKS: Final = (2, 4, 8, 16)
_MORE_BLOCKS: Final = (2, 4)
#: Ranks of the other grids that kernels with products are tried on.
_GRIDS: Final = (1, 2, 3, 4, 5)


class HoistedFactors(Enum):
    """The scaling factors of product operands that a rewrite moves."""

    NONE = ""
    #: Those that move behind their products.
    BEHIND = "factors"
    #: Those, and those that move to the other operand, with a kernel that computes them first where needed.
    ALL = "all-factors"


@dataclass(frozen=True, slots=True)
class Change:
    """A rewrite of kernels.

    Attributes:
        factors: The scaling factors that move.
        parts: The number of parts into which the loop is split (split-K); 1: it is not split.
        whole: Whether the second kernel of a split has the tiles of the first one, which lets both be one launch.
        products: Whether the rewrite applies to predefined products only, which become generated kernels first.
        fewer: The factor by which kernels without products get fewer blocks; 1: unchanged. Nothing else is done then.
        more: The factor by which they get more blocks; likewise.
        tiles: The rank by estimate, from 1, of another grid for kernels with products; 0: their own grid. Likewise.
    """

    factors: HoistedFactors = HoistedFactors.NONE
    parts: int = 1
    whole: bool = False
    products: bool = False
    fewer: int = 1
    more: int = 1
    tiles: int = 0

    @property
    def only_changes_grids(self) -> bool:
        """Return whether the change does nothing but put kernels on other grids: ``fewer``, ``more`` or ``tiles``."""
        return self.fewer > 1 or self.more > 1 or self.tiles > 0

    @property
    def name(self) -> str:
        """Return the name of the change, for example "factors split-4"; "own" if nothing changes."""
        words = (
            "products" if self.products else "",
            self.factors.value,
            f"split-{self.parts}" if self.parts > 1 else "",
            "whole" if self.whole else "",
            f"fewer-{self.fewer}" if self.fewer > 1 else "",
            f"more-{self.more}" if self.more > 1 else "",
            f"tiles-{self.tiles}" if self.tiles else "",
        )
        return " ".join(word for word in words if word) or "own"


#: All rewrites; the first changes nothing.
CHANGES: Final = (
    *(Change(factors, parts) for factors in HoistedFactors for parts in (1, *_PARTS)),
    *(Change(parts=parts, products=True) for parts in (1, *PARTS)),
    *(Change(parts=parts, whole=True) for parts in _PARTS),
    *(Change(fewer=times) for times in _FEWER_BLOCKS),
    *(Change(more=times) for times in _MORE_BLOCKS),
    *(Change(tiles=rank) for rank in _GRIDS),
)


def apply_rewrite(graph: KernelGraph, change: Change, target: Target, slack: float) -> KernelGraph:
    """Return a graph of one kernel with a change applied; the graph itself where the change does not apply.

    Sound: nothing rests on this; whoever uses its result has it proved equal to the graph.

    Args:
        graph: A well-formed graph of one operator.
        change: The rewrite to apply.
        target: The GPU that estimates are for.
        slack: The largest ratio of the new estimate to the old one at which a loop is split, a grid changed, or a
            predefined product made a kernel.
    """
    if change.products:
        return _rewrite_product(graph, change.parts, target, slack) or graph
    if not isinstance(graph.ops[-1], GraphDefined):
        return graph
    if change.only_changes_grids:
        return _retile_kernel(graph, change, target, slack) or graph
    changed: KernelGraph | None = graph
    if change.factors is not HoistedFactors.NONE:
        changed = hoist_scales(graph, target if change.factors is HoistedFactors.ALL else None)
    if changed is not None and change.parts > 1:
        changed = _split_kernel(changed, change.parts, target, slack, whole=change.whole)
    return changed or graph


def _rewrite_product(graph: KernelGraph, parts: int, target: Target, slack: float) -> KernelGraph | None:
    """Return the graph with a generated kernel for its predefined product, or two kernels where the loop is split.

    None where no form exists, or its estimate is too slow.
    """
    made = tile_product(graph, parts, target) if len(graph.ops) == 1 else None
    if made is not None and parts > 1:
        made = _split_kernel(made, parts, target, ANY)
    if made is None:
        return None
    shape, found = (kernel_types(one)[one.outputs[0]].shape for one in (graph, made))
    if found != shape:
        view = Op(OpKind.RESHAPE, made.outputs, Attrs(shape=shape))
        made = replace(made, ops=(*made.ops, view), outputs=(len(kernel_types(made)),))
    return made if estimate(made, target).us <= slack * estimate(graph, target).us else None


def _retile_kernel(graph: KernelGraph, change: Change, target: Target, slack: float) -> KernelGraph | None:
    """Return the graph with its last kernel on another grid; None if there is none, or its estimate is too slow."""
    *before, op = graph.ops
    assert isinstance(op, GraphDefined)
    types = kernel_types(graph)
    operands = [types[n] for n in op.operands]
    if change.tiles:
        block = retile_product(op, operands, change.tiles, target)
    else:
        block = retile(op, operands, max(change.fewer, change.more), target, larger=change.fewer > 1)
    if block is None:
        return None
    made = replace(graph, ops=(*before, replace(op, graph=block)))
    return made if estimate(made, target).us <= slack * estimate(graph, target).us else None


def _split_kernel(
    graph: KernelGraph, parts: int, target: Target, slack: float, *, whole: bool = False
) -> KernelGraph | None:
    """Return the graph with its last kernel split into two along its loop (split-K).

    None if it has no such form, or its estimate is too slow.
    """
    *before, op = graph.ops
    assert isinstance(op, GraphDefined)
    types = kernel_types(graph)
    found = split_loop(op, [types[n] for n in op.operands], parts, target, whole=whole)
    if found is None or found.us > slack * estimate(graph, target).kernels[-1].us:
        return None
    first = len(types) - op.results
    handed = range(first, first + len(found.first.outputs))
    given = tuple(op.operands[i] for i in found.loads)
    read = tuple(op.operands[i] for i in found.reads)
    ops = (*before, GraphDefined(given, found.first), GraphDefined((*handed, *read), found.second))
    return eliminate_dead_code(KernelGraph(graph.inputs, ops, tuple(number + len(handed) for number in graph.outputs)))


__all__ = ["ANY", "CHANGES", "PARTS", "Change", "HoistedFactors", "apply_rewrite"]

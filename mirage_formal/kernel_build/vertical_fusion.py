"""Vertical fusion: a kernel and the kernel that reads its result become one kernel.

A search limits the inputs of a kernel, and searches parts of a program separately. So x W + h U + b becomes two
kernels, and the second one adds the result of the first. If both have the same grid, and each block reads only the tile
that it wrote itself, they become one kernel (``search.horizontal_fusion.union``), whatever number of inputs that reads.
This saves a launch and a tensor in device memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from mirage_formal.check.partitioning.subgraphs import Replacement, extract_operators, partition
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.online_softmax.rewrite_groups import DisjointSets, group_operators
from mirage_formal.codegen.target import Target
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.graph import GraphDefined, KernelGraph, enumerate_results
from mirage_formal.kernel_build.stable_forms import NotProvedError, StableForm, assemble_proved_parts, prove_form
from mirage_formal.search.horizontal_fusion.union import ResultKernel, permute_grid, united_graph

#: The name of the form.
JOINED: Final = "joined"


def fuse_vertically(graph: KernelGraph, target: Target) -> StableForm | None:
    """Return the µGraph with kernels fused where that is estimated to be faster; None if none is, or one has no proof.

    Sound: each part that changes has a proof that it equals what it was, see
    ``kernel_build.stable_forms.assemble_proved_parts``.

    Args:
        graph: A µGraph without sums of exponentials that need a maximum.
        target: The GPU that estimates are for.
    """
    groups = list(_groups(graph, target))
    if not groups:
        return None
    together = DisjointSets(len(graph.ops))
    for group in groups:
        together.join(group)
    order = group_operators(graph, together, {n for group in groups for n in group})
    parts: list[tuple[tuple[int, ...], Replacement | None]] = []
    try:
        for run, piece in zip(order, partition(graph, [run.operators for run in order]), strict=True):
            form = _fuse_group(piece.program, target) if run.changed else None
            parts.append((run.operators, None if form is None else prove_form(piece, form)))
        return assemble_proved_parts(graph, parts)
    except NotProvedError:
        return None


def _groups(graph: KernelGraph, target: Target) -> Iterator[tuple[int, ...]]:
    """Yield disjoint groups of kernels that can be fused: a consumer, and the producers that only it reads."""
    firsts = [first for first, _ in enumerate_results(len(graph.inputs), graph.ops)]
    readers: dict[int, set[int]] = {}
    for at, op in enumerate(graph.ops):
        for tensor in op.operands:
            readers.setdefault(tensor, set()).add(at)
    used: set[int] = set()
    for at, op in enumerate(graph.ops):
        group: tuple[int, ...] = (at,)
        for before in range(at) if isinstance(op, GraphDefined) and op.results == 1 and at not in used else ():
            other = graph.ops[before]
            alone = readers.get(firsts[before]) == {at} and firsts[before] not in graph.outputs
            if before in used or not isinstance(other, GraphDefined) or other.results > 1 or not alone:
                continue
            tried = tuple(sorted({*group, before}))
            if _fuse_group(extract_operators(graph, tried).program, target) is not None:
                group = tried
        if len(group) > 1:
            used.update(group)
            yield group


def _fuse_group(graph: KernelGraph, target: Target) -> KernelGraph | None:
    """Return a graph whose last kernel reads all others as one kernel; None if that is impossible or not faster."""
    count = len(graph.inputs)
    pieces = [
        ResultKernel(op.operands, inline_blocks(op.graph), count + at, 0.0)
        for at, op in enumerate(graph.ops)
        if isinstance(op, GraphDefined)
    ]
    if len(pieces) < len(graph.ops):
        return None
    *others, last = pieces
    results = {piece.result for piece in others}
    if any(piece.shape != last.shape and not last.behind(results, carry=True) for piece in others):
        return None
    most = target.limits.shared_bytes_per_block
    turns = product(*([piece] if piece is pieces[0] else permute_grid(piece, pieces[0].block.grid) for piece in pieces))
    graphs = (united_graph(graph.inputs, each, graph.outputs, most, carry=True) for each in turns)
    made = [(estimate(one, target).us, one) for one in graphs if one is not None]
    us, best = min(made, key=lambda one: one[0], default=(0.0, None))
    return None if best is None or us >= estimate(graph, target).us else best


__all__ = ["JOINED", "fuse_vertically"]

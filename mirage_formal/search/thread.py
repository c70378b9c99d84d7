"""Construction of thread graphs by rule (paper, section 4.3).

Elementwise operators whose results no other operator reads become one thread graph: its interior results live in
registers and need no shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from mirage_formal.graph.edit import number_in_order, renumber
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    KernelGraph,
    Op,
    ThreadDefined,
    ThreadGraph,
    enumerate_results,
)
from mirage_formal.graph.ops import SPECS, Level
from mirage_formal.graph.types import DTensor, Shape
from mirage_formal.graph.verifier import block_types, kernel_types


def fuse_threads(graph: KernelGraph) -> KernelGraph:
    """Replace, in every block graph, chains of elementwise operators by thread graphs.

    Deterministic and idempotent; a graph without such chains is returned equal to itself.

    Sound: every operator is kept and applied to the same tensors in the same order, so every result that remains
    outside a thread graph is the value it was.

    Args:
        graph: A well-formed graph.

    Raises:
        GraphError: The graph is not well-formed.
    """
    types = kernel_types(graph)
    ops = tuple(
        replace(op, graph=fuse_block(op.graph, tuple(types[i] for i in op.operands)))
        if isinstance(op, GraphDefined)
        else op
        for op in graph.ops
    )
    return replace(graph, ops=ops)


@lru_cache(maxsize=1 << 10)  # the candidates of one program have many kernels in common
def fuse_block(block: BlockGraph, operands: tuple[DTensor, ...]) -> BlockGraph:
    """Fuse elementwise operators in one block graph that reads tensors of these types; see `fuse_threads`."""
    if sum(_elementwise(op) for op in block.ops) < 2:
        return block
    firsts = [first for first, _ in enumerate_results(len(block.inputs), block.ops)]
    groups = _fusion_groups(block, firsts, [tensor.shape for tensor in block_types(block, operands)])
    members: dict[int, list[int]] = {}
    for index, root in enumerate(groups):
        members.setdefault(root, []).append(index)
    items: list[tuple[BlockOp, range]] = []
    for root in sorted(members):
        op = block.ops[root]
        fused = _fuse_group(block, members[root], firsts) if len(members[root]) > 1 else op
        items.append((fused, range(firsts[root], firsts[root] + op.results)))
    ops, number = number_in_order(range(len(block.inputs)), items)
    outputs = tuple(replace(saver, operand=number[saver.operand]) for saver in block.outputs)
    return replace(block, ops=ops, outputs=outputs)


def _elementwise(op: BlockOp) -> bool:
    return isinstance(op, ThreadDefined) or Level.THREAD in SPECS[op.kind].levels


def _fusion_groups(block: BlockGraph, firsts: Sequence[int], shapes: Sequence[Shape]) -> list[int]:
    """Return for each operator the last operator of its group (itself when it is not fused into another).

    Going backwards, an operator joins the group of its readers under these conditions: that is one group, all readers
    are elementwise, none of its results is saved to device memory, and its results have the shape of the group's. Each
    element is then computed once, by the thread that needs it. Accumulators are not elementwise, so no group spans the
    end of the loop.
    """
    saved = {saver.operand for saver in block.outputs}
    readers: dict[int, set[int]] = {}
    for index, op in enumerate(block.ops):
        for operand in op.operands:
            readers.setdefault(operand, set()).add(index)
    groups = list(range(len(block.ops)))
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        results = range(firsts[index], firsts[index] + op.results)
        users = {user for result in results for user in readers.get(result, set())}
        roots = {groups[user] for user in users}
        if not _elementwise(op) or len(roots) != 1 or any(result in saved for result in results):
            continue
        root = roots.pop()
        ends = range(firsts[root], firsts[root] + block.ops[root].results)
        same = len({shapes[result] for result in (*results, *ends)}) == 1
        if same and all(_elementwise(block.ops[user]) for user in users):
            groups[index] = root
    return groups


def _fuse_group(block: BlockGraph, members: Sequence[int], firsts: Sequence[int]) -> ThreadDefined:
    """Return one thread graph for operators ``members`` (ascending; the last one's results are the outputs)."""
    inside = {firsts[i] + k for i in members for k in range(block.ops[i].results)}
    reads = list(dict.fromkeys(x for i in members for x in block.ops[i].operands if x not in inside))
    local = {tensor: k for k, tensor in enumerate(reads)}
    ops: list[Op] = []
    for index in members:
        op = block.ops[index]
        given = tuple(local[x] for x in op.operands)
        if isinstance(op, Op):
            ends: tuple[int, ...] = (len(reads) + len(ops),)
            ops.append(replace(op, operands=given))
        else:
            shift = len(reads) + len(ops) - op.graph.inputs
            names = [*given, *(op.graph.inputs + k + shift for k in range(len(op.graph.ops)))]
            ops += [renumber(part, names) for part in op.graph.ops]
            ends = tuple(names[x] for x in op.graph.outputs)
        local |= {firsts[index] + k: end for k, end in enumerate(ends)}
    return ThreadDefined(tuple(reads), ThreadGraph(len(reads), tuple(ops), ends))

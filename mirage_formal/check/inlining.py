"""Inlining of thread graphs: a block graph with predefined operators only."""

from __future__ import annotations

from dataclasses import replace

from mirage_formal.graph.graph import BlockGraph, Op, ThreadDefined, enumerate_results
from mirage_formal.graph.ops import OpKind


def inline_threads(block: BlockGraph) -> tuple[BlockGraph, tuple[Op, ...], tuple[int, ...]]:
    """Return a block graph with its thread graphs inlined.

    Returns:
        The graph, its operators, and for each tensor of ``block`` its number in the new graph.
    """
    numbers = list(range(len(block.inputs)))
    ops: list[Op] = []

    def put(op: Op, operands: list[int]) -> list[int]:
        ops.append(replace(op, operands=tuple(operands)))
        last = len(block.inputs) + sum(o.results for o in ops)
        return list(range(last - op.results, last))

    for op in block.ops:
        given = [numbers[i] for i in op.operands]
        if isinstance(op, ThreadDefined):
            for inner in op.graph.ops:
                given += put(inner, [given[i] for i in inner.operands])
            numbers += [given[i] for i in op.graph.outputs]
        else:
            numbers += put(op, given)
    savers = tuple(replace(saver, operand=numbers[saver.operand]) for saver in block.outputs)
    return replace(block, ops=tuple(ops), outputs=savers), tuple(ops), tuple(numbers)


def carried_maxima(block: BlockGraph, ops: tuple[Op, ...]) -> set[int]:
    """Return the accum_max results of an inlined block graph that equal their operand: maxima of equal values."""
    still = {i for i, iterator in enumerate(block.inputs) if iterator.fmap is None or block.forloop_range == 1}
    for number, op in enumerate_results(len(block.inputs), ops):
        if op.kind is not OpKind.RUNNING_MAX and still.issuperset(op.operands):
            still.add(number)
    return {n for n, op in enumerate_results(len(block.inputs), ops) if n in still and op.kind is OpKind.ACCUM_MAX}

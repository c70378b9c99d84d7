"""Edits of graphs: renumbering, extraction of one kernel, inlining of thread graphs, dead-code elimination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    Input,
    KernelGraph,
    KernelOp,
    Op,
    enumerate_results,
)
from mirage_formal.graph.types import DTensor, row_major

_AnyOp = TypeVar("_AnyOp", Op, BlockOp, KernelOp)
_T = TypeVar("_T")


def renumber(op: _AnyOp, number: Mapping[int, int] | Sequence[int]) -> _AnyOp:
    """Return the operator with its operands replaced: ``number`` maps each tensor to its replacement."""
    return replace(op, operands=tuple([number[n] for n in op.operands]))


def extract_kernel(op: KernelOp, types: Sequence[DTensor]) -> KernelGraph:
    """Return a graph of one kernel, with an input for each tensor that it reads.

    Args:
        op: The kernel.
        types: Types of the tensors of its graph.
    """
    read = [types[number] for number in op.operands]
    inputs = tuple(Input(f"x{i}", tensor, row_major(tensor.shape)) for i, tensor in enumerate(read))
    own = replace(op, operands=tuple(range(len(read))))
    return KernelGraph(inputs, (own,), tuple(range(len(read), len(read) + op.results)))


def inline_blocks(block: BlockGraph) -> BlockGraph:
    """Return the block graph with each thread graph replaced by its operators."""
    number = list(range(len(block.inputs)))
    ops: list[Op] = []
    count = len(number)
    for item in block.ops:
        thread = None if isinstance(item, Op) else item.graph
        own = number if thread is None else [number[n] for n in item.operands]
        for op in (item,) if isinstance(item, Op) else item.graph.ops:
            ops.append(renumber(op, own))
            own += range(count, count + op.results)
            count += op.results
        if thread is not None:
            number += [own[n] for n in thread.outputs]
    savers = tuple(replace(saver, operand=number[saver.operand]) for saver in block.outputs)
    return replace(block, ops=tuple(ops), outputs=savers)


def needed_items(items: Sequence[tuple[_T, Iterable[int], Iterable[int]]], roots: Iterable[int]) -> list[_T]:
    """Return the items that some root depends on; each item is an operator with its results and its operands."""
    live = set(roots)
    kept: list[_T] = []
    for item, results, operands in reversed(items):
        if not live.isdisjoint(results):
            live.update(operands)
            kept.append(item)
    return kept[::-1]


def eliminate_dead_code(graph: KernelGraph) -> KernelGraph:
    """Return the graph without operators, results and iterators that no output of the program depends on."""
    live = set(graph.outputs)
    kept: list[tuple[int, KernelOp, tuple[int, ...]]] = []
    for first, op in reversed(list(enumerate_results(len(graph.inputs), graph.ops))):
        used = tuple(r for r in range(op.results) if first + r in live)
        if not used:
            continue
        if isinstance(op, GraphDefined):
            op, results = _prune_block(op, used), used
        else:
            results = tuple(range(op.results))
        live |= set(op.operands)
        kept.append((first, op, results))
    number = {n: n for n in range(len(graph.inputs))}
    ops: list[KernelOp] = []
    for first, op, results in reversed(kept):
        ops.append(renumber(op, number))
        for r in results:
            number[first + r] = len(number)
    return replace(graph, ops=tuple(ops), outputs=tuple(number[n] for n in graph.outputs))


def _prune_block(op: GraphDefined, results: tuple[int, ...]) -> GraphDefined:
    block = op.graph
    savers = [block.outputs[r] for r in results]
    roots = {saver.operand for saver in savers}
    all_ops = [
        ((first, item), range(first, first + item.results), item.operands)
        for first, item in enumerate_results(len(block.inputs), block.ops)
    ]
    kept = needed_items(all_ops, roots)
    live = roots.union(*(item.operands for _, item in kept))
    inputs = [n for n in range(len(block.inputs)) if n in live]
    number = {old: new for new, old in enumerate(inputs)}
    ops: list[BlockOp] = []
    for first, item in kept:
        ops.append(renumber(item, number))
        for r in range(item.results):
            number[first + r] = len(number)
    made = replace(
        block,
        inputs=tuple(block.inputs[n] for n in inputs),
        ops=tuple(ops),
        outputs=tuple(replace(saver, operand=number[saver.operand]) for saver in savers),
    )
    return GraphDefined(tuple(op.operands[n] for n in inputs), made)

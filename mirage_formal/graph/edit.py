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


def replace_axis(axes: tuple[_T, _T, _T], axis: int, value: _T) -> tuple[_T, _T, _T]:
    """Return the values of the grid axes, extents or dims, with another value for one axis."""
    x, y, z = (value if at == axis else old for at, old in enumerate(axes))
    return x, y, z


def renumber_graph(graph: KernelGraph, number: Mapping[int, int] | Sequence[int]) -> KernelGraph:
    """Return the graph with the operands of all operators and the outputs replaced."""
    ops = tuple(renumber(op, number) for op in graph.ops)
    return replace(graph, ops=ops, outputs=tuple(number[n] for n in graph.outputs))


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


def number_in_order(
    inputs: Iterable[int], items: Iterable[tuple[_AnyOp, Iterable[int]]]
) -> tuple[tuple[_AnyOp, ...], dict[int, int]]:
    """Return operators with their tensors numbered anew, and the new number of each tensor.

    Args:
        inputs: The tensors that become the inputs, in this order.
        items: The operators in order, each with the results that are kept, which are numbered after the inputs.
    """
    number = {n: i for i, n in enumerate(inputs)}
    ops: list[_AnyOp] = []
    for op, results in items:
        ops.append(renumber(op, number))
        for n in results:
            number[n] = len(number)
    return tuple(ops), number


def pair_operators_with_results(first: int, ops: Iterable[_AnyOp]) -> list[tuple[_AnyOp, range]]:
    """Return the operators of a graph, each with the numbers of its results, which follow ``first`` inputs."""
    return [(op, range(n, n + op.results)) for n, op in enumerate_results(first, tuple(ops))]


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
    kept: list[tuple[KernelOp, Sequence[int]]] = []
    for op, every in reversed(pair_operators_with_results(len(graph.inputs), graph.ops)):
        used = [n for n in every if n in live]
        if used:
            pruned = _prune_block(op, [n - every[0] for n in used]) if isinstance(op, GraphDefined) else op
            live |= set(pruned.operands)
            # Other operators than graph-defined kernels keep all results.
            kept.append((pruned, used if isinstance(op, GraphDefined) else every))
    ops, number = number_in_order(range(len(graph.inputs)), reversed(kept))
    return replace(graph, ops=ops, outputs=tuple(number[n] for n in graph.outputs))


def _prune_block(op: GraphDefined, results: Iterable[int]) -> GraphDefined:
    block = op.graph
    savers = [block.outputs[r] for r in results]
    roots = {saver.operand for saver in savers}
    items = [
        ((item, made), made, item.operands) for item, made in pair_operators_with_results(len(block.inputs), block.ops)
    ]
    kept = needed_items(items, roots)
    live = roots.union(*(item.operands for item, _ in kept))
    inputs = [n for n in range(len(block.inputs)) if n in live]
    ops, number = number_in_order(inputs, kept)
    made = replace(
        block,
        inputs=tuple(block.inputs[n] for n in inputs),
        ops=ops,
        outputs=tuple(replace(saver, operand=number[saver.operand]) for saver in savers),
    )
    return GraphDefined(tuple(op.operands[n] for n in inputs), made)

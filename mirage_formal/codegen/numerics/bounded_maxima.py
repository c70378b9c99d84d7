"""Lower bounds on the maxima that exponentials are shifted by: never below the lowest finite number.

Kernels compute exp(x - m) with the lowest finite float32 in place of a maximum m that is minus infinity
(``codegen.planning.expand``). So it is 0 for x = minus infinity, even in a row or tile in which all x are, and never
exp(-inf + inf), which is NaN. Over the reals there is no difference. This module rewrites the µGraph to match its
kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, TypeVar

from mirage_formal.codegen.numerics.rounding import LARGEST
from mirage_formal.codegen.planning.expand import maxima_of
from mirage_formal.graph.edit import inline_blocks, renumber
from mirage_formal.graph.graph import BlockGraph, BlockOp, KernelGraph, KernelOp, Op, enumerate_results
from mirage_formal.graph.ops import MOVES, Attrs, OpKind
from mirage_formal.graph.types import DType

_AnyOp = TypeVar("_AnyOp", BlockOp, KernelOp)

_MAXIMA: Final = (OpKind.MAX, OpKind.RUNNING_MAX, OpKind.ACCUM_MAX)
#: Operators whose result is a maximum if all their operands are.
_KEEP: Final = MOVES | {OpKind.CAST, OpKind.MAXIMUM, OpKind.ACCUM_CONCAT}
_LOWEST: Final = Attrs(value=Fraction(-LARGEST[DType.FLOAT32]))


def bound_maxima(graph: KernelGraph) -> KernelGraph:
    """Return a µGraph in which maxima that are subtracted under exponentials are at least the lowest float32."""
    tops = maxima_of(graph)

    def inside(op: KernelOp) -> KernelOp:
        if isinstance(op, Op):
            return op
        return replace(
            op, graph=_bound_block(op.graph, {i for i, operand in enumerate(op.operands) if operand in tops})
        )

    ops, number = _bound_operators(len(graph.inputs), tuple(inside(op) for op in graph.ops), tops)
    return replace(graph, ops=ops, outputs=tuple(number[n] for n in graph.outputs))


def _bound_block(block: BlockGraph, given: Collection[int]) -> BlockGraph:
    """Return a block graph with bounded maxima, where the inputs ``given`` are maxima."""
    flat = inline_blocks(block)
    tops = set(given)
    for first, op in enumerate_results(len(flat.inputs), flat.ops):
        assert isinstance(op, Op)
        if op.kind in _MAXIMA or (op.kind in _KEEP and op.attrs.value is None and tops.issuperset(op.operands)):
            tops.add(first)
    ops, number = _bound_operators(len(flat.inputs), flat.ops, tops)
    if ops == flat.ops:
        return block
    return replace(flat, ops=ops, outputs=tuple(replace(s, operand=number[s.operand]) for s in flat.outputs))


def _bound_operators(
    inputs: int, ops: tuple[_AnyOp, ...], tops: Collection[int]
) -> tuple[tuple[_AnyOp, ...], Sequence[int]]:
    """Return operators with bounded maxima under exponentials, and the new number of each tensor."""
    exponents = {op.operands[0] for op in ops if isinstance(op, Op) and op.kind is OpKind.EXP}
    number = list(range(inputs))
    found: list[_AnyOp] = []
    count = inputs
    for first, op in enumerate_results(inputs, ops):
        made = renumber(op, number)
        if isinstance(op, Op) and op.kind is OpKind.SUB and first in exponents and op.operands[1] in tops:
            x, top = made.operands
            # NaN is not less than it, and stays.
            less, keep = Op(OpKind.LT, (top,), _LOWEST), Op(OpKind.LOGICAL_NOT, (count,))
            found += [less, keep, Op(OpKind.SELECT, (count + 1, top), _LOWEST)]
            made = Op(OpKind.SUB, (x, count + 2))
            count += 3
        found.append(made)
        number += range(count, count + op.results)
        count += op.results
    return tuple(found), number

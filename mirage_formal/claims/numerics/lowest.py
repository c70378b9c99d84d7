"""Maxima of kernels that exponentials are shifted by: never below the lowest finite number.

In a kernel the maximum m of exp(x - m) begins at the lowest finite float32, not at minus infinity. So exp(x - m) is 0
of an x that is minus infinity, also in a row or a tile in which all of them are, and never exp(-inf + inf), which is
NaN. Over the reals there is no difference; here the µGraph says what its kernels do.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

from mirage_formal.claims.numerics.rounding import LARGEST
from mirage_formal.graph.edit import inlined, renumbered
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, numbered
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType

_MAXIMA: Final = (OpKind.MAX, OpKind.ACCUM_MAX)
_LOWEST: Final = Attrs(value=Fraction(-LARGEST[DType.FLOAT32]))


def bounded_maxima(graph: KernelGraph) -> KernelGraph:
    """Return a µGraph in which maxima under exponentials of the same kernel are at least the lowest float32."""
    ops = (replace(op, graph=_block(op.graph)) if isinstance(op, GraphDefined) else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def _block(block: BlockGraph) -> BlockGraph:
    flat = inlined(block)
    items = [(number, op) for number, op in numbered(len(flat.inputs), flat.ops) if isinstance(op, Op)]
    under = _under(items)
    if under.isdisjoint(number for number, op in items if op.kind in _MAXIMA):
        return block
    number = list(range(len(flat.inputs)))
    ops: list[Op] = []
    count = len(number)
    for first, op in items:
        ops.append(renumbered(op, number))
        number += range(count, count + op.results)
        count += op.results
        if first in under and op.kind in _MAXIMA:
            # NaN is not less than it, and stays.
            top = count - 1
            ops.append(Op(OpKind.LT, (top,), _LOWEST))
            ops.append(Op(OpKind.LOGICAL_NOT, (count,)))
            ops.append(Op(OpKind.SELECT, (count + 1, top), _LOWEST))
            count += 3
            number[first] = count - 1
    savers = tuple(replace(saver, operand=number[saver.operand]) for saver in flat.outputs)
    return replace(flat, ops=tuple(ops), outputs=savers)


def _under(items: list[tuple[int, Op]]) -> set[int]:
    """Return the tensors that are subtracted under an exponential, as they are or by way of casts and maxima."""
    exponents = {op.operands[0] for _, op in items if op.kind is OpKind.EXP}
    found: set[int] = set()
    for number, op in reversed(items):
        if op.kind is OpKind.SUB and number in exponents:
            found.add(op.operands[1])
        elif number in found and op.kind in (OpKind.CAST, OpKind.REPEAT, *_MAXIMA):
            found.add(op.operands[0])
    return found

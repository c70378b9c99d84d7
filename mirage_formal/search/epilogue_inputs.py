"""Inputs that a kernel may need behind its loop although the loop does not change them: biases, residuals, gates.

They are carried there as the largest of equal values (``accum_max``). Of a program's inputs only those are that meet
something element by element; behind the loop others would be factors of a product, which belongs into it.
"""

from __future__ import annotations

from mirage_formal.graph.graph import KernelGraph, Op, numbered
from mirage_formal.graph.ops import MOVES, SPECS, Family


def elementwise(program: KernelGraph) -> frozenset[int]:
    """The inputs that are an operand of an elementwise operator of several, maybe behind functions and moves.

    Args:
        program: A program without block graphs.
    """
    count = len(program.inputs)
    near = [frozenset({i}) for i in range(count)]
    found: set[int] = set()
    for _, op in numbered(count, program.ops):
        assert isinstance(op, Op)
        sets = [near[i] for i in op.operands]
        spec = SPECS[op.kind]
        if spec.elementwise and len(sets) > 1:
            found.update(*sets)
        elif spec.family is Family.NORM:
            found.update(*sets[1:])
        through = spec.elementwise or op.kind in MOVES
        near += [frozenset[int]().union(*sets) if through else frozenset[int]()] * op.results
    return frozenset(found)


__all__ = ["elementwise"]

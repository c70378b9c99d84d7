"""Loop-invariant inputs of an epilogue: inputs that a kernel may read behind its loop, such as biases and residuals.

A block graph carries them behind the loop by ``accum_max``, the largest of equal values. Only inputs that are operands
of an elementwise operator are carried. Behind the loop, other inputs would be factors of a product, which belongs into
the loop.
"""

from __future__ import annotations

from mirage_formal.graph.graph import KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import MOVES, SPECS, Family


def epilogue_inputs(program: KernelGraph) -> frozenset[int]:
    """Return the inputs that reach an elementwise operator of several operands, or the weight or bias of a norm.

    Elementwise functions and moves of elements may lie in between.

    Args:
        program: A program without block graphs.
    """
    count = len(program.inputs)
    near = [frozenset({i}) for i in range(count)]
    found: set[int] = set()
    for _, op in enumerate_results(count, program.ops):
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


__all__ = ["epilogue_inputs"]

"""What a search looks for: the program without the maxima that its results do not depend on.

Programs subtract the largest element of a row before they take exponentials, so that these stay in range:
softmax(x) = e^(x - m) / sum of e^(x - m), and log of the sum of e^x = m + log of the sum of e^(x - m), for m = max x as
for any other number. A search would have to find the same maximum in every candidate; without it, it finds the kernels
of the plain form, for which a running maximum is derived again when they are generated (``kernels.stable``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from mirage_formal.claims.equality.prove import prove
from mirage_formal.graph.check import faults, kernel_types
from mirage_formal.graph.edit import pruned, renumbered
from mirage_formal.graph.graph import KernelGraph, KernelOp, Op, numbered
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent

#: Operators of one operand that turn zeros into zeros.
_OF_ZERO = frozenset(
    {OpKind.MAX, OpKind.SUM, OpKind.MEAN, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.SCALE, OpKind.SLICE}
)


@lru_cache(maxsize=4096)
def sought(program: KernelGraph) -> KernelGraph:
    """The program with each maximum that can be 0 as well left out; the program itself if there is none.

    Sound: nothing is accepted for it. It says where to look, and every candidate is proved equal to the program as it
    was given. Left out is what the prover has shown not to matter, so that the search is not in vain.
    """
    for position, op in enumerate(program.ops):
        plain = _without(program, position) if isinstance(op, Op) and op.kind is OpKind.MAX else None
        if plain is not None and isinstance(prove(program, plain), Equivalent):
            return sought(plain)
    return program


def _without(program: KernelGraph, position: int) -> KernelGraph | None:
    """The program with zeros in place of an operator's result; None if they do not vanish by themselves."""
    types, base = kernel_types(program), len(program.inputs)
    number = {i: i for i in range(base)}
    zeros: set[int] = set()
    ops: list[KernelOp] = []
    for first, op in numbered(base, program.ops):
        inside = zeros.intersection(op.operands)
        if first == base + position or (inside and isinstance(op, Op) and op.kind in _OF_ZERO):
            zeros.add(first)
            continue
        if not inside:
            ops.append(renumbered(op, number))
            number |= {first + i: base + _results(ops[:-1]) + i for i in range(op.results)}
            continue
        kept = _other(op, zeros) if isinstance(op, Op) else None
        if kept is None or types[kept] != types[first]:
            return None
        number[first] = number[kept]
    if zeros.intersection(program.outputs):
        return None
    made = replace(program, ops=tuple(ops), outputs=tuple(number[i] for i in program.outputs))
    return None if faults(made) else pruned(made)


def _results(ops: list[KernelOp]) -> int:
    return sum(op.results for op in ops)


def _other(op: Op, zeros: set[int]) -> int | None:
    """The operand that a sum or difference with zeros is equal to; None if there is none."""
    match op.kind, op.operands:
        case OpKind.ADD | OpKind.SUB, (a, b) if b in zeros and a not in zeros:
            return a
        case OpKind.ADD, (a, b) if a in zeros and b not in zeros:
            return b
        case _:
            return None


__all__ = ["sought"]

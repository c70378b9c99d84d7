"""Formulas of a program over whole tensors, from its operators, for the head of a report."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Final

from mirage_formal.graph.graph import KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import OpKind
from mirage_formal.report.proofs.proof_formulas import (
    BoundOperator,
    Call,
    Formula,
    Name,
    Number,
    Power,
    ProductFormula,
    Quotient,
    SumFormula,
)

#: Most operators of a program that is written, and most parts of a formula without a name.
MOST: Final = 40
_INLINE: Final = 14


def definitions(graph: KernelGraph) -> tuple[tuple[str, Formula], ...]:
    """Return names with their formulas, outputs last; empty where the program is too large or has block graphs."""
    if len(graph.ops) > MOST or not all(isinstance(op, Op) for op in graph.ops):
        return ()
    uses = Counter(n for op in graph.ops for n in op.operands)
    shown: dict[int, Formula] = {n: Name(one.name) for n, one in enumerate(graph.inputs)}
    out: list[tuple[str, Formula]] = []
    ends = {number: f"output {at}" if len(graph.outputs) > 1 else "output" for at, number in enumerate(graph.outputs)}
    for first, op in enumerate_results(len(graph.inputs), graph.ops):
        assert isinstance(op, Op)
        formula = _formula(op, [shown[n] for n in op.operands])
        if first in ends:
            out.append((ends[first], formula))
            shown[first] = Name(ends[first])
        elif (uses[first] > 1 and not isinstance(formula, Name)) or _size(formula) > _INLINE:
            name = f"t{len(out) + 1}"
            out.append((name, formula))
            shown[first] = Name(name)
        else:
            shown[first] = formula
    out += [(ends[n], shown[n]) for n in dict.fromkeys(graph.outputs) if n < len(graph.inputs)]
    return tuple(out)


def _formula(op: Op, xs: list[Formula]) -> Formula:
    x, attrs = xs[0], op.attrs
    match op.kind:
        case OpKind.MATMUL:
            return ProductFormula((x, xs[1]))
        case OpKind.ADD | OpKind.SUB:
            return SumFormula(((False, x), (op.kind is OpKind.SUB, xs[1])))
        case OpKind.MUL:
            return ProductFormula((x, xs[1]), "⊙")
        case OpKind.DIV:
            return Quotient(x, xs[1])
        case OpKind.SQRT:
            return Power(x, Fraction(1, 2))
        case OpKind.SQUARE:
            return Power(x, Fraction(2))
        case OpKind.RECIPROCAL:
            return Quotient(Number(Fraction(1)), x)
        case OpKind.SCALE:
            return ProductFormula((Number(attrs.factor), x)) if attrs.factor else Number(Fraction(0))
        case OpKind.SHIFT:
            shift = attrs.shift or Fraction(0)
            return SumFormula(((False, x), (shift < 0, Number(abs(shift)))))
        case OpKind.SUM | OpKind.MAX:
            return BoundOperator(op.kind.value, (), x, (Name("dim"), Number(Fraction(attrs.dim or 0))), "=")
        case OpKind.TRANSPOSE:
            return Call("transpose", (x,))
        case OpKind.CONCAT:
            return Call("concat", tuple(xs))
        case OpKind.CAST:
            return x
        case _:
            number = () if attrs.value is None else (Number(attrs.value),)
            return Call(op.kind.value, (*xs, *number))


def _size(formula: Formula) -> int:
    match formula:
        case SumFormula(terms=terms):
            return 1 + sum(_size(term) for _, term in terms)
        case ProductFormula(factors=factors):
            return 1 + sum(map(_size, factors))
        case Quotient(above=above, below=below):
            return 1 + _size(above) + _size(below)
        case Power(base=base):
            return 1 + _size(base)
        case Call(inside=inside):
            return 1 + sum(map(_size, inside))
        case BoundOperator(body=body):
            return 1 + _size(body)
        case _:
            return 1


__all__ = ["MOST", "definitions"]

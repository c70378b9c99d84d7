"""Rules that replace single operators, and the rewriting of a sequence of operators by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mirage_formal.graph.graph import KernelOp, Op
from mirage_formal.graph.types import DTensor
from mirage_formal.rewrite.graph_builders import GraphBuilder, KernelGraphBuilder

#: A rule emits what takes the place of an operator on these operands and returns its first result; None: no match.
Rule = Callable[[GraphBuilder[DTensor], Op, Sequence[int]], int | None]


def apply_rules(new: KernelGraphBuilder, ops: Iterable[KernelOp], *rules: Rule) -> list[int]:
    """Add the operators of a graph to a builder with its inputs, each replaced by the first rule that matches it.

    Returns:
        For each tensor of the graph, the tensor of the new graph.
    """
    number = list(range(len(new.types)))
    for op in ops:
        operands = [number[n] for n in op.operands]
        made = (rule(new, op, operands) for rule in rules) if isinstance(op, Op) else ()
        first = next((found for found in made if found is not None), None)
        number += new.place(op, operands) if first is None else range(first, first + op.results)
    return number


__all__ = ["Rule", "apply_rules"]

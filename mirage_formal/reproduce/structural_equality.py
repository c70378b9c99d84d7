"""Structural equality of candidates, and the operands that the reference system gives a kernel.

A structure is a candidate without its maps: the operators of each kernel and their operands, its grid and its loop
range, independent of tensor names; imaps, fmaps, omaps, block dims and the fusion of threads do not count.
"""

from __future__ import annotations

from dataclasses import fields

from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, ThreadDefined
from mirage_formal.graph.ops import SPECS, Attrs, OpKind


def structure(graph: KernelGraph) -> str:
    """Return the canonical text of a candidate's structure: one term for each output, and the number of operators.

    A kernel is written ``[grid x loop](expression)``; a kernel with several results has one term each.
    """
    terms = [source.name for source in graph.inputs]
    for op in graph.ops:
        operands = [terms[n] for n in op.operands]
        if isinstance(op, GraphDefined):
            terms += _kernel(op.graph, operands)
        else:
            terms.append(_term(op.kind, op.attrs, operands))
    # Terms do not show whether what occurs twice is computed twice; inside of a kernel it never is.
    count = f"{len(graph.ops)} operators: " if len(graph.ops) > 1 else ""
    return count + "; ".join(terms[n] for n in graph.outputs)


def _kernel(block: BlockGraph, operands: list[str]) -> list[str]:
    terms = list(operands)
    for op in block.ops:
        read = [terms[n] for n in op.operands]
        if isinstance(op, ThreadDefined):
            inner = list(read)
            for step in op.graph.ops:
                inner.append(_term(step.kind, step.attrs, [inner[n] for n in step.operands]))
            terms += [inner[n] for n in op.graph.outputs]
        else:
            terms.append(_term(op.kind, op.attrs, read))
    results = [terms[saver.operand] for saver in block.outputs]
    how = f"{'x'.join(map(str, block.grid))} loop {block.forloop_range}"
    if len(results) == 1:
        return [f"[{how}]({results[0]})"]
    together = ", ".join(sorted(results))
    return [f"[{how}]({result} of {together})" for result in results]


def _term(kind: OpKind, attrs: Attrs, operands: list[str]) -> str:
    read = sorted(operands) if SPECS[kind].commutative else operands
    notes = [f"{f.name}={value}" for f in fields(attrs) if (value := getattr(attrs, f.name)) is not None]
    return f"{kind.value}({', '.join([*read, *notes])})"


def reference_operands(graph: KernelGraph) -> bool:
    """Return whether each graph-defined kernel reads what the reference system would give it.

    That is all tensors if there are exactly three, and the last two otherwise; our spaces allow every set of at most
    ``max_block_inputs`` tensors.
    """
    tensors = len(graph.inputs)
    for op in graph.ops:
        given = (0, 1, 2) if tensors == 3 else (tensors - 2, tensors - 1)
        if isinstance(op, GraphDefined) and tuple(sorted(op.operands)) != given:
            return False
        tensors += op.results
    return True

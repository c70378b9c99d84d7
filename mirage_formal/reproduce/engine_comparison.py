"""Comparison of the guided engine's candidates with the exhaustive engine's; every difference gets a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import decode_graph
from mirage_formal.graph.graph import BlockGraph, GraphDefined, Input, KernelGraph
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.types import DTensor, Shape, row_major
from mirage_formal.graph.verifier import block_types, faults, kernel_types
from mirage_formal.records.reproduction import Comparison, Row
from mirage_formal.search.known_incompleteness import IncompletenessReason, is_equal, missing_reason

#: Possible extents of the axes of a scaled candidate; 1 stays 1.
_SMALL: Final = (2, 4, 6, 8, 12, 16, 24)


def compare_engines(key: str, program: KernelGraph, guided: Row, exhaustive: Row) -> Comparison:
    """Compare the rows of two engines at one limit; the exhaustive row is complete."""
    ours = {digest(graph): graph for graph in map(decode_graph, guided.graphs)}
    theirs = {digest(graph): graph for graph in map(decode_graph, exhaustive.graphs)}
    reasons: Counter[str] = Counter()
    unexplained = 0
    for name in sorted(theirs.keys() - ours.keys()):
        why = incompleteness_reason(program, theirs[name])
        if why is None:
            unexplained += 1
        else:
            reasons[why.value] += 1
    return Comparison(
        key=key,
        paper_ops=exhaustive.paper_ops,
        both=len(ours.keys() & theirs.keys()),
        guided_only=len(ours.keys() - theirs.keys()),
        exhaustive_only=dict(sorted(reasons.items())),
        unexplained=unexplained,
    )


def incompleteness_reason(program: KernelGraph, candidate: KernelGraph) -> IncompletenessReason | None:
    """Return the predicate of search/known_incompleteness.py that holds for a candidate; None if none is known to.

    The predicates are evaluated on the same structure at small extents: float64 evaluation of the real ones sorts
    millions of elements for every tensor.
    """
    pair = scale_down(program, candidate)
    if pair is None or not is_equal(*pair):
        return None
    return missing_reason(*pair)


def scale_down(program: KernelGraph, candidate: KernelGraph) -> tuple[KernelGraph, KernelGraph] | None:
    """Return a program and a candidate at small extents, with the same operators and maps.

    Grid axes and loops of more than one step get two. Equal extents of inputs stay equal, others become different where
    that is possible. A dim of extent 1, anywhere in the candidate, is one in the scaled candidate and nowhere else. The
    result is None if there are no such extents, or an attribute holds an extent.
    """
    if _has_fixed_extents(program) or _has_fixed_extents(candidate):
        return None
    small = replace(
        candidate, ops=tuple(_cap_steps_at_two(op) if isinstance(op, GraphDefined) else op for op in candidate.ops)
    )
    extents = sorted({n for source in program.inputs for n in source.tensor.shape if n > 1})
    ones = _unit_dims(candidate)
    for sizes in sorted(product(_SMALL, repeat=len(extents)), key=lambda s: (len(s) - len(set(s)), sum(s), s)):
        by = {1: 1, **dict(zip(extents, sizes, strict=True))}
        inputs = tuple(_resized(source, tuple(by[n] for n in source.tensor.shape)) for source in program.inputs)
        other = replace(small, inputs=inputs)
        if not faults(other) and _unit_dims(other) == ones:
            return replace(program, inputs=inputs), other
    return None


def _has_fixed_extents(graph: KernelGraph) -> bool:
    """Return whether an attribute holds an extent."""
    return any(attrs.shape is not None or attrs.times is not None for attrs in _attrs(graph))


def _attrs(graph: KernelGraph) -> Iterator[Attrs]:
    for op in graph.ops:
        if not isinstance(op, GraphDefined):
            yield op.attrs
            continue
        for inner in op.graph.ops:
            for step in (inner,) if not hasattr(inner, "graph") else inner.graph.ops:
                yield step.attrs


def _cap_steps_at_two(op: GraphDefined) -> GraphDefined:
    block: BlockGraph = op.graph
    x, y, z = (min(2, extent) for extent in block.grid)
    return replace(
        op, graph=replace(block, grid=(x, y, z), forloop_range=min(2, block.forloop_range), reduction_dimx=2)
    )


def _unit_dims(graph: KernelGraph) -> list[tuple[bool, ...]]:
    """Return, for every tensor on the device and in the blocks, the dims that have extent 1."""
    types = kernel_types(graph)
    shapes: list[Shape] = [tensor.shape for tensor in types]
    for op in graph.ops:
        if isinstance(op, GraphDefined):
            shapes += [tile.shape for tile in block_types(op.graph, tuple(types[n] for n in op.operands))]
    return [tuple(n == 1 for n in shape) for shape in shapes]


def _resized(source: Input, shape: Shape) -> Input:
    return Input(source.name, DTensor(shape, source.tensor.dtype), row_major(shape))

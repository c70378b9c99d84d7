"""The candidates of RMSNorm in the reference's default space are those that the reference itself finds there.

The reference, run on one thread with its default lists, reports 26 µGraphs for X[2,4096] W[4096,6144] at 9 operators of
its count, 25 for X[16,1024] W[1024,4096] and 38 for X[8,256] W[256,512]. Of the last, 5 also copy W through a kernel in
which nothing meets what is computed from X; no space of ours has disconnected block graphs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirage_formal.graph.canonical import canonical
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.reproduce.inputs import rmsnorm
from mirage_formal.reproduce.search_variants import ARMS, engine
from mirage_formal.reproduce.structural_equality import reference_operands, structure
from mirage_formal.search.space import load_space

#: Loop ranges by grid.
LOOPS = {
    32: (64,),
    48: (16, 64),
    64: (16, 64),
    96: (16, 64),
    128: (16, 64),
    192: (4, 16, 64),
    256: (4, 16, 64),
    384: (4, 16, 64),
    512: (4, 16, 64),
    768: (1, 4, 16, 64),
}
BODY = "div(accum_sum(matmul(X, W)), accum_rms_last(X))"
WHOLE = "div(matmul(accum_sum(X), accum_sum(W)), accum_rms_last(X))"
REFERENCE = {f"[{grid}x1x1 loop {loop}]({BODY})" for grid, loops in LOOPS.items() for loop in loops} | {
    f"[768x1x1 loop 1]({WHOLE})"
}


def found(program: KernelGraph, block_ops: int, arm: str = "guided") -> list[KernelGraph]:
    space = load_space("paper").with_overrides(max_block_ops=block_ops)
    options = ARMS[arm].options
    search = engine(options)
    units = search.units(program, space, options)
    return [c.graph for unit in units for c in search.run(program, space, options, unit).candidates]


def test_guided_finds_the_reference_s_structures() -> None:
    assert len(REFERENCE) == 26
    for block_ops in (7, 9):
        graphs = found(rmsnorm(2, 4096, 6144), block_ops)
        theirs = [graph for graph in graphs if reference_operands(graph)]
        assert len(theirs) == 26, "every structure has one choice of maps"
        assert {structure(graph) for graph in theirs} == REFERENCE
        others = [graph for graph in graphs if not reference_operands(graph)]
        assert len(others) == 23
        # They differ by what the graph-defined kernel reads: X alone, or X and the product.
        read = {op.operands for graph in others for op in graph.ops if isinstance(op, GraphDefined)}
        assert read == {(0,), (0, 2)}


@pytest.mark.parametrize(
    ("shape", "count", "structures"), [((16, 1024, 4096), 25, 25), ((8, 256, 512), 33, 30)], ids=["16", "8"]
)
def test_the_counts_at_other_shapes(shape: tuple[int, int, int], count: int, structures: int) -> None:
    graphs = [graph for graph in found(rmsnorm(*shape), 7) if reference_operands(graph)]
    assert len(graphs) == count
    assert len({structure(graph) for graph in graphs}) == structures


def test_a_structure_forgets_maps_and_nothing_else() -> None:
    graph = next(g for g in found(rmsnorm(2, 4096, 6144), 7) if structure(g) == f"[96x1x1 loop 64]({BODY})")
    (kernel,) = graph.ops
    assert isinstance(kernel, GraphDefined)
    assert structure(canonical(graph)) == structure(graph)
    wider = replace(kernel, graph=replace(kernel.graph, block=(256, 1, 1)))
    assert structure(replace(graph, ops=(wider,))) == structure(graph)
    fields: dict[str, Any] = {"grid": (48, 1, 1), "forloop_range": 16, "ops": kernel.graph.ops[:-1]}
    for field, value in fields.items():
        changed = replace(kernel.graph, **{field: value})
        if field == "ops":
            changed = replace(changed, outputs=(replace(changed.outputs[0], operand=len(kernel.graph.inputs)),))
        assert structure(replace(graph, ops=(replace(kernel, graph=changed),))) != structure(graph)

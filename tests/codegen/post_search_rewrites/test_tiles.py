"""Kernels on other grids: the same values, a proof, and only where tiles can be cut otherwise."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.autotune.kernel_preparation import _FormTask, describe_forms
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import ANY, CHANGES, Change, apply_rewrite
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verifier import faults
from mirage_formal.kernel_build.candidate_forms import form as again
from mirage_formal.kernel_build.candidate_forms import forms
from tests.codegen.post_search_rewrites.random_loops import products_with_factors
from tests.codegen.post_search_rewrites.test_forms import H200, proof_of, values
from tests.kit.graphs import workloads as w
from tests.kit.proofs.claims import Saved, kernel, on, program

RETILED = [change for change in CHANGES if change.only_changes_grids and not change.tiles]
TILED = [change for change in CHANGES if change.tiles]


def grid_of(graph: KernelGraph) -> tuple[int, int, int]:
    """Of the last kernel."""
    op = graph.ops[-1]
    assert isinstance(op, GraphDefined)
    return op.graph.grid


def pointwise(rows: int = 128, columns: int = 768, grid: tuple[int, int] = (128, 24)) -> KernelGraph:
    """x * y + x, a kernel whose blocks have a tile each; y is one row."""

    def body(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        def inner(t: BlockBuilder, x: BlockTensor, y: BlockTensor) -> Saved:
            return t.forloop_accum(x * y + x), on(0, 1)

        return kernel(g, grid, [(x, on(0, 1)), (y, on(None, 1))], inner)

    return program({"X": (rows, columns), "Y": (1, columns)}, body)


def of_rows(rows: int = 64, columns: int = 256) -> KernelGraph:
    """Each row less its largest element, a kernel of one block for each row."""

    def body(g: Graph, x: Tensor) -> Tensor:
        def inner(t: BlockBuilder, x: BlockTensor) -> Saved:
            return t.forloop_accum(x - t.max(x, 1)), on(0)

        return kernel(g, (rows,), [(x, on(0))], inner)

    return program({"X": (rows, columns)}, body)


def in_a_loop(rows: int = 64, columns: int = 256) -> KernelGraph:
    """Sums of rows, a kernel whose loop takes columns."""

    def body(g: Graph, x: Tensor) -> Tensor:
        def inner(t: BlockBuilder, x: BlockTensor) -> Saved:
            return t.forloop_accum(t.square(x), "sum"), on(0)

        return kernel(g, (rows,), [(x, on(0), 1)], inner, 4)

    return program({"X": (rows, columns)}, body)


SMALL = {"pointwise": pointwise(16, 64, (16, 2)), "rows": of_rows(16, 32), "loop": in_a_loop(16, 128)}


@pytest.mark.parametrize("change", RETILED, ids=[change.name for change in RETILED])
@pytest.mark.parametrize("name", SMALL)
def test_other_grids_compute_the_same_and_are_proved(name: str, change: Change) -> None:
    graph = SMALL[name]
    form = apply_rewrite(graph, change, H200, ANY)
    if form == graph:
        # Rows are not torn apart, and a tile keeps a warp's worth of elements.
        assert change.more > 1
        return
    assert faults(form) == []
    blocks = [np.prod(grid_of(one)) for one in (graph, form)]
    assert blocks[1] * change.fewer == blocks[0] * change.more
    np.testing.assert_array_equal(values(form, 0), values(graph, 0))
    proof_of(graph, form)


def test_products_stay_on_their_grids() -> None:
    for seed in range(3):
        graph = products_with_factors(random.Random(seed))
        assert all(apply_rewrite(graph, change, H200, ANY) == graph for change in RETILED)


def products(columns: int = 14336, grid: int = 256, loop: int = 16, rows: int = 1, inner: int = 4096) -> KernelGraph:
    """(X w) * (X v), both summed over a loop; a block has some of the columns."""

    def body(g: Graph, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        def inside(t: BlockBuilder, x: BlockTensor, w: BlockTensor, v: BlockTensor) -> Saved:
            return t.forloop_accum(x @ w) * t.forloop_accum(x @ v), on(1)

        return kernel(g, (grid,), [(x, on(None), 1), (w, on(1), 0), (v, on(1), 0)], inside, loop)

    return program({"X": (rows, inner), "W": (inner, columns), "V": (inner, columns)}, body)


def test_products_have_other_grids_and_longer_steps() -> None:
    """Of 14,336 columns, 224 blocks have 64 each, as tensor cores do them; no power of two does."""
    graph = products()
    made = [apply_rewrite(graph, change, H200, ANY) for change in TILED]
    ops = [one.ops[-1] for one in made]
    cut = [(op.graph.grid[0], op.graph.forloop_range) for op in ops if isinstance(op, GraphDefined)]
    assert len(set(cut)) == len(TILED)
    assert (256, 16) not in cut
    assert {224, 112} <= {blocks for blocks, _ in cut}
    assert all(14336 % blocks == 0 and 14336 // blocks % 8 == 0 and 16 % loop == 0 for blocks, loop in cut)
    assert [estimate(one, H200).us for one in made] == sorted(estimate(one, H200).us for one in made)
    for one in made:
        assert faults(one) == []
        proof_of(graph, one)


@pytest.mark.parametrize("change", TILED, ids=[change.name for change in TILED])
def test_products_compute_the_same_on_other_grids(change: Change) -> None:
    small = replace(H200, sms=4)
    graph = products(columns=96, grid=4, loop=4, rows=3, inner=64)
    form = apply_rewrite(graph, change, small, ANY)
    assert form != graph
    np.testing.assert_allclose(values(form, 0), values(graph, 0), rtol=1e-12)


def test_one_kernel_and_several_have_such_forms() -> None:
    """A search drops grids whose tiles exceed shared memory by the model; a cover has one kernel for each part."""
    one = products()
    (op,) = one.ops
    assert any(form.tiles for form in forms(one, H200))
    assert isinstance(op, GraphDefined)
    two = replace(one, ops=(op, replace(op)), outputs=(len(one.inputs), len(one.inputs) + 1))
    found = [form for form in forms(two, H200) if form.tiles]
    assert found
    assert all(form.proof is not None and form.grids for form in found)
    assert all(again(two, H200, form.name) == form for form in found), "one form by its name is that of all"
    with pytest.raises(KeyError):
        again(two, H200, "tiles-99")


def test_other_grids_of_products_are_not_tried_ahead_of_the_own() -> None:
    """The search has chosen by the same estimates; on a GPU they put grids first that were 15 % slower."""
    one = products()
    (op,) = one.ops
    two = replace(one, ops=(op, replace(op)), outputs=(len(one.inputs), len(one.inputs) + 1))
    found = {plan.form: plan.us for plan in describe_forms(_FormTask("two", encode(two), "h200"))}
    tiles = [name for name in found if name.startswith("tiles")]
    assert tiles
    assert all(found[name] >= found[""] for name in tiles)
    assert any(form.us < found[""] for form in forms(two, H200) if form.tiles), "by the estimate alone they would be"


def test_many_blocks_of_a_warp_have_forms_of_fewer() -> None:
    """3,072 blocks of 32 elements: the model says what starting them takes, and the best form has larger tiles."""
    graph = pointwise()
    few = pointwise(grid=(128, 1))
    assert estimate(graph, H200).us > 1.3 * estimate(few, H200).us
    free = replace(H200, model=replace(H200.model, block_us=1e-9))
    assert estimate(graph, free).us < estimate(graph, H200).us
    assert estimate(few, free).us == estimate(few, H200).us
    own, *others = forms(graph, H200)
    assert own.name == "own"
    assert others[0].us < own.us
    assert np.prod(grid_of(others[0].graph)) < 1000


def test_few_blocks_have_forms_of_more() -> None:
    graph = pointwise(grid=(128, 1))
    form = apply_rewrite(graph, Change(more=2), H200, ANY)
    assert sorted(grid_of(form)) == [1, 2, 128]
    assert "more-2" in {form.name for form in forms(graph, H200)}


def test_longer_steps_of_scores_are_a_form_although_the_model_counts_them_in_shared_memory() -> None:
    """Attention of 1,024 queries in blocks of 128 of them; blocks of 256 would not hold accumulators and scores."""
    graph = w.attention_one(b=16, m=1024, d=128, n=1024, e=128, rows=16, loop=16)
    tiled = [form for form in forms(graph, H200) if form.tiles]
    grids = {op.graph.grid for form in tiled for op in form.graph.ops if isinstance(op, GraphDefined)}
    assert (16, 8, 1) in grids
    assert (16, 4, 1) not in grids

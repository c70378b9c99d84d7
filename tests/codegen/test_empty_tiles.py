"""Tiles of a band mask that are empty are neither loaded nor computed, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.online_softmax.stabilize import StableGraph, stabilize_with_groups
from mirage_formal.codegen.planning.planner import make_plan, schedules
from mirage_formal.codegen.program.empty_tiles import executed_share, has_idle_blocks, skippable_mask
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.safety.obligation_types import Safe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.codegen.source_map import kernel_lines
from mirage_formal.codegen.target import load_target
from mirage_formal.device import launch
from mirage_formal.device.emulate import loaded_bytes, run_kernel
from mirage_formal.graph.formats.json import from_json, to_json
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.types import Band
from mirage_formal.semantics.float64_reference import run as reference
from mirage_formal.support.errors import MirageError
from tests.kit.graphs.text_reader import from_text
from tests.kit.kernels.band_graphs import FLASH


def attention(n: int, blocks: int, loop: int, band: str = "[-,0]", value: str = "0") -> KernelGraph:
    return from_text(FLASH.format(rows=n, columns=n, grid=blocks, loop=loop, band=band, value=value))


#: Sums of the columns of the lower triangle: the loop runs along the rows of the mask.
_COLUMN_SUMS = """mugraph 1
d0 = input(X) dtype=float16 shape=[{rows},64]
d1 = input(M) dtype=bool shape=[{rows},64] band={band}
d2 = graph_defined(d0, d1) grid=[4,1,1] block=[128,1,1] forloop_range=8 reduction_dimx=64 {{
  s0 = input(d0) imap=[1,-,-] fmap=0
  s1 = input(d1) imap=[1,-,-] fmap=0
  s2 = select(s1, s0) value=0
  s3 = accum_sum(s2)
  output(s3) omap=[1,-,-]
}}
output(d2)
"""


def stable(graph: KernelGraph) -> KernelGraph:
    found = stabilize_with_groups(graph)
    assert isinstance(found, StableGraph)
    return found.graph


def skips(graph: KernelGraph) -> int | None:
    (op,) = (op for op in graph.ops if isinstance(op, GraphDefined))
    return skippable_mask(op.graph, [graph.inputs[n].band for n in op.operands])


def without_band(graph: KernelGraph) -> KernelGraph:
    return replace(graph, inputs=tuple(replace(item, band=None) for item in graph.inputs))


def given(graph: KernelGraph, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    out = [(0.5 * random.standard_normal(item.tensor.shape)).astype(np.float16) for item in graph.inputs[:3]]
    band = graph.inputs[3].band or Band(None, 0)
    return [*out, band.mask(graph.inputs[3].tensor.shape)]


def read_by(program: Program, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The inputs that a kernel reads: no masks whose elements it computes."""
    return [arrays[int(param.name[2])] for param in program.params if not param.written]


def computed(program: Program, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    return run_kernel(program, read_by(program, arrays))


def loaded(program: Program, arrays: list[np.ndarray]) -> int:
    return loaded_bytes(program, read_by(program, arrays))


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("band", ["[-,0]", "[-,5]", "[-,-20]"])
def test_the_emulator_computes_what_the_reference_computes(shifted: bool, band: str) -> None:
    graph = attention(128, 4, 8, band)
    graph = stable(graph) if shifted else graph
    plan = make_plan(graph, 0, load_target("h200"))
    assert plan.skips is not None
    arrays = given(graph, 3)
    (got,) = computed(lower(plan), arrays)
    (want,) = reference(graph, arrays)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-2, atol=2e-3)


#: Causal; windows that begin late, end early or both; a single diagonal; blocks without any key.
BANDS = ("[-,0]", "[-20,-]", "[-20,0]", "[5,40]", "[-3,-3]", "[-,-100]", "[100,-]", "[200,-]")


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("band", BANDS)
def test_every_schedule_skips_what_lies_outside_of_the_band_and_is_safe(shifted: bool, band: str) -> None:
    graph = attention(128, 4, 8, band)
    graph = stable(graph) if shifted else graph
    arrays = given(graph, 3)
    (want,) = reference(graph, arrays)
    stages = set[int]()
    for schedule in schedules(graph, 0, load_target("h200")):
        if schedule.stages in stages:
            continue
        stages.add(schedule.stages)
        program = lower(make_plan(graph, 0, load_target("h200"), schedule))
        (got,) = computed(program, arrays)
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-2, atol=2e-3)
        assert isinstance(discharge_safety(program).verdict, Safe), schedule
    assert {1, 2, 3} < stages


@pytest.mark.parametrize("band", ["[-,0]", "[-,30]", "[-20,-]", "[-20,5]", "[-,-70]"])
@pytest.mark.parametrize("rows", [64, 128])
def test_a_loop_along_the_rows_skips_the_rows_outside_of_the_band(rows: int, band: str) -> None:
    graph = from_text(_COLUMN_SUMS.format(rows=rows, band=band))
    plan = make_plan(graph, 0, load_target("h200"))
    assert plan.skips is not None
    x = np.random.default_rng(7).standard_normal((rows, 64)).astype(np.float16)
    band_ = graph.inputs[1].band
    assert band_ is not None
    arrays = [x, band_.mask((rows, 64))]
    (got,) = computed(lower(plan), arrays)
    (want,) = reference(graph, arrays)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-3, atol=2e-3)
    assert isinstance(discharge_safety(lower(plan)).verdict, Safe)


def test_a_window_of_256_keys_loads_and_costs_less_than_0_4_of_the_square() -> None:
    graph = stable(attention(1024, 16, 16, "[-255,0]"))
    target, arrays = load_target("h200"), given(graph, 5)
    counted = [loaded(lower(make_plan(one, 0, target)), arrays) for one in (graph, without_band(graph))]
    assert counted[0] < 0.4 * counted[1]
    (op,) = graph.ops
    assert isinstance(op, GraphDefined)
    share = executed_share(op.graph, [item.band for item in graph.inputs], [item.tensor.shape for item in graph.inputs])
    assert share == (12 * 5 + 4 + 3 + 2 + 1) / 256
    bytes_read = [estimate(one, target).kernels[0].l2_bytes for one in (graph, without_band(graph))]
    assert bytes_read[0] < 0.4 * bytes_read[1]


def test_the_share_of_iterations_is_that_of_nonempty_tiles() -> None:
    for rows, columns, lower_, upper in product((32, 64), (64, 96), (None, -40, -7, 0, 9), (None, -30, 0, 12, 40)):
        text = _COLUMN_SUMS.replace("[{rows},64]", f"[{rows},{columns}]").format(band="[-,0]")
        (op,) = from_text(text).ops
        assert isinstance(op, GraphDefined)
        band = Band(lower_, upper)
        tiles = band.mask((rows, columns)).reshape(8, rows // 8, 4, columns // 4).any(axis=(1, 3))
        if (lower_ is not None and upper is not None and lower_ > upper) or lower_ is upper is None:
            continue
        assert executed_share(op.graph, [None, band], [(rows, columns)] * 2) == tiles.mean(), band
        assert has_idle_blocks(op.graph, 1, band, (rows, columns)) == (not tiles.any(axis=0).all()), band


def test_the_report_finds_the_lines_of_kernels_that_skip() -> None:
    for band in BANDS:
        graph = attention(128, 4, 8, band)
        (kernel,) = generate(graph, load_target("h200")).steps
        (op,) = graph.ops
        assert isinstance(kernel, GeneratedKernel)
        assert kernel.plan is not None
        assert isinstance(op, GraphDefined)
        lines = kernel_lines(kernel.program, kernel.plan, op, [item.tensor for item in graph.inputs])
        assert {"it1", "op0", "sv0"} <= {node for line in lines for node in line.nodes}


def test_causal_attention_of_1024_queries_loads_and_costs_less_than_0_6_of_the_square() -> None:
    graph = stable(attention(1024, 16, 16))
    full = without_band(graph)
    target = load_target("h200")
    arrays = given(graph, 5)
    counted = [loaded(lower(make_plan(one, 0, target)), arrays) for one in (graph, full)]
    assert counted[0] < 0.6 * counted[1]
    (op,) = graph.ops
    assert isinstance(op, GraphDefined)
    bands = [item.band for item in graph.inputs]
    assert executed_share(op.graph, bands, [item.tensor.shape for item in graph.inputs]) == (16 * 17 / 2) / 256
    bytes_read = [estimate(one, target).kernels[0].l2_bytes for one in (graph, full)]
    assert bytes_read[0] < 0.6 * bytes_read[1]


def test_kernels_that_skip_are_safe() -> None:
    graph = stable(attention(256, 4, 4))
    assert isinstance(discharge_safety(lower(make_plan(graph, 0, load_target("h200")))).verdict, Safe)


def test_what_an_empty_tile_changes_is_not_skipped() -> None:
    assert skips(attention(128, 4, 8)) == 3
    assert skips(attention(128, 4, 8, value="1")) is None  # discarded keys count
    assert skips(without_band(attention(128, 4, 8))) is None
    text = FLASH.format(rows=128, columns=128, grid=4, loop=8, band="[-,0]", value="0")
    assert skips(from_text(text.replace("select(s3, s5)", "select(s3, s4)"))) == 3
    bare = text.replace("  s6 = select(s3, s5) value=0\n", "  s6 = add(s5, s5)\n")
    assert skips(from_text(bare)) is None  # the mask is not what selects


def test_bands_survive_files_and_are_no_argument_of_a_call() -> None:
    graph = attention(64, 2, 4, "[-3,7]")
    assert from_json(to_json(graph)) == graph
    assert from_text(to_text(graph)) == graph
    g = mf.new_kernel_graph()
    x = g.new_input((4, 6), dtype=mf.float32, name="x")
    g.mark_output(g.select(g.band((4, 6), -1, 1, name="near"), x, 0))
    values = np.arange(24, dtype=np.float32).reshape(4, 6) + 1
    launch._say_no_gpu.cache_clear()  # it is said once in a process, and another test may have been told
    with pytest.warns(Warning, match="GPU"):
        got = g(values)
    np.testing.assert_array_equal(got, np.triu(np.tril(values, 1), -1))
    with pytest.raises(MirageError, match="expected 1 inputs"):
        g(values, values > 0)


def test_a_band_without_bounds_or_dims_names_what_to_do() -> None:
    g = mf.new_kernel_graph()
    with pytest.raises(MirageError, match="expected a lower or an upper bound"):
        g.band((4, 4))
    with pytest.raises(MirageError, match="two dims"):
        g.band((4,), upper=0)

"""Kernels whose tiles overhang their tensors: guarded loads and stores, on the emulator and in obligations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen import executable
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.lowering.context import LoweringContext
from mirage_formal.codegen.planning import planner
from mirage_formal.codegen.program.program import CopyAsync
from mirage_formal.codegen.target import load_target
from mirage_formal.emulate.runner import EmulatedExecutable, compare_on_emulator
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import StorageLocation, launched_operators, storage_locations
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import Acceptance, KernelRejected
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics import float64_reference
from tests.codegen.lowering.test_lower import statements
from tests.kit.kernels.tails import Wrapped, chain, drawn, product

H200 = load_target("h200")
K = OpKind
PRODUCTS = [
    (19, 37, 45, (16, 16, 16)),
    (197, 53, 24, (16, 8, 32)),  # rows of whole 16 bytes on one side
    (3, 64, 96, (16, 32, 16)),  # only rows overhang
    (32, 64, 97, (16, 32, 16)),  # only columns overhang
    (1, 23, 1, (16, 16, 16)),
    (16, 259, 16, (16, 16, 16)),  # only the inner dim overhangs
]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products_with_tails(case: tuple[Any, ...]) -> None:
    program, graph = product(*case)
    made = build(graph, program, H200)
    assert len(made.executable.launches) == 1
    assert compare_on_emulator(made, scales=(0.1, 1.0)).answer == "within"


@pytest.mark.parametrize(
    ("shape", "wanted", "grid"),
    [((5, 197), (8, 256), (2, 4)), ((7, 41), (7, 48), (1, 3)), ((13, 64), (16, 64), (4, 1)), ((3, 9), (4, 16), (2, 2))],
)
def test_chains_with_tails(shape: tuple[int, ...], wanted: tuple[int, ...], grid: tuple[int, int]) -> None:
    program, graph = chain(shape, wanted, grid)
    made = build(graph, program, H200)
    assert len(made.executable.launches) == 1
    assert compare_on_emulator(made, scales=(0.1, 1.0)).answer == "within"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(16))
def test_random_products_with_tails(seed: int) -> None:
    """Rows or columns next to each other, gaps, batches, any extents; proved, safe and right."""
    program, graph = drawn(seed)
    assert isinstance(prove(program, graph), Equivalent)
    made = build(graph, program, H200)
    assert len(made.executable.launches) == 1
    assert compare_on_emulator(made, seed=seed, scales=(0.5,)).answer == "within"


def test_whole_chunks_are_copied_by_16_bytes_where_rows_allow_it() -> None:
    """Rows of 24 elements: the guard holds for a chunk of 8 or fails for it, so the ring of copies stays."""
    program, graph = product(19, 40, 24, (16, 16, 16))
    (kernel,) = build(graph, program, H200).programs.values()
    assert "CopyAsync" in repr(kernel.body)
    program, graph = product(19, 41, 25, (16, 16, 16))
    (kernel,) = build(graph, program, H200).programs.values()
    assert "CopyAsync" not in repr(kernel.body)


def test_a_padded_tensor_is_never_stored() -> None:
    program, graph = product(19, 37, 45, (16, 16, 16))
    made = build(graph, program, H200)
    known = storage_locations(graph)
    assert launched_operators(graph) == (len(graph.ops) - 3,)
    assert {place.base for place in known} == {0, 1, len(known) - 1}
    assert executable.workspace(made.executable)[1] == 0
    cost = estimate(graph, H200).kernels[0]
    assert cost.device_bytes == 2 * (19 * 37 + 37 * 45), "what a small kernel writes stays in the cache"
    assert cost.tensor_flops > 2 * 19 * 37 * 45


def test_what_a_predefined_operator_reads_is_padded_for_it() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(5, 7), name="x")
    g.mark_output(g.exp(g.pad(x, 1, 0, 3)))
    program = g.freeze()
    assert launched_operators(program) == (0, 1)
    assert compare_on_emulator(build(program, program, H200), scales=(1.0,)).answer == "within"


def test_zeros_before_the_first_element_are_left_to_the_reader_too() -> None:
    """The slices do not start at the first element, so the result is stored as it is."""
    program, graph = chain((5, 24), (8, 32), (2, 2))
    shifted = [
        replace(op, attrs=Attrs(dim=op.attrs.dim, before=op.attrs.after, after=0)) if isinstance(op, Op) else op
        for op in graph.ops[:4]
    ]
    cut = [
        replace(op, attrs=Attrs(dim=d, start=n, stop=n + m))
        for op, d, n, m in zip(graph.ops[5:], (0, 1), (3, 8), (5, 24), strict=True)
        if isinstance(op, Op)
    ]
    moved = KernelGraph(graph.inputs, (*shifted, graph.ops[4], *cut), graph.outputs)
    made = build(moved, program, H200)
    assert len(made.executable.launches) == 2
    assert compare_on_emulator(made, scales=(0.1,)).answer == "within"


def sliced(start: int, stop: int) -> tuple[KernelGraph, KernelGraph]:
    """A fused product of columns start .. stop - 1 of one input with another."""
    g = mf.new_kernel_graph()
    a, b = g.new_input(dims=(32, 96), name="a"), g.new_input(dims=(stop - start, 32), name="b")
    g.mark_output(g.matmul(g.slice(a, 1, start, stop), b))
    program = g.freeze()
    made = Wrapped(program)
    x = made.add(Op(K.SLICE, (0,), Attrs(dim=1, start=start, stop=stop)))
    block = BlockGraph(
        (2, 2, 1),
        (128, 1, 1),
        (stop - start) // 16,
        1,
        (InputIterator((None, 0, None), 1), InputIterator((1, None, None), 0)),
        (Op(K.MATMUL, (0, 1)), Op(K.ACCUM_SUM, (2,))),
        (OutputSaver(3, (1, 0, None)),),
    )
    return program, made.graph(made.add(GraphDefined((x, 1), block)))


@pytest.mark.parametrize(("start", "chunks"), [(0, 16), (8, 16), (16, 16), (5, 0), (4, 8), (2, 4)])
def test_a_slice_is_read_where_it_lies(start: int, chunks: int) -> None:
    program, graph = sliced(start, start + 64)
    made = build(graph, program, H200)
    assert len(made.executable.launches) == 1
    (argument, *_) = made.executable.launches[0].arguments  # type: ignore[union-attr]
    assert argument.elements == 31 * 96 + start + 64
    assert made.executable.base(argument.value) == 0
    assert compare_on_emulator(made, scales=(0.1,)).answer == "within"
    ring = made.plans[0].loop.ring  # type: ignore[union-attr]
    assert (0 in ring) == (chunks > 0)
    (kernel,) = made.programs.values()
    copies = [s.bytes for s in statements(kernel.body) if isinstance(s, CopyAsync) and s.buffer == "s0"]
    assert set(copies) == ({chunks} if chunks else set())


def test_predefined_operators_read_slices_where_they_lie() -> None:
    """Products, functions, reductions and copies, of slices of slices and of transposed ones."""
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(12, 40), name="x"), g.new_input(dims=(40, 24), name="w")
    part = g.slice(g.slice(x, 1, 3, 30), 0, 2, 9)  # [7, 27]
    turned = g.transpose(g.slice(w, 0, 5, 32))  # [24, 27]
    g.mark_output(g.matmul(part, g.transpose(turned)))
    g.mark_output(g.softmax(part, 1))
    g.mark_output(g.mul(g.sum(turned, 0), part))
    program = g.freeze()
    made = build(program, program, H200)
    assert len(made.executable.launches) == 4
    assert compare_on_emulator(made, scales=(0.5,)).answer == "within"


# --- the easy wrong versions -----------------------------------------------------------------------------------------


def moved_guard(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    """Guards that let one element more, or one less, of each dim through."""
    right = LoweringContext.in_memory

    def wrong(self: LoweringContext, tile: Any, *given: Any) -> Any:
        param = self.plan.params[tile.param]
        if param.place.extents is None:
            return right(self, tile, *given)
        place = replace(param.place, extents=tuple(extent + by for extent in param.place.extents))
        params = (*self.plan.params[: tile.param], replace(param, place=place), *self.plan.params[tile.param + 1 :])
        kept, self.plan = self.plan, replace(self.plan, params=params)
        try:
            return right(self, tile, *given)
        finally:
            self.plan = kept

    monkeypatch.setattr(LoweringContext, "in_memory", wrong)


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("case", PRODUCTS[:4], ids=str)
def test_guards_that_are_off_by_one_are_found(case: tuple[Any, ...], by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many leaves a buffer or writes an element twice; one too few leaves elements of the output unwritten."""
    program, graph = product(*case)
    moved_guard(monkeypatch, by)
    with pytest.raises(KernelRejected):
        build(graph, program, H200)


def test_a_guard_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program, graph = product(*PRODUCTS[0])
    moved_guard(monkeypatch, 1 << 20)
    with pytest.raises(KernelRejected, match="bounds"):
        build(graph, program, H200)


def test_an_alignment_that_is_assumed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """16-byte copies from an offset of 5 elements are refused."""
    program, graph = sliced(5, 69)
    from mirage_formal.codegen.device_tensors import PlanParam

    monkeypatch.setattr(PlanParam, "aligned", lambda self, width, dense: True)
    with pytest.raises(KernelRejected, match="aligned"):
        build(graph, program, H200)


def test_an_offset_that_is_ignored_gives_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    program, graph = sliced(8, 72)
    right = storage_locations
    monkeypatch.setattr(
        planner,
        "storage_locations",
        lambda g: tuple(replace(p, offset=0) if isinstance(p, StorageLocation) else p for p in right(g)),
    )
    with pytest.raises(KernelRejected, match="not proved that the kernel computes its µGraph"):
        build(graph, program, H200)
    made = build(graph, program, H200, accept=Acceptance.TESTED)
    x, w = np.random.default_rng(0).normal(size=(2, 96, 96))
    arrays = [np.float16(x[:32]).astype(float), np.float16(w[:64, :32]).astype(float)]
    (wanted,) = float64_reference.run(program, arrays)
    (found,) = EmulatedExecutable(made)(arrays)
    assert np.abs(found - wanted).max() > 1


def test_what_overhangs_must_be_zero() -> None:
    """Tiles that are filled with ones behind the end of the inner dim: the sums show it."""
    program, graph = product(16, 259, 9, (16, 16, 16))
    made = build(graph, program, H200)
    text = made.executable.source
    assert ": 0.0f" in text
    (name,) = made.executable.sources
    wrong = replace(made.executable, files={**made.executable.files, name: text.replace(": 0.0f", ": 1.0f").encode()})
    rng = np.random.default_rng(0)
    arrays = [np.float16(rng.normal(size=item.tensor.shape)).astype(float) for item in program.inputs]
    (wanted,) = float64_reference.run(program, arrays)
    (right,) = EmulatedExecutable(made)(arrays)
    (found,) = EmulatedExecutable(replace(made, executable=wrong))(arrays)
    np.testing.assert_allclose(right, wanted, atol=0.2)
    assert np.abs(found - wanted).min() > 10  # 13 products of ones

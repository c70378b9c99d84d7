"""Triton's own compiler, ahead of time and without a GPU: machine code for three architectures."""

from __future__ import annotations

from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from tests.kit.kernels import example_kernels, masked_attention, tails
from tests.kit.kernels import triton_files as kit

pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[triton]'")
pytest.importorskip("triton", reason="Triton is not installed: pip install 'mirage_formal[triton]'")

#: Running maxima in two kernels, concatenations, a norm beside a product.
ROWS = ("attn-b1", "lora-b1", "rmsnorm-b1")
#: Shared memory of a block, by architecture.
SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}


def fused() -> KernelGraph:
    """x * y + y, which a compiler may contract."""
    g = mf.new_kernel_graph()
    x, y = (g.new_input(dims=(16, 64), name=name) for name in "xy")
    g.mark_output(g.add(g.mul(x, y), y))
    whole = InputIterator((None, None, None), None)
    ops = (Op(OpKind.MUL, (0, 1)), Op(OpKind.ADD, (2, 1)), Op(OpKind.ACCUM_SUM, (3,)))
    block = BlockGraph((1, 1, 1), (128, 1, 1), 1, 1, (whole, whole), ops, (OutputSaver(4, (None, None, None)),))
    return KernelGraph(g.freeze().inputs, (GraphDefined((0, 1), block),), (2,))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = [
        kit.case(row, example_kernels.real(row.rsplit("-b", 1)[0]), example_kernels.fastest()[row]) for row in ROWS
    ]
    single = kit.of_type(example_kernels.fastest()["lora-b1"], DType.FLOAT32)
    cases.append(kit.case("single", kit.of_type(example_kernels.real("lora"), DType.FLOAT32), single))
    graph = kit.of_type(tails.drawn(6)[1], DType.BFLOAT16)
    cases += [kit.case("odd", graph, graph, raw=True), kit.case("fused", fused(), fused(), raw=True)]
    graph = masked_attention.fused(DType.BFLOAT16)
    cases.append(kit.case("masked", graph, graph, raw=True))
    program, wide = tails.product(16, 1 << 27, 16, (16, 1 << 12, 16))
    cases.append(kit.case("wide", program, wide, raw=True))
    return kit.compiled(cases, tmp_path_factory.mktemp("compiled"), text=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROWS, "single", "odd", "fused", "masked", "wide"])
def test_every_architecture_has_machine_code(name: str, built: dict[str, Any]) -> None:
    rows = built[name]
    assert not isinstance(rows, str), rows
    assert {row["arch"] for row in rows} == set(kit.ARCHS)
    assert all(row["cubin"] > 0 and row["shared"] <= SHARED[row["arch"]] for row in rows)


@pytest.mark.slow
def test_the_compiler_keeps_both_loads_of_a_tile(built: dict[str, Any]) -> None:
    """X for tl.dot, X for its squares, and W; see test_text for why."""
    for row in built["rmsnorm-b1"]:
        assert row["ttir"].count("tt.load") == 3, row["arch"]


@pytest.mark.slow
def test_no_multiplication_is_fused_with_an_addition(built: dict[str, Any]) -> None:
    assert not any(row["fused"] for row in built["fused"])


@pytest.mark.slow
def test_masks_are_read_as_bytes(built: dict[str, Any]) -> None:
    for row in built["masked"]:
        loads = [line for line in row["ttir"].splitlines() if "tt.load" in line]
        assert sum("ptr<i8>" in line for line in loads) == 1
        assert "arith.maximumf" in row["ttir"]


@pytest.mark.slow
def test_large_offsets_are_computed_in_64_bits(built: dict[str, Any]) -> None:
    for row in built["wide"]:
        added = [line for line in row["ttir"].splitlines() if "tt.addptr" in line]
        assert any("i64" in line for line in added)
        assert not any("i32" in line for line in added)

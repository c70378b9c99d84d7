"""Triton files in Triton's interpreter, beside float64 with derived tolerances, and their own checks of themselves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.codegen.numerics.shrink import shrink
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.semantics import float64_reference
from tests.kit.graphs import corpus_programs
from tests.kit.graphs.random_graphs import random_graph
from tests.kit.graphs.text_reader import from_text
from tests.kit.kernels import example_kernels, masked_attention, tails
from tests.kit.kernels import triton_files as kit
from tests.kit.kernels.band_graphs import BANDS, FLASH, PADDED, SPLIT, TWO, bounds

pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[triton]'")
pytest.importorskip("triton", reason="Triton is not installed: pip install 'mirage_formal[triton]'")

pytestmark = pytest.mark.slow
EXAMPLES = [row for row in example_kernels.fastest() if row.endswith("-b1")]
SEEDS = range(160)


def example(row: str) -> tuple[KernelGraph, KernelGraph]:
    """An example's program and its fastest candidate, with its own tiles, few blocks and few iterations."""
    name, batch = row.rsplit("-b", 1)
    found = shrink(example_kernels.real(name, int(batch)), example_kernels.fastest()[row])
    return found.program, found.candidate


def checked(cases: list[kit.Case], tmp: pytest.TempPathFactory) -> dict[str, kit.Ran]:
    given = {one.name: kit.inputs(one.program) for one in cases}
    return kit.interpreted(cases, tmp.mktemp("interpreted"), given)


def judge(case: kit.Case, ran: kit.Ran) -> None:
    """Results within the derived tolerances; the file's reference is the program; its own check says so as well."""
    assert ran.results, ran.said
    arrays = kit.inputs(case.program)
    expected = result_comparison.expected_results(case.program, case.graph, arrays)
    types = kernel_types(case.program)
    for i, (value, tolerance) in enumerate(zip(expected.values, expected.tolerances, strict=True)):
        dtype = types[case.program.outputs[i]].dtype
        record = result_comparison.compare_outputs(ran.results[i], value, tolerance, dtype)
        assert record.answer == "within", record
        assert np.allclose(ran.references[i], value, rtol=1e-9, atol=1e-12 * np.abs(value).max())
    assert ran.code == 0, ran.said
    assert ran.said.startswith("right: relative error ")


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, kit.Case], dict[str, kit.Ran]]:
    cases = [kit.case(row, *example(row)) for row in EXAMPLES]
    for row in ("attn-b1", "lora-b1", "ntrans-b1"):
        program, graph = (kit.of_type(one, DType.BFLOAT16) for one in example(row))
        cases.append(kit.case(f"{row}-bfloat16", program, graph))
    return {one.name: one for one in cases}, checked(cases, tmp_path_factory)


@pytest.mark.parametrize("row", [*EXAMPLES, *(f"{name}-b1-bfloat16" for name in ("attn", "lora", "ntrans"))])
def test_the_fastest_candidates_of_examples(row: str, examples: tuple[dict[str, kit.Case], dict[str, kit.Ran]]) -> None:
    judge(examples[0][row], examples[1][row])


# --- odd extents -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, kit.Case], dict[str, kit.Ran]]:
    cases = [kit.case(f"drawn{seed}", *tails.drawn(seed)) for seed in range(16)]
    cases.append(kit.case("product", *tails.product(19, 37, 45, (16, 16, 16))))
    cases.append(kit.case("row", *tails.product(1, 23, 1, (16, 16, 16))))
    cases.append(kit.case("chain", *tails.chain((5, 197), (8, 256), (2, 4))))
    return {one.name: one for one in cases}, checked(cases, tmp_path_factory)


@pytest.mark.parametrize("name", [*(f"drawn{seed}" for seed in range(16)), "product", "row", "chain"])
def test_tiles_that_overhang(name: str, odd: tuple[dict[str, kit.Case], dict[str, kit.Ran]]) -> None:
    judge(odd[0][name], odd[1][name])


# --- masks -----------------------------------------------------------------------------------------------------------


MASKED = {
    f"{form.__name__}-{dtype.value}": (form, dtype)
    for form in (masked_attention.apart, masked_attention.fused)
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
}


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, kit.Case], dict[str, kit.Ran]]:
    cases = [
        kit.case(name, graph, graph, raw=True) for name, (form, dtype) in MASKED.items() for graph in [form(dtype)]
    ]
    given = {one.name: masked_attention.arrays(kit.inputs(one.program), MASKED[one.name][1]) for one in cases}
    return {one.name: one for one in cases}, kit.interpreted(cases, tmp_path_factory.mktemp("masks"), given)


@pytest.mark.parametrize("name", MASKED)
def test_masks_with_empty_rows_and_special_values(
    name: str, masks: tuple[dict[str, kit.Case], dict[str, kit.Ran]]
) -> None:
    """Finite where float64 is, near it, and 0 or NaN where a row has no key."""
    program, ran = masks[0][name].program, masks[1][name]
    assert ran.results, ran.said
    assert ran.code == 0, ran.said
    wanted = float64_reference.run(program, masked_attention.arrays(kit.inputs(program), MASKED[name][1]))
    for result, again, value in zip(ran.results, ran.references, wanted, strict=True):
        known = np.isfinite(value)
        assert (np.isfinite(result) == known).all()
        assert (np.isfinite(again) == known).all()
        assert np.allclose(again[known], value[known], rtol=1e-12)
        assert np.allclose(result[known], value[known], rtol=0.02, atol=0.02)
    assert (ran.results[0][[3, 7]] == 0).all()
    assert np.isnan(ran.results[1][[3, 7]]).all()


SIZES = {"rows": 32, "columns": 64, "grid": 2, "loop": 2, "value": 0}
BANDED = {
    f"{name}{number}": text.format(band=bounds(band), other="[-9,4]", **SIZES, more_rows=32, more_columns=64)
    for name, text in {"whole": FLASH, "split": SPLIT, "padded": PADDED, "two": TWO}.items()
    for number, band in enumerate(BANDS)
}


@pytest.fixture(scope="module")
def banded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, kit.Case], dict[str, kit.Ran]]:
    cases = [kit.case(name, graph, graph) for name, text in BANDED.items() for graph in [from_text(text)]]
    return {one.name: one for one in cases}, checked(cases, tmp_path_factory)


@pytest.mark.parametrize("name", BANDED)
def test_band_masks_are_computed(name: str, banded: tuple[dict[str, kit.Case], dict[str, kit.Ran]]) -> None:
    judge(banded[0][name], banded[1][name])


# --- any operators ---------------------------------------------------------------------------------------------------


def test_random_block_graphs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every operator of block graphs, on extents of 1, 4 and 12, in float32 and as they are."""
    cases: list[kit.Case] = []
    for seed in SEEDS:
        graph = kit.of_type(random_graph(random.Random(seed), frozenset(OpKind), kernels=3), DType.FLOAT32)
        if not faults(graph):
            cases.append(kit.case(f"random{seed}", graph, graph, raw=True))
    assert len(cases) >= 40
    ran = checked(cases, tmp_path_factory)
    compared = 0
    for one in cases:
        found = ran[one.name]
        assert found.results, (one.name, found.said)
        exact = float64_reference.run(one.program, kit.inputs(one.program))
        for result, again, value in zip(found.results, found.references, exact, strict=True):
            known = np.isfinite(value)
            assert np.allclose(again[known], value[known], rtol=1e-9, atol=1e-9), one.name
            if known.all() and np.abs(value).max() < 1e30:
                compared += 1
                assert np.linalg.norm(result - value) <= 1e-4 * max(1e-2, float(np.linalg.norm(value))), one.name
    assert compared >= 35


def test_programs_of_the_corpus_as_they_are(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Predefined operators of any kind, views and copies: torch's and functions of one operator."""
    small = {name: corpus_programs.build(name, small=True).freeze() for name in list(corpus_programs.FILES)[::6]}
    cases = [kit.case(name, graph, graph, raw=True) for name, graph in small.items()]
    given = {
        one.name: [values[item.name] for item in one.program.inputs]
        for one in cases
        for values in [corpus_programs.draw(one.name, one.program)]
    }
    ran = kit.interpreted(cases, tmp_path_factory.mktemp("corpus"), given)
    assert len(cases) >= 15
    for one in cases:
        found, exact = ran[one.name], float64_reference.run(one.program, given[one.name])
        assert found.results, (one.name, found.said)
        for result, value in zip(found.results, exact, strict=True):
            error = np.linalg.norm(result - value) / np.linalg.norm(value)
            assert error <= 8e-3, (one.name, error)

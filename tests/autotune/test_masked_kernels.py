"""Kernels that are timed by themselves compute the band masks that they compute in their µGraph."""

from __future__ import annotations

import pytest

from mirage_formal.autotune.kernel_extraction import extract_kernels
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.target import load_target
from tests.kit.graphs.text_reader import from_text
from tests.kit.kernels.band_graphs import FLASH, PADDED, SPLIT


@pytest.mark.parametrize("text", [FLASH, SPLIT, PADDED], ids=["whole", "split", "padded"])
def test_extracted_kernels_compute_masks(text: str) -> None:
    sizes = {"rows": 32, "columns": 64, "grid": 2, "loop": 2, "more_rows": 32, "more_columns": 64, "value": 0}
    graph, target = from_text(text.format(band="[-11,25]", **sizes)), load_target("h200")
    steps = generate(graph, target).steps
    for step, piece in zip(steps, extract_kernels(graph), strict=True):
        (own,) = generate(piece.graph, target).steps
        assert isinstance(step, GeneratedKernel)
        assert isinstance(own, GeneratedKernel)
        params = [[(one.elements, one.dtype, one.written) for one in x.program.params] for x in (step, own)]
        assert params[0] == params[1]
        assert step.program.shared == own.program.shared
        assert step.plan is not None
        assert own.plan is not None
        assert (step.plan.skips, step.plan.schedule) == (own.plan.skips, own.plan.schedule)

"""Seeded inputs of comparisons with float64."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.graph.graph import Input
from mirage_formal.graph.types import DTensor, DType, row_major


@pytest.mark.parametrize("scale", [0.1, 8.0])
def test_inputs_are_the_same_however_many_elements_are_drawn_at_once(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = Input("x", DTensor((50, 41), DType.FLOAT16), row_major((50, 41)))
    whole = result_comparison.draw_input(item, 2, 5, scale)
    monkeypatch.setattr(result_comparison, "_PIECE", 1000)
    assert whole.tobytes() == result_comparison.draw_input(item, 2, 5, scale).tobytes()
    assert len(np.unique(whole)) > 500

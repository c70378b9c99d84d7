"""Rewritten torch graphs: regions read and give tensors through the right views, whatever the module does."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from mirage_formal.torch.import_result import Imported
from tests.kit.torch import random_layers
from tests.kit.torch.comparison import compare_rewritten


@pytest.fixture(autouse=True)
def _rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random imports are compared by what the rewritten graph computes. Torch's norms round to float32 on the way."""

    def compare(imported: Imported, call: Any, arguments: Any, _: float) -> None:
        compare_rewritten(imported, call, arguments, 2e-4)

    monkeypatch.setattr(random_layers, "compare", compare)


@pytest.mark.parametrize("seed", range(40))
def test_random_functions(seed: int) -> None:
    found = random_layers.function_of(1000 + seed)
    assert found.regions or found.left or found.views


@pytest.mark.parametrize("seed", range(4))
def test_random_layers(seed: int) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: make test-torch installs it")
    assert random_layers.layer_of(1000 + seed).regions

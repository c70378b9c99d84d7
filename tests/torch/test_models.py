"""Models of transformers with padded batches: NaN where PyTorch has it, errors at most twice PyTorch's own.

``python -m benchmarks.torch_models`` looks at all of them.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")
pytest.importorskip("transformers", reason="transformers is not installed: make test-torch installs it")

from tests.kit.sampling import THOROUGH  # noqa: E402
from tests.kit.torch.models import FAMILIES, Case, cases, compared  # noqa: E402

#: Each model once, in turns of attention, padding, cache and element type.
CHOSEN = [
    Case("llama", "sdpa", "left", False, "float16"),
    Case("qwen3", "sdpa", "left", True, "bfloat16"),
    Case("gemma3", "eager", "left", False, "bfloat16"),
    Case("gpt_neox", "sdpa", "right", True, "float16"),
    Case("mixtral", "sdpa", "left", False, "float32"),
    Case("bert", "sdpa", "right", False, "float16"),
    Case("t5", "eager", "left", False, "float32"),
    Case("whisper", "sdpa", "left", False, "float16"),
]


def test_every_model_is_looked_at() -> None:
    assert {case.family for case in CHOSEN} == set(FAMILIES)
    assert set(CHOSEN) <= set(cases())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [*CHOSEN, *(cases() if THOROUGH else ())], ids=str)
def test_padded_batches(case: Case) -> None:
    found = compared(case)
    assert sum(len(region.nodes) for region in found.imported.regions) > 15, found.imported.report()
    assert found.pattern, "NaN or infinities elsewhere than PyTorch"
    assert found.within, list(zip(found.ours, found.eager, strict=True))

"""Attention over a batch that is padded on its left, on a real GPU: queries without a key have torch's result."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from tests.kit.torch import examples as kit  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(kit.DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"),
]


class _Layers(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """Two layers of attention with a residual: a NaN of the first would spread in the second."""

    def forward(self, x: Any, w: Any, mask: Any) -> Any:
        for _ in range(2):
            x = x + torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask) @ w
        return x


@pytest.mark.parametrize("dtype", kit.TYPES)
def test_two_layers_over_a_left_padded_batch(dtype: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 64, 64, dtype=kit.TYPES[dtype], device=kit.DEVICE)
    w = torch.randn(64, 64, dtype=kit.TYPES[dtype], device=kit.DEVICE) / 8
    keep = torch.ones(2, 64, dtype=torch.bool, device=kit.DEVICE)
    keep[1, :20] = False
    mask = keep[:, None, None, :] & torch.ones(64, 64, dtype=torch.bool, device=kit.DEVICE).tril()
    module = _Layers()
    with kit.stored():
        optimized = mf.optimize(module, (x, w, mask), **kit.OPTIONS)
    regions = optimized.mirage_report().regions
    assert any(not region.kept for region in regions), str(optimized.mirage_report())
    with torch.no_grad():
        wanted = module(*(t.double() if t.is_floating_point() else t for t in (x, w, mask)))
        assert torch.isfinite(wanted).all()
        kit.close(optimized(x, w, mask), wanted, dtype)

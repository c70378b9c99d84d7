"""What searches make of imported modules at real sizes: views cost nothing, and what belongs together is one kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from mirage_formal.graph.graph import GraphDefined  # noqa: E402
from mirage_formal.graph.storage_views import kernel_count  # noqa: E402
from tests.kit.graphs.moves import copies  # noqa: E402

nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]


class Mlp(nn.Module):  # type: ignore[misc,name-defined]  # torch has no types where it is not installed
    """That of Llama."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        """The layer."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


def best(target: Any, given: tuple[Any, ...], place: Path) -> Any:
    """The best candidate for a module without memory; none that is reported has a kernel that only copies."""
    imported = mf.from_torch(target, given)
    assert imported.graph is not None, imported.report()
    found = mf.superoptimize(imported.graph, out=place, workers=1, measure=0)
    assert [kind for result in found for kind in copies(result.graph)] == []
    return found[0]


def half(*shape: int) -> Any:
    return torch.empty(*shape, dtype=torch.float16, device="meta")


@pytest.mark.slow
def test_keys_as_models_store_them_cost_what_transposed_ones_do(tmp_path: Path) -> None:
    q, k, v = half(1, 8, 4, 128), half(1, 8, 4096, 128), half(1, 8, 4096, 128)
    turned = best(lambda q, k, v: F.softmax(q @ k.transpose(-1, -2), -1) @ v, (q, k, v), tmp_path / "turned")
    strides = best(lambda q, k, v: F.softmax(q @ k, -1) @ v, (q, k.transpose(-1, -2), v), tmp_path / "strides")
    assert turned.cost == strides.cost
    kernels = [[op.graph for op in one.graph.ops if isinstance(op, GraphDefined)] for one in (turned, strides)]
    assert kernels[0] == kernels[1] != []


@pytest.mark.slow
def test_the_mlp_of_llama_has_at_most_three_kernels(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = Mlp(4096, 14336).half()
    assert kernel_count(best(module, (half(1, 1, 4096),), tmp_path / "run").graph) <= 3


@pytest.mark.slow
def test_a_norm_and_a_linear_layer_with_bias_are_one_kernel(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.RMSNorm(4096, eps=1e-6), nn.Linear(4096, 6144)).half()
    assert kernel_count(best(module, (half(1, 1, 4096),), tmp_path / "run").graph) == 1


def test_arguments_in_one_memory_have_extents_that_are_known() -> None:
    """Of a tensor whose view is another argument, torch.export does not know them."""
    k = half(1, 8, 4096, 128)
    imported = mf.from_torch(lambda q, k, v: F.softmax(q @ k, -1) @ v, (half(1, 8, 4, 128), k.transpose(-1, -2), k))
    assert imported.graph is not None, imported.report()
    assert len(imported.regions[0].inputs) == 3


def test_a_product_of_float32_is_searched_by_itself() -> None:
    """Kernels multiply float32 on tensor cores, libraries without: it is faster where arithmetic takes the time."""
    module, x = nn.Linear(512, 1024, bias=False), torch.randn(1024, 512)
    optimized = mf.optimize(module, (x,), time_limit=600)
    (region,) = optimized.mirage_report().regions
    assert region.kept == ""
    assert region.kernels == 1
    assert region.estimate_us is not None
    assert region.estimate_us < region.unfused_us
    torch.testing.assert_close(optimized(x), module(x))

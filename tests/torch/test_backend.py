"""The backend of torch.compile: regions by operators, the rest and every graph without a gain by another one."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from mirage_formal.torch.modules import backend  # noqa: E402
from mirage_formal.torch.modules.inductor import can_compile  # noqa: E402
from mirage_formal.torch.modules.module_report import ModuleReport, RegionReport  # noqa: E402
from tests.kit.paths import REPOSITORY  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn


class Model(nn.Module):  # type: ignore[misc,name-defined]  # torch has no types where it is not installed
    """A layer with an operator that no program has, and one with a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x: Any) -> Any:
        """The layer."""
        y = torch.cumsum(self.first(self.norm(x)), -1)
        return self.second(torch.relu(y) * 2)


def options(place: Path, **more: Any) -> dict[str, Any]:
    return {"rest": "eager", "workers": 1, "time_limit": 600, "out": place, **more}


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["mirage_formal"].partition(":")
    assert getattr(import_module(module), name) is backend.mirage_formal


def test_a_model_with_an_operator_that_no_program_has(tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 32, requires_grad=True)
    compiled = torch.compile(model, backend=backend.mirage_formal, options=options(tmp_path), fullgraph=True)
    found, wanted = compiled(x), model(x)
    report = backend.REPORTS[-1]
    assert isinstance(report, ModuleReport)
    assert [item.operator for item in report.left] == ["aten.cumsum.default"]
    assert any(region.kept == "" for region in report.regions)
    close(found, wanted)
    given = [x, *model.parameters()]
    close(torch.autograd.grad(found.square().sum(), given), torch.autograd.grad(wanted.square().sum(), given))


@pytest.mark.slow
def test_the_rest_by_inductor(tmp_path: Path) -> None:
    if not can_compile([torch.zeros(1)]):
        pytest.skip("no compiler of C++")
    torch._dynamo.reset()
    model, x = Model(), torch.randn(4, 32, requires_grad=True)
    given = options(tmp_path, rest="inductor")
    compiled = torch.compile(model, backend=backend.mirage_formal, options=given, fullgraph=True)
    found, wanted = compiled(x), model(x)
    close(found, wanted)
    leaves = [x, *model.parameters()]
    close(torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(wanted.sum(), leaves))


def stops(x: Any, w: Any) -> Any:
    with torch.no_grad():
        y = torch.relu(x @ w) @ w
    return y @ w + x


def test_a_gradient_that_the_graph_stops_stays_stopped(tmp_path: Path) -> None:
    torch._dynamo.reset()
    x, w = torch.randn(16, 32), torch.randn(32, 32, requires_grad=True)
    compiled = torch.compile(stops, backend=backend.mirage_formal, options=options(tmp_path))
    close(torch.autograd.grad(compiled(x, w).sum(), [w]), torch.autograd.grad(stops(x, w).sum(), [w]))


def test_writes_reach_the_arguments(tmp_path: Path) -> None:
    torch._dynamo.reset()

    def write(x: Any, w: Any, cache: Any) -> Any:
        y = torch.relu(x @ w) @ w
        cache.add_(y)
        return torch.cumsum(y, 0)

    torch.manual_seed(0)
    # Weights that keep results near 1, where the tolerance is that of rounding: sums that cancel are off by more.
    x, w, cache = torch.randn(16, 32), torch.randn(32, 32) / 16, torch.ones(16, 32)
    compiled = torch.compile(write, backend=backend.mirage_formal, options=options(tmp_path), fullgraph=True)
    mine = cache.clone()
    close(compiled(x, w, mine), write(x, w, cache))
    close(mine, cache)


def test_mistakes_are_said() -> None:
    module = torch.fx.symbolic_trace(nn.Linear(4, 4))
    with pytest.raises(mf.SpaceError, match="inductor or eager"):
        backend.mirage_formal(module, [torch.zeros(1, 4)], options={"rest": "fast"})
    with pytest.raises(mf.UnsupportedError, match="no option is called speed"):
        backend.mirage_formal(module, [torch.zeros(1, 4)], options={"speed": 1})


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        ({}, None),
        ({"mode": "reduce-overhead"}, None),
        ({"mode": 3}, None),
        ({"mode": "max-autotune"}, None),
        ({"mode": "max-autotune", "accept_kernels": "tested"}, "auto"),
        ({"mode": "max-autotune-no-cudagraphs", "accept_kernels": "tested"}, "auto"),
        ({"mode": "max-autotune", "accept_kernels": "tested", "backend": "cuda"}, "cuda"),
        ({"backend": "triton"}, "triton"),
    ],
)
def test_a_mode_that_asks_for_what_is_fastest_has_triton_files_timed(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], runs: str | None
) -> None:
    asked: list[Any] = []

    def chosen(found: Any, options: Any, **others: Any) -> Any:
        asked.append(options.get("backend"))
        return {}, ModuleReport((), (), ())

    monkeypatch.setattr(backend, "choose_operators", chosen)
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    backend.mirage_formal(module, [torch.zeros(1, 4)], options={"rest": "eager", **given})
    assert asked == [runs]


def test_a_report_says_what_is_not_proved_to_be_safe() -> None:
    row = RegionReport((0,), "d", ("add",), 2.0, candidate="c", kernels=1, verdict="equivalent", estimate_us=1.0)
    assert "tested, not proved" not in str(row)
    assert "tested, not proved" in str(replace(row, backend="triton"))


def test_a_report_says_whether_installed_kernels_are_proved() -> None:
    row = RegionReport((0,), "d", ("add",), 2.0, candidate="c", kernels=1, verdict="equivalent", estimate_us=1.0)
    assert "kernels: built at the first call on a GPU, only those that are proved to compute their µGraph" in str(row)
    assert "kernels: built at the first call on a GPU, tested ones too" in str(replace(row, tested_accepted=True))
    assert "  kernels: tested only: k is tested" in str(replace(row, claim="tested only: k is tested"))
    assert "kernels: " not in str(replace(row, estimate_us=None, kept="no candidate"))


def test_mistakes_in_what_kernels_are_accepted_are_said_without_a_search() -> None:
    module = torch.fx.symbolic_trace(nn.ReLU())
    with pytest.raises(mf.SpaceError, match="accept_kernels: expected one of proved, tested, got 'testd'"):
        backend.mirage_formal(module, [torch.zeros(1, 4)], options={"accept_kernels": "testd"})
    with pytest.raises(mf.SpaceError, match="accept_kernels: expected one of proved, tested, got 'testd'"):
        mf.optimize(nn.ReLU(), (torch.zeros(1, 4),), accept_kernels="testd")
    with pytest.raises(mf.SpaceError, match="backend: expected cuda or auto where only proved kernels are accepted"):
        mf.optimize(nn.ReLU(), (torch.zeros(1, 4),), backend="triton")


def test_it_is_found_by_its_name(tmp_path: Path) -> None:
    """Through the entry point of the installed package, an editable one too."""
    torch._dynamo.reset()
    assert "mirage_formal" in torch._dynamo.list_backends()
    model, x = nn.Sequential(nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 48)), torch.randn(4, 32)
    compiled = torch.compile(model, backend="mirage_formal", options=options(tmp_path), fullgraph=True)
    close(compiled(x), model(x))
    report = backend.REPORTS[-1]
    assert isinstance(report, ModuleReport)
    assert [region.kept for region in report.regions] == [""]


def test_a_region_of_two_graphs_has_two_directories(tmp_path: Path) -> None:
    """Its share of the time is another in another graph, so that it may be searched again."""
    torch._dynamo.reset()
    x, weight = torch.randn(4, 32), torch.randn(32, 32)
    given = options(tmp_path, cache=False)

    def product(x: Any) -> Any:
        return torch.relu(x @ weight) * 2

    def twice(x: Any) -> Any:
        return product(x), torch.cumsum(x, -1)

    with torch.no_grad():
        for function in (product, twice):
            run = torch.compile(function, backend=backend.mirage_formal, options=given, fullgraph=True)
            torch.testing.assert_close(run(x), function(x))
    first, second = sorted(path.name for path in tmp_path.iterdir())
    assert second == f"{first}-2"

"""Optimized modules: equal to the module, in calls that the import holds for and in all others."""

from __future__ import annotations

import copy
import io
import pickle
import re
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch.nn.functional as F  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.run.result_cache.loading import load  # noqa: E402
from mirage_formal.torch import deadline  # noqa: E402
from mirage_formal.torch.comparison.import_comparison import compare_with_torch  # noqa: E402
from mirage_formal.torch.modules import optimize  # noqa: E402
from mirage_formal.torch.modules.custom_operators import torch_operator  # noqa: E402
from mirage_formal.torch.modules.optimize import FallbackWarning  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn


class Mlp(nn.Module):  # type: ignore[misc,name-defined]  # torch has no types where it is not installed
    """A gated feed-forward layer."""

    def __init__(self, hidden: int = 32, inner: int = 64) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        """The layer."""
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Attention(nn.Module):  # type: ignore[misc,name-defined]
    """Attention with grouped heads, which returns a structure and writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.k, self.v = nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)
        self.register_buffer("cache", torch.zeros(8, 32), persistent=False)

    def forward(self, x: Any, *, scale: float, place: Any) -> dict[str, Any]:
        """The layer."""
        self.cache.index_copy_(0, place, x[0, :1])
        q, k, v = (f(x).view(1, 8, -1, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=scale)
        y = self.o(y.transpose(1, 2).reshape(1, 8, 32))
        return {"y": y, "nothing": None, "sums": (torch.cumsum(y, 1), self.cache)}


def options(place: Path) -> dict[str, Any]:
    return {"workers": 1, "time_limit": 600, "out": place}


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same numbers whichever tests run before."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A module and the optimized one; tests change neither."""
    torch.manual_seed(0)
    module = Mlp()
    return module, mf.optimize(module, (torch.randn(1, 4, 32),), **options(tmp_path_factory.mktemp("mlp")))


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The same of a block of attention."""
    torch.manual_seed(0)
    module = Attention()
    given = {"scale": 0.25, "place": torch.tensor([2])}
    return module, mf.optimize(module, (torch.randn(1, 8, 32),), given, **options(tmp_path_factory.mktemp("attention")))


def fresh(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """A copy of both, which share their state as the given ones do."""
    optimized = copy.deepcopy(pair[1])
    module = object.__new__(type(pair[0]))
    vars(module).update({k: v for k, v in vars(optimized).items() if not k.startswith("_mirage")})
    return module, optimized


def silent(module: Any, *args: Any, **kwargs: Any) -> Any:
    """A call for which the import holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        return module(*args, **kwargs)


def test_operators_whose_kernels_may_be_tested_only_are_others(
    mlp: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option reaches the kernels, and the report says of installed ones whether they are proved."""
    (region,) = mlp[1].mirage_report().regions
    assert (region.claim, region.tested_accepted) == ("", False)
    one = load(region.evidence, target="h200")[0]
    tested = load(region.evidence, target="h200", accept_kernels="tested")[0]
    names = [torch_operator(found).name for found in (one, tested)]
    assert [name[0] for name in names] == ["c", "u"]
    assert names[0][1:] == names[1][1:]
    # What a GPU's machine does before it makes the operator: kernels are built there.
    assert tested.alternatives is not None
    tested.alternatives.built()
    assert tested.claim() == "proved to compute their µGraph"


def test_a_gated_mlp_is_one_operator_and_equal(mlp: tuple[Any, Any]) -> None:
    module, optimized = mlp
    for _ in range(3):
        x = torch.randn(1, 4, 32)
        close(silent(optimized, x), module(x))
    (region,) = optimized.mirage_report().regions
    assert region.kept == ""
    assert region.verdict == "equivalent"
    assert region.estimate_us < region.unfused_us
    assert region.kernels < 6
    assert region.evidence.is_dir()
    assert "torch.ops.mirage_formal.c" in optimized._mirage_plan.source
    assert "linear" not in optimized._mirage_plan.source


def test_attention_with_a_structure_and_a_cache(attention: tuple[Any, Any]) -> None:
    module, optimized = fresh(attention)
    x, place = torch.randn(1, 8, 32), torch.tensor([3])
    wanted = module(x, scale=0.25, place=place)
    module.cache.zero_()
    found = silent(optimized, x, scale=0.25, place=place)
    assert found.keys() == wanted.keys()
    assert found["nothing"] is None
    close(found["y"], wanted["y"])
    close(found["sums"][0], wanted["sums"][0])
    assert module.cache is optimized.cache
    assert torch.equal(module.cache[3], x[0, 0])
    assert "index_copy_." in optimized._mirage_plan.source  # written where it is


def test_the_report_names_what_is_left_and_where(attention: tuple[Any, Any]) -> None:
    report = attention[1].mirage_report()
    left = {item.operator: item for item in report.left}
    assert set(left) >= {"aten.cumsum.default", "aten.index_copy.default"}
    assert left["aten.cumsum.default"].where.path == __file__
    assert f"{Path(__file__).name}:" in str(report) or __file__ in str(report)
    assert "cumsum" in str(report)


def test_other_numbers_are_computed_by_the_module(attention: tuple[Any, Any]) -> None:
    module, optimized = fresh(attention)
    x, place = torch.randn(1, 8, 32), torch.tensor([3])
    with pytest.warns(FallbackWarning, match=r"expected 0\.25"):
        found = optimized(x, scale=0.5, place=place)
    close(found["y"], module(x, scale=0.5, place=place)["y"])


def test_it_is_what_the_module_is(mlp: tuple[Any, Any]) -> None:
    module, optimized = mlp
    assert isinstance(optimized, Mlp)
    assert list(optimized.state_dict()) == list(module.state_dict())
    assert [id(p) for p in optimized.parameters()] == [id(p) for p in module.parameters()]
    assert [name for name, _ in optimized.named_modules()] == [name for name, _ in module.named_modules()]


def test_parameters_are_read_at_each_call(mlp: tuple[Any, Any]) -> None:
    module, optimized = fresh(mlp)
    x = torch.randn(1, 4, 32)
    before = optimized(x)
    optimized.load_state_dict({name: 1.5 * value for name, value in module.state_dict().items()})
    close(silent(optimized, x), module(x))
    assert not torch.allclose(optimized(x), before)
    optimized.load_state_dict({n: v.clone() for n, v in Mlp().state_dict().items()}, assign=True)
    close(silent(optimized, x), module(x))


@pytest.mark.parametrize("case", ["shape", "type", "strides", "structure", "training", "hook", "part", "autocast"])
def test_other_calls_are_computed_by_the_module_and_said_once(mlp: tuple[Any, Any], case: str) -> None:
    module, optimized = fresh(mlp)
    x, kwargs, autocast = torch.randn(1, 4, 32), {}, False
    match case:
        case "shape":
            x = torch.randn(2, 3, 32)
        case "type":
            x, _ = x.double(), optimized.to(torch.float64)
        case "strides":
            x = torch.randn(1, 32, 4).transpose(1, 2)
        case "structure":
            kwargs = {"x": x}
        case "training":
            optimized.eval()
        case "hook":
            optimized.gate.register_forward_hook(lambda *_: torch.zeros(1, 4, 64))
        case "part":
            optimized.gate = nn.Sequential(nn.Linear(32, 64), nn.Tanh())
        case _:
            autocast = True
    args = () if kwargs else (x,)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        with pytest.warns(FallbackWarning) as said:
            found = [optimized(*args, **kwargs) for _ in range(3)]
        assert len([item for item in said if item.category is FallbackWarning]) == 1
        wanted = module(*args, **kwargs)
    assert found[0].dtype is wanted.dtype
    assert torch.equal(found[0], wanted)


def test_gradients_are_those_of_the_module(mlp: tuple[Any, Any]) -> None:
    module, optimized = fresh(mlp)
    x = torch.randn(1, 4, 32, requires_grad=True)
    wanted = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    found = torch.autograd.grad(silent(optimized, x).square().sum(), [x, *optimized.parameters()])
    close(found, wanted)
    step = torch.optim.SGD(optimized.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        step.zero_grad()
        loss = silent(optimized, x).square().mean()
        loss.backward()
        step.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[1] < losses[0]


def stops(x: Any, w: Any) -> Any:
    return torch.relu(x @ w).detach() @ w + x


def test_a_gradient_that_the_module_stops_stays_stopped(tmp_path: Path) -> None:
    x, w = torch.randn(16, 32), torch.randn(32, 32)
    optimized = mf.optimize(stops, (x, w), **options(tmp_path / "run"))
    close(silent(optimized, x, w), stops(x, w))
    w.requires_grad_()
    with pytest.warns(FallbackWarning, match="gradients"):
        (found,) = torch.autograd.grad(optimized(x, w).sum(), [w])
    assert torch.equal(found, torch.autograd.grad(stops(x, w).sum(), [w])[0])
    with torch.no_grad():
        close(optimized(x, w), stops(x, w))


NAMED = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()


def reads_a_name(x: Any) -> Any:
    return torch.relu(x @ NAMED) @ NAMED


def test_a_tensor_that_is_read_by_its_name_keeps_its_gradient(tmp_path: Path) -> None:
    x = torch.randn(16, 32)
    optimized = mf.optimize(reads_a_name, (x,), **options(tmp_path))
    assert optimized.mirage_report().regions[0].kept == ""
    (found,) = torch.autograd.grad(silent(optimized, x).square().mean(), [NAMED])
    close(found, torch.autograd.grad(reads_a_name(x).square().mean(), [NAMED])[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parameters_without_gradients(mlp: tuple[Any, Any], mode: Any) -> None:
    module, optimized = mlp
    with mode():
        x = torch.randn(1, 4, 32)
        close(silent(optimized, x), module(x))


class Marked(torch.Tensor):  # type: ignore[misc]
    """A subclass that changes nothing."""


@pytest.mark.parametrize("case", ["offset", "expanded", "empty", "two-dimensional", "device", "subclass"])
def test_tensors_of_all_kinds_are_right_or_refused(mlp: tuple[Any, Any], case: str) -> None:
    """Where the module itself refuses a tensor, the optimized one refuses it in the same words."""
    module, optimized = mlp
    x = torch.randn(1, 4, 32)
    match case:
        case "offset":
            given = torch.randn(161)[33:].view(1, 4, 32)
        case "expanded":
            given = x[:, :1].expand(1, 4, 32)
        case "empty":
            given = x[:0]
        case "two-dimensional":
            given = x[0]
        case "device":
            given = x.to("meta")
        case _:
            given = x.as_subclass(Marked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        try:
            wanted = module(given)
        except RuntimeError as error:
            with pytest.raises(type(error), match=re.escape(str(error).splitlines()[0][:40])):
                optimized(given)
            return
        found = optimized(given)
    assert found.shape == wanted.shape
    assert type(found) is type(wanted)
    if case != "device":
        close(found, wanted)


def test_copies_and_files(mlp: tuple[Any, Any], attention: tuple[Any, Any]) -> None:
    module, optimized = mlp
    x = torch.randn(1, 4, 32)
    copied = copy.deepcopy(optimized)
    with torch.no_grad():
        copied.down.weight.zero_()
    assert torch.equal(silent(copied, x), x)
    close(silent(optimized, x), module(x))
    close(silent(pickle.loads(pickle.dumps(optimized)), x), module(x))
    file = io.BytesIO()
    torch.save(attention[1], file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    y, given = torch.randn(1, 8, 32), {"scale": 0.25, "place": torch.tensor([1])}
    close(silent(loaded, y, **given)["y"], attention[0](y, **given)["y"])
    assert str(loaded.mirage_report()) == str(attention[1].mirage_report())


def test_hooks_of_the_module_itself_are_called(mlp: tuple[Any, Any]) -> None:
    module, optimized = fresh(mlp)
    x = torch.randn(1, 4, 32)
    wanted = 2 * module(x)
    optimized.register_forward_hook(lambda _, args, result: 2 * result)
    close(silent(optimized, x), wanted)


def test_compile_and_export(mlp: tuple[Any, Any]) -> None:
    module, optimized = fresh(mlp)
    x = torch.randn(1, 4, 32)
    torch._dynamo.reset()
    compiled = torch.compile(optimized, fullgraph=True, backend="aot_eager")
    close(compiled(x), module(x))
    y = x.clone().requires_grad_()
    found = torch.autograd.grad(compiled(y).sum(), [y, *module.parameters()])
    close(found, torch.autograd.grad(module(y).sum(), [y, *module.parameters()]))
    exported = torch.export.export(optimized, (x,))
    assert any("mirage_formal" in str(node.target) for node in exported.graph.nodes)
    close(exported.module()(x), module(x))


def test_one_operator_stays_with_torch_without_a_search() -> None:
    module, x = nn.Linear(16, 8, bias=False).half(), torch.randn(4, 16).half()
    optimized = mf.optimize(module, (x,), time_limit=600)
    (region,) = optimized.mirage_report().regions
    assert region.kept == "it is one operator"
    assert optimized._mirage_plan is None
    assert torch.equal(silent(optimized, x[:3]), F.linear(x[:3], optimized.weight))


class Tied(nn.Module):  # type: ignore[misc,name-defined]
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        """The layers."""
        return self.b(torch.relu(self.a(x)) * 2) + x


def test_a_tied_weight_that_is_untied(tmp_path: Path) -> None:
    module, x = Tied(), torch.randn(4, 32)
    optimized = mf.optimize(module, (x,), **options(tmp_path))
    assert optimized.mirage_report().regions[0].kept == ""
    close(silent(optimized, x), module(x))
    close(silent(copy.deepcopy(optimized), x), module(x))
    module.b.weight = nn.Parameter(torch.randn(32, 32))
    with pytest.warns(FallbackWarning, match=r"b\.weight: it was tied"):
        assert torch.equal(optimized(x), module(x))


def writing(x: Any, w: Any, cache: Any) -> Any:
    y = torch.relu(x @ w) @ w
    cache.add_(y)
    return y * x


def test_memory_that_is_written_and_read_is_left_to_the_module(tmp_path: Path) -> None:
    x, w = torch.randn(16, 32), torch.randn(32, 32)
    optimized = mf.optimize(writing, (x, w, torch.ones(16, 32)), **options(tmp_path))
    mine, theirs = torch.ones(16, 32), torch.ones(16, 32)
    close(silent(optimized, x, w, mine), writing(x, w, theirs))
    close(mine, theirs)
    mine, theirs = x.clone(), x.clone()
    with pytest.warns(FallbackWarning, match="under another name"):
        found = optimized(mine, w, mine)
    assert torch.equal(found, writing(theirs, w, theirs))
    assert torch.equal(mine, theirs)


def left_over(x: Any) -> Any:
    y = torch.cumsum(x, 0)
    return torch.relu(y) * 2


def test_functions_have_lines_too() -> None:
    optimized = mf.optimize(left_over, (torch.randn(4, 8),), time_limit=600)
    (left,) = optimized.mirage_report().left
    assert (left.where.path, left.where.line) == (__file__, left_over.__code__.co_firstlineno + 1)


def test_what_a_library_calls_has_its_line() -> None:
    optimized = mf.optimize(nn.Sequential(nn.Embedding(8, 4), nn.ReLU()), (torch.tensor([1, 2]),), time_limit=600)
    (left,) = optimized.mirage_report().left
    assert left.operator == "aten.embedding.default"
    assert left.where.path.endswith("sparse.py")


class Twice(nn.Module):  # type: ignore[misc,name-defined]
    """Two layers of one shape, apart by what stays with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 32)) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        """The layers."""
        for layer in self.layers:
            x = torch.cumsum(layer(x), 0)
        return x


def test_equal_regions_are_searched_once(tmp_path: Path) -> None:
    module, x = Twice(), torch.randn(4, 32)
    optimized = mf.optimize(module, (x,), **options(tmp_path))
    (region,) = optimized.mirage_report().regions
    assert region.numbers == (0, 1)
    assert len(list(tmp_path.iterdir())) == 1
    assert len(optimized._mirage_plan.operators) == 1
    assert optimized._mirage_plan.source.count("torch.ops.mirage_formal.c") == 2
    close(silent(optimized, x), module(x))


def test_no_time_is_no_search(tmp_path: Path) -> None:
    optimized = mf.optimize(Mlp(), (torch.randn(1, 4, 32),), time_limit=0.5, out=tmp_path)
    report = optimized.mirage_report()
    # On a slow machine the comparison with PyTorch, or the import, has no time either.
    for why in [region.kept for region in report.regions] or [report.stopped]:
        assert why.startswith("stopped by time_limit before ")


def test_mistakes_are_said() -> None:
    x = torch.randn(4, 16)
    with pytest.raises(mf.UnsupportedError, match="no option is called speed"):
        mf.optimize(nn.Linear(16, 8), (x,), speed=3)
    with pytest.raises(mf.UnsupportedError, match=r"did you mean mode.*continue_in_background"):
        mf.optimize(nn.Linear(16, 8), (x,), modes="max-autotune")
    for limit in (-1, "5", True):
        with pytest.raises(mf.SpaceError, match="above 0"):
            mf.optimize(nn.Linear(16, 8), (x,), time_limit=limit)
    with pytest.raises(mf.UnsupportedError, match="as a tuple"):
        mf.optimize(nn.Linear(16, 8), x)
    with pytest.raises(mf.UnsupportedError, match="got int"):
        mf.optimize(3, (x,))
    hooked = nn.Sequential(nn.Linear(16, 8))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(mf.UnsupportedError, match="hooks"):
        mf.optimize(hooked, (x,))


def test_what_the_users_code_raises_keeps_its_traceback() -> None:
    class Faulty(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            raise KeyError(f"no weights for {x.shape[-1]} features")

    with pytest.raises(KeyError, match="no weights for 8 features") as raised:
        mf.optimize(Faulty(), (torch.randn(4, 8),))
    assert Path(str(raised.traceback[-1].path)).name == "test_optimize.py"


def test_time_counts_from_the_start_of_the_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An import that uses the time limit up leaves none for a search."""
    later: list[float] = []
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(later)))

    def compare_late(*given: Any, **named: Any) -> Any:
        found = compare_with_torch(*given, **named)
        later.append(50.0)
        return found

    monkeypatch.setattr(optimize, "compare_with_torch", compare_late)
    found = mf.optimize(Mlp(), (torch.randn(1, 4, 32),), time_limit=50, out=tmp_path)
    assert {region.kept for region in found.mirage_report().regions} == {"stopped by time_limit before its search"}

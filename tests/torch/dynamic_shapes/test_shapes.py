"""Modules optimized for lengths in buckets: a search for each, equal at every length, and outside the module itself."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")

import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.codegen.target import load_target  # noqa: E402
from mirage_formal.emulate.runner import EmulatedExecutable  # noqa: E402
from mirage_formal.kernel_build.build import build  # noqa: E402
from mirage_formal.torch.modules import region_search  # noqa: E402
from mirage_formal.torch.modules.optimize import FallbackWarning  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn


class Decode(nn.Module):  # type: ignore[misc,name-defined]  # torch has no types where it is not installed
    """Attention of one token over keys and values of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(16, 16, bias=False)

    def forward(self, x: Any, k: Any, v: Any) -> Any:
        """The layer."""
        q = self.q(x).view(1, 1, 2, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 1, 16)


def arguments(length: int) -> tuple[Any, ...]:
    return torch.randn(1, 1, 16), torch.randn(1, 2, length, 8), torch.randn(1, 2, length, 8)


def options(place: Path) -> dict[str, Any]:
    return {"workers": 1, "time_limit": 400, "out": place, "cache": False}


def silent(module: Any, *args: Any) -> Any:
    """A call that a bucket has."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        return module(*args)


@pytest.fixture(scope="module")
def searches() -> Iterator[list[str]]:
    """The programs that are searched, from here on."""
    found: list[str] = []
    real = vars(region_search)["search_into_store"]

    def counted(graph: Any, given: Any) -> Any:
        found.append(str(given["out"]))
        return real(graph, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_search, "search_into_store", counted)
        yield found


@pytest.fixture(scope="module")
def decode(searches: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, list[str]]:
    """A module, the optimized one for lengths of 1 to 30, and what was searched for it."""
    torch.manual_seed(0)
    module, before = Decode(), len(searches)
    place = tmp_path_factory.mktemp("decode")
    found = mf.optimize(module, arguments(7), shapes={"k": {2: (1, 30, 16)}}, **options(place))
    return module, found, searches[before:]


def test_every_length_of_the_buckets(decode: tuple[Any, Any, list[str]], searches: list[str]) -> None:
    module, optimized, searched = decode
    assert len(searched) == 2
    before = len(searches)
    for length in range(1, 31):
        given = arguments(length)
        torch.testing.assert_close(silent(optimized, *given), module(*given), rtol=1e-5, atol=1e-6)
    assert len(searches) == before
    assert "scaled_dot_product" not in optimized._mirage_plan.source


@pytest.mark.slow
def test_a_loop_of_4096_tokens(searches: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, before = Decode(), len(searches)
    optimized = mf.optimize(module, arguments(7), shapes={"k": {2: (1, 4096, 1024)}}, **options(tmp_path))
    assert len(searches) - before == 4
    torch._dynamo.utils.counters.clear()
    cache = torch.randn(2, 1, 2, 4096, 8)
    with torch.no_grad():
        for length in range(1, 4097):
            given = torch.randn(1, 1, 16), *(x[:, :, :length].contiguous() for x in cache)
            found = silent(optimized, *given)
            if length % 64 < 2:
                torch.testing.assert_close(found, module(*given), rtol=1e-4, atol=1e-5)
    assert len(searches) - before == 4
    assert not torch._dynamo.utils.counters["stats"]


def test_the_report_has_each_bucket(decode: tuple[Any, Any, list[str]]) -> None:
    report = decode[1].mirage_report()
    assert [bucket.lengths for bucket in report.buckets] == [(16,), (30,)]
    for bucket in report.buckets:
        assert [region.verdict for region in bucket.report.regions] == ["equivalent"]
        assert [region.kept for region in bucket.report.regions] == [""]
    assert "lengths up to 30" in str(report)


def test_no_copy_of_what_fills_its_bucket(decode: tuple[Any, Any, list[str]]) -> None:
    from mirage_formal.torch.dynamic_shapes.bucket_operators import continue_padding

    (operator,) = decode[1]._mirage_plan.operators
    form = next(form for form in operator.call.forms if form.strides is None)
    (length,) = operator.call.lengths
    full = torch.randn(1, 2, 16, 8)
    assert continue_padding(full, form, {length: 16}, {length: 16}) is full
    made = continue_padding(full[:, :, :11].contiguous(), form, {length: 11}, {length: 16})
    assert torch.equal(made[:, :, :11], full[:, :, :11])
    assert torch.equal(made[:, :, 11:], full[:, :, 10:11].expand(1, 2, 5, 8))


def test_other_lengths_are_computed_by_the_module_and_said_once(decode: tuple[Any, Any, list[str]]) -> None:
    module, optimized = copy.deepcopy(decode[:2])
    outside = [arguments(length) for length in (31, 40, 31)]
    with pytest.warns(FallbackWarning, match="outside of the buckets") as said:
        found = [optimized(*given) for given in outside]
    assert all(torch.equal(mine, module(*given)) for mine, given in zip(found, outside, strict=True))
    assert len([item for item in said if item.category is FallbackWarning]) == 1
    given = arguments(8)
    with pytest.warns(FallbackWarning, match="expected extent 8 of dim 2"):
        copy.deepcopy(decode[1])(given[0], given[1], arguments(9)[2])


def test_copies_gradients_and_compilation(decode: tuple[Any, Any, list[str]]) -> None:
    module, optimized, _ = decode
    loaded = pickle.loads(pickle.dumps(optimized))
    given = arguments(9)
    torch.testing.assert_close(silent(loaded, *given), module(*given), rtol=1e-5, atol=1e-6)
    given[1].requires_grad_()
    mine, theirs = silent(optimized, *given), module(*given)
    found = torch.autograd.grad(mine.sum(), [given[1], optimized.q.weight])
    wanted = torch.autograd.grad(theirs.sum(), [given[1], module.q.weight])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_buckets_kernels_at_several_lengths(decode: tuple[Any, Any, list[str]]) -> None:
    """On the emulator, beside float64."""
    module, optimized, _ = decode
    (operator,) = optimized._mirage_plan.operators
    entry = operator.entries[16,]
    (candidate,) = entry.operators
    result = candidate.result
    made = build(result.graph, result.optimized.program, load_target("h200"))
    from mirage_formal.torch.dynamic_shapes.bucket_operators import _feed_arguments, continue_padding

    (length,) = operator.call.lengths
    seen = []

    def run(*tensors: Any) -> Any:
        seen.append(len(tensors))
        (found,) = EmulatedExecutable(made)([x.double().numpy() for x in tensors])
        return torch.from_numpy(found).to(torch.float32)

    source = entry.function.source.replace(f"torch.ops.mirage_formal.{candidate.name}.default", "emulated")
    names = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan"), "emulated": run}
    exec(source, names)
    for at in (1, 5, 15, 16):
        x, k, v = arguments(at)
        tensors = dict(zip(("x", "k", "v"), (x, k, v), strict=True))
        order = _order(operator, tensors, module.q.weight.detach())
        padded = [
            continue_padding(t, form, {length: at}, {length: 16})
            for t, form in zip(order, operator.call.forms, strict=True)
        ]
        (found,) = names["forward"](*(_feed_arguments(item, padded, (at,), (16,)) for item in entry.feed))
        wanted = copy.deepcopy(module).double()(x.double(), k.double(), v.double()).detach()
        np.testing.assert_allclose(found.detach().numpy().ravel(), wanted.numpy().ravel(), rtol=1e-4, atol=1e-5)
    assert len(seen) == 4


def _order(operator: Any, tensors: dict[str, Any], weight: Any) -> list[Any]:
    """The operator's inputs in its order, which the extents say."""
    keys = iter([tensors["k"], tensors["v"]])
    shapes = {(1, 1, 16): tensors["x"], (16, 16): weight}
    return [next(keys) if form.strides is None else shapes[form.extents] for form in operator.call.forms]


class Names(nn.Module):  # type: ignore[misc,name-defined]
    """A module with a fixed weight along a dim."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Any, y: Any) -> Any:
        """Of x along its fixed dim, and of y."""
        return (x * self.weight).sum(), y


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"z": {0: (1, 8, 4)}}, "expected an argument that is a tensor, got 'z'"),
        ({2: {0: (1, 8, 4)}}, "expected an argument that is a tensor, got 2"),
        ({"y": {2: (1, 8, 4)}}, r"expected a dim of \[7, 4\], got 2"),
        ({"y": {0: (8, 1, 4)}}, "expected 1 <= lowest <= highest"),
        ({"y": {0: 5}}, r"expected \(lowest, highest, step\), got 5"),
        ({"y": (1, 8, 4)}, "expected buckets by the numbers of dims"),
        ({"x": {0: (1, 8, 4)}}, "expected an extent that may vary, but the module needs 6"),
        ({}, "expected shapes as a dict"),
    ],
)
def test_mistakes_are_said(shapes: Any, said: str) -> None:
    with pytest.raises(mf.ShapeError, match=said):
        mf.optimize(Names(), (torch.randn(6, 4), torch.randn(7, 4)), shapes=shapes)


def asking(y: Any) -> Any:
    """Something else at one length."""
    return torch.relu(y) * 2 if y.shape[0] == 5 else torch.tanh(y) + 1


def test_a_length_at_which_the_module_does_something_else(tmp_path: Path) -> None:
    optimized = mf.optimize(asking, (torch.randn(7, 4),), shapes={0: {0: (1, 8, 8)}}, **options(tmp_path))
    for length in (1, 3, 8):
        y = torch.randn(length, 4)
        torch.testing.assert_close(silent(optimized, y), asking(y), rtol=1e-5, atol=1e-6)
    y = torch.randn(5, 4)
    with pytest.warns(FallbackWarning, match="does something else: 5"):
        assert torch.equal(optimized(y), asking(y))

"""Conditions of regions: reports have them, and with guard=True a call in which one does not hold is the module's."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch.nn.functional as F  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.frontend.origins import unknown_origins  # noqa: E402
from mirage_formal.support.errors import UnsupportedError  # noqa: E402
from mirage_formal.torch.analysis.conditions import ConditionGuard, side_conditions  # noqa: E402
from mirage_formal.torch.modules.optimize import FallbackWarning  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]


def needs(call: Callable[..., Any], *given: Any) -> list[str]:
    (region,) = mf.from_torch(call, given).regions
    return [str(one.need) for one in side_conditions(region.program, unknown_origins(region.program))]


A, B = torch.ones(4, 6), torch.ones(4, 6)

NEEDS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "a quotient": (lambda a, b: torch.exp(a) / b, ["divisor nonzero"]),
    "a root": (lambda a, b: torch.sqrt(a - b), ["radicand nonnegative"]),
    "a reciprocal root": (lambda a, b: torch.rsqrt(a + b), ["radicand nonnegative", "divisor nonzero"]),
    "a logarithm": (lambda a, b: torch.log(a * b), ["argument of log above 0"]),
    "a softmax": (lambda a, b: torch.softmax(a, 1) / (1 + torch.exp(b)), []),
    "roots of what is not negative": (
        lambda a, b: torch.sqrt(a * a + b.square()) + torch.sqrt(b.abs().sum(1, True)),
        [],
    ),
    "a logarithm of what is above 0": (lambda a, b: torch.log(torch.sigmoid(a) * 2 + torch.relu(b)), []),
    "a quotient by what may be 0": (lambda a, b: a / b.abs().sum(1, True), ["divisor nonzero"]),
    "a norm with a summand": (lambda a, b: F.rms_norm(a, (6,), eps=1e-5) * F.layer_norm(b, (6,)), []),
    "a norm of a constant row": (lambda a, b: F.layer_norm(a * b, (6,), eps=0.0), ["divisor nonzero"]),
    "twice the same": (lambda a, b: (torch.exp(a) / b + 1) * (torch.tanh(a) / b), ["divisor nonzero"]),
    "attention with a mask": (
        lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None], attn_mask=A[:, :4] > 0),
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS)
def test_what_programs_need(name: str) -> None:
    call, wanted = NEEDS[name]
    assert sorted(set(needs(call, A, B))) == sorted(set(wanted))


BROKEN: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any], str]] = {
    "a zero": (lambda a, b: torch.exp(a) / b, lambda a, b: b[2, 3].zero_(), "divisor nonzero"),
    "a negative radicand": (
        lambda a, b: torch.sqrt(a - b * 0.5),
        lambda a, b: a[0, 0].fill_(0.0),
        "radicand nonnegative",
    ),
    "a logarithm of 0": (lambda a, b: torch.log(a * b), lambda a, b: a[1, 1].zero_(), "argument of log above 0"),
    "a logarithm of a negative number": (lambda a, b: torch.log(a * b), lambda a, b: a[1, 1].neg_(), "argument of log"),
    "NaN": (lambda a, b: torch.exp(a) / b, lambda a, b: b[3, 0].fill_(torch.nan), "divisor nonzero"),
    "a row of zeros": (lambda a, b: a / b.abs().sum(1, True), lambda a, b: b[1].zero_(), "divisor nonzero"),
    "a constant row": (
        lambda a, b: F.layer_norm(a * b, (6,), eps=0.0),
        lambda a, b: (a[2].fill_(2.0), b[2].fill_(1.0)),
        "divisor nonzero",
    ),
}  # fmt: skip


def drawn(dtype: Any = torch.float32) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.rand(4, 6).to(dtype) + 1, torch.rand(4, 6).to(dtype) + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_hold_is_seen(name: str, dtype: str) -> None:
    call, spoil, text = BROKEN[name]
    given = drawn(getattr(torch, dtype))
    (region,) = mf.from_torch(call, given).regions
    guard, names = ConditionGuard(region.program), [item.node for item in region.inputs]
    order = [int(name[-1]) for name in names]
    assert guard.unmet([given[i].view(region.program.inputs[k].tensor.shape) for k, i in enumerate(order)]) == ""
    spoil(*given)
    found = guard.unmet([given[i].view(region.program.inputs[k].tensor.shape) for k, i in enumerate(order)])
    assert text in found


class Scaled(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """Divides by a sum that may be 0, takes a logarithm, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.rand(6, 6) + 0.5)

    def forward(self, x: Any, y: Any) -> Any:
        """The quotient and the logarithm."""
        self.calls.add_(1)
        z = torch.exp(x) @ self.weight
        return torch.log(z * y + 1) / (y.sum(1, keepdim=True)) + z


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = Scaled()
    place = tmp_path_factory.mktemp("guarded")
    return module, mf.optimize(module, drawn(), guard=True, workers=1, time_limit=600, out=place)


def test_a_report_has_the_conditions_and_their_lines(made: tuple[Any, Any]) -> None:
    report = made[1].mirage_report()
    (region,) = [one for one in report.regions if not one.kept]
    assert region.guarded
    assert sorted(text.partition(",")[0] for text in region.conditions) == [
        "argument of log above 0",
        "divisor nonzero",
    ]
    assert all(f"{Path(__file__).name}:" in text for text in region.conditions)
    assert "proved where these hold, looked at in each call:" in str(report)


def test_a_call_in_which_one_does_not_hold_is_the_modules(made: tuple[Any, Any]) -> None:
    module, optimized = copy.deepcopy(made[0]), copy.deepcopy(made[1])
    module.calls.zero_()
    optimized.calls.zero_()
    x, y = drawn()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.testing.assert_close(optimized(x, y), module(x, y), rtol=1e-4, atol=1e-5)
    y[1] = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
    with pytest.warns(FallbackWarning, match=", got -?[0-9]"):
        found = optimized(x, y)
    assert torch.equal(found.nan_to_num(7.0), module(x, y).nan_to_num(7.0))
    assert torch.equal(optimized.calls, module.calls), "nothing was written before it was seen"
    assert optimized.calls == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)  # said once, and the next calls are the operator's again
        optimized(x, y)
        torch.testing.assert_close(optimized(*drawn()), module(*drawn()), rtol=1e-4, atol=1e-5)


def test_it_can_be_copied_saved_and_compiled(made: tuple[Any, Any]) -> None:
    x, y = drawn()
    again = pickle.loads(pickle.dumps(made[1]))
    torch.testing.assert_close(again(x, y), made[0](x, y), rtol=1e-4, atol=1e-5)
    y[0, 0] = -5.0
    with pytest.warns(FallbackWarning):
        again(x, y)
    compiled = torch.compile(made[1], backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*drawn()), made[0](*drawn()), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_gradients_go_through(made: tuple[Any, Any]) -> None:
    grads = []
    for model in (copy.deepcopy(made[0]), copy.deepcopy(made[1])):
        model(*drawn()).sum().backward()
        grads.append(model.weight.grad)
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_without_a_guard_nothing_is_looked_at(tmp_path: Path) -> None:
    module = Scaled()
    optimized = mf.optimize(module, drawn(), workers=1, time_limit=600, out=tmp_path)
    assert "expect_met" not in optimized._mirage_plan.source
    assert "not looked at in calls:" in str(optimized.mirage_report())
    (region,) = [one for one in optimized.mirage_report().regions if not one.kept]
    assert region.conditions
    assert not region.guarded


def test_with_shapes_it_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="guard or shapes"):
        mf.optimize(Scaled(), drawn(), guard=True, shapes={"x": {0: (1, 4, 2)}})

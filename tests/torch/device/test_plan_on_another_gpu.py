"""A plan for tensors of one GPU holds on another one. Fake tensors have devices that need not be there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from torch._subclasses import FakeTensorMode  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.torch.modules.function_plan import FunctionPlan, TensorForm  # noqa: E402

FAKE = FakeTensorMode()
FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


class Scaled(torch.nn.Module):  # type: ignore[misc]
    """A product and what follows, with a parameter, a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(32, 32))
        self.register_buffer("shift", torch.ones(32))

    def forward(self, x: Any) -> Any:
        return torch.relu(x @ self.weight + self.shift)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> FunctionPlan:
    """A plan as if its module had been on the first GPU at the import."""
    place: Path = tmp_path_factory.mktemp("scaled")
    options: dict[str, Any] = {"workers": 1, "time_limit": 600, "out": place}
    found: FunctionPlan = mf.optimize(Scaled().requires_grad_(False), (torch.randn(4, 32),), **options)._mirage_plan
    return on(found, FIRST)


def on(plan: FunctionPlan, place: Any) -> FunctionPlan:
    """The plan for tensors that are elsewhere."""
    leaves = tuple(x.on(place) if isinstance(x, TensorForm) else x for x in plan.leaves)
    return replace(plan, leaves=leaves, state=tuple(replace(x, form=x.form.on(place)) for x in plan.state))


def called(plan: FunctionPlan, module_on: Any, argument_on: Any) -> tuple[str, list[Any]]:
    """What a plan says to a call; fake tensors, so that devices are only names."""
    with FAKE:
        with torch.device(module_on):
            module = Scaled().requires_grad_(False)
        return plan.inputs(module, (torch.empty(4, 32, device=argument_on),), {})


@pytest.mark.parametrize("place", [FIRST, SECOND], ids=str)
def test_all_of_it_on_one_gpu_is_served_whichever_it_is(plan: FunctionPlan, place: Any) -> None:
    reason, tensors = called(plan, place, place)
    assert not reason
    assert tensors
    assert {x.device for x in tensors} == {place}


@pytest.mark.parametrize(
    ("module_on", "argument_on", "expected"),
    [
        (FIRST, SECOND, r"expected .* on cuda:1, got .* on cuda:0"),
        (SECOND, FIRST, r"expected .* on cuda:0, got .* on cuda:1"),
        ("cpu", SECOND, r"expected .* on cuda:1, got .* on cpu"),
        ("cpu", "cpu", r"argument 1: expected .* on cuda:0, got .* on cpu"),
    ],
)
def test_two_devices_in_one_call_are_not(plan: FunctionPlan, module_on: Any, argument_on: Any, expected: str) -> None:
    reason, tensors = called(plan, module_on, argument_on)
    assert re.search(expected, reason), reason
    assert not tensors


def test_constants_go_along(plan: FunctionPlan) -> None:
    with FAKE:
        constants = (torch.empty(3, device=FIRST), torch.empty(()))
    given = replace(plan, constants=constants)
    _, tensors = called(replace(given, feed=tuple(range(len(plan.state) + 1 + 2))), SECOND, SECOND)
    assert [x.device.type for x in tensors[-2:]] == ["cuda", "cpu"]  # numbers stay where they are
    assert tensors[-2].device == SECOND
    assert [x.device for x in given.constants] == [FIRST, torch.device("cpu")]


def test_what_names_its_gpu_stays_there(plan: FunctionPlan) -> None:
    named = replace(plan, source=f"# torch.arange(4, device='cuda:0')\n{plan.source}")
    assert not called(named, FIRST, FIRST)[0]
    assert "on cuda:0" in called(named, SECOND, SECOND)[0]


def test_a_plan_of_the_cpu_is_of_the_cpu(plan: FunctionPlan) -> None:
    there = on(plan, torch.device("cpu"))
    assert not called(there, "cpu", "cpu")[0]
    assert called(there, SECOND, SECOND)[0]

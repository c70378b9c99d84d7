"""What a call of an optimized module does beside its kernels: nothing that could have been done once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch.nn.functional as F  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.torch.modules.eager_execution import DTYPES  # noqa: E402
from mirage_formal.torch.modules.optimize import FallbackWarning  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]


class Causal(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """Attention to what came before, of heads that lie as a projection has them."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        """The attention."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, tuple[Any, ...]]:
    """An optimized module and arguments of it."""
    torch.manual_seed(0)
    given = tuple(torch.randn(1, 16, 2, 16, dtype=torch.float16) for _ in range(3))
    place = tmp_path_factory.mktemp("causal")
    return mf.optimize(Causal(), given, workers=1, time_limit=600, out=place), given


def test_a_causal_mask_is_no_tensor_of_a_call(causal: tuple[Any, tuple[Any, ...]]) -> None:
    module, given = causal
    plan = module._mirage_plan
    assert plan.constants == ()
    (operator,) = plan.operators
    assert [item.band for item in operator.result.optimized.program.inputs].count(None) == 3
    assert [argument.name for argument in operator.overload._schema.arguments] == ["x0", "x1", "x2"]
    calls = [line.split(" = ", 1)[1].split("(")[0] for line in plan.source.splitlines() if " = " in line]
    views = {"permute", "select", "view", "unsqueeze", "expand"}
    others = [name for name in calls if name.rpartition(".")[2] not in views]
    assert [name.split(".")[:3] for name in others] == [["torch", "ops", "mirage_formal"]], plan.source
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found = module(*given)
    torch.testing.assert_close(found, Causal()(*given), rtol=1e-2, atol=1e-2)


def test_constants_of_the_import_are_what_programs_read() -> None:
    """One mask in two layouts, and one that nothing reads in the end."""

    def call(x: Any, y: Any) -> Any:
        return torch.tril(x) @ torch.tril(x).mT, torch.tril(y), torch.tril(x[:, :1]).to(torch.int32)

    x, y = torch.randn(8, 8, dtype=torch.float16), torch.randn(8, 8)
    imported = mf.from_torch(call, (x, y))
    read = [item for region in imported.regions for item in region.inputs if item.what == "constant"]
    assert read
    for item in read:
        tensor = imported.given[item.node]
        assert tensor.dtype is DTYPES[item.dtype]
        assert item.read(tensor).data_ptr() == tensor.data_ptr()  # no copy
    assert {item.node for item in read} == {n for n, what in imported.arguments.items() if what == "constant"}


class Named(torch.nn.Module):  # type: ignore[misc]
    """A module whose argument has the name that a constant would have."""

    def forward(self, lower_4_4_0: Any, x: Any) -> Any:
        """The lower triangle of one tensor times the other one."""
        return torch.tril(x) @ lower_4_4_0


def test_an_argument_with_the_name_of_such_a_constant() -> None:
    imported = mf.from_torch(Named(), (torch.randn(4, 4), torch.randn(4, 4)))
    kinds = {item.node: item.what for region in imported.regions for item in region.inputs}
    assert kinds["lower_4_4_0"] == "argument 1"
    assert sorted(kinds.values()) == ["argument 1", "argument 2", "constant"]


class Sum(torch.nn.Module):  # type: ignore[misc]
    """A module that takes tensors in whatever structure."""

    def forward(self, *args: Any, scale: Any = None) -> Any:
        """A norm of the first tensor times the last one."""
        flat = [x for x in torch.utils._pytree.tree_leaves((args, scale)) if x is not None]
        return F.rms_norm(flat[0], (16,)) @ flat[-1]


@pytest.mark.parametrize("shape", ["flat", "list", "by name"])
def test_arguments_of_another_structure_are_left_to_the_module(shape: str, tmp_path: Path) -> None:
    """Tensors that lie side by side are taken as they are; no other structure passes for that one."""
    x, w = torch.randn(4, 16), torch.randn(16, 16)
    forms: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "flat": ((x, w), {}),
        "list": (([x, w],), {}),
        "by name": ((x,), {"scale": w}),
    }
    args, kwargs = forms[shape]
    module = mf.optimize(Sum(), args, kwargs, workers=1, time_limit=600, out=tmp_path)
    plan = module._mirage_plan
    wanted = Sum()(*args, **kwargs)
    for name, (others, more) in forms.items():
        reason, tensors = plan.inputs(module, others, more)
        assert reason == ("" if name == shape else "arguments of another structure")
        if name == shape:
            torch.testing.assert_close(plan.run(tensors), wanted, rtol=1e-4, atol=1e-5)
    assert plan.inputs(module, (x, w, w), {})[0]
    assert plan.inputs(module, (x,), {})[0]
    assert plan.inputs(module, (x, 3), {})[0]

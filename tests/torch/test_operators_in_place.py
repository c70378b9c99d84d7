"""Operators in place, which the import sees as functions: they import, and what they compute is what torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.torch.comparison.import_comparison import arguments_of, compare_with_torch  # noqa: E402
from tests.kit.torch.comparison import compare, compare_rewritten  # noqa: E402


def assigned(*where: Any) -> Callable[[Any, Any], Any]:
    """What is in b, written over a part of exp(a)."""

    def call(a: Any, b: Any) -> Any:
        y = torch.exp(a)
        y[where] = b.expand(4, 6)[where] * 2
        return torch.tanh(y)

    return call


def filled(a: Any, b: Any) -> Any:
    y = a * b
    y[:, 2:4] = 0.5
    y[1].fill_(-2.0)
    return y


def masked(a: Any, b: Any) -> Any:
    y = a * b
    y[1:].masked_fill_(b[1:] > 0, 3.0)
    return y


def in_turns(a: Any, b: Any) -> Any:
    """Each write sees those before it."""
    y = torch.zeros_like(a)
    y[0] = a[0]
    y[1:3] += b[1:3]
    y[:, 1] *= 2
    y[2, 3] = 7.0
    y.add_(1)
    return y, y.sum(1)


def copied(a: Any, b: Any) -> Any:
    y, z = torch.zeros_like(a), torch.exp(b)
    y.copy_(z[0])
    z[2:].copy_(a[0, :1])
    return y + z


def by_index(a: Any, b: Any) -> Any:
    y = torch.relu(a)
    y.index_copy_(0, torch.arange(1, 3), b[:2])
    y.index_copy_(1, torch.tensor([5]), b[:, :1])
    return y


def by_number(a: Any, b: Any) -> Any:
    y = a + 0
    y.fill_(b.sum())
    return y * a


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "columns": assigned(slice(None), slice(1, 4)),
    "the first rows": assigned(slice(None, 2)),
    "the last rows": assigned(slice(-2, None)),
    "all": assigned(slice(None)),
    "a row": assigned(2),
    "a column": assigned(slice(None), -1),
    "a block": assigned(slice(1, 3), slice(2, 5)),
    "numbers": filled,
    "where a mask holds": masked,
    "one after another": in_turns,
    "copies": copied,
    "indices": by_index,
    "a number of a tensor": by_number,
    "padded": lambda a, b: F.pad(torch.exp(a), (1, 2)) * F.pad(b, (2, 1), value=0.5),
    "padded and cut": lambda a, b: F.pad(a @ b.t(), (-1, 3, 2, -1)),
    "cut only": lambda a, b: F.pad(a * b, (-2, -1)),
    "padded along other dims": lambda a, b: F.pad((a * b).t()[None], (0, 0, 1, 1, 1, 0), value=-1.0),
    "a padded product": lambda a, b: F.pad(a, (0, 2)) @ F.pad(b, (1, 1)).t(),
}


def tensors(dtype: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(4, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype)


@pytest.mark.parametrize("name", CALLS)
def test_they_import_whole_and_right(name: str) -> None:
    call, given = CALLS[name], tensors()
    found = mf.from_torch(call, given)
    assert not found.left, found.report()
    compare(found, call, given, 1e-6)
    compare_rewritten(found, call, given, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["columns", "one after another", "copies", "padded"])
def test_half_types_and_special_values(name: str, dtype: str) -> None:
    """Compared as every import is: with large values, zeros, infinities and NaN."""
    found = mf.from_torch(CALLS[name], tensors(getattr(torch, dtype)))
    assert not found.left
    comparison = compare_with_torch(found)
    assert not comparison.faults, comparison.faults
    assert comparison.sets[0] > 4


REFUSED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "every second column": (assigned(slice(None), slice(0, 6, 2)), "aten.slice_scatter.default", "without gaps"),
    "indices apart": (
        lambda a, b: torch.index_copy(a, 0, torch.tensor([0, 2]), b[:2]) * 2,
        "aten.index_copy.default",
        "one after another",
    ),
    "padded with infinity": (
        lambda a, b: F.pad(a * b, (1, 1), value=float("-inf")).amax(1),
        "aten.constant_pad_nd.default",
        "number",
    ),
    "padded by mirroring": (lambda a, b: F.pad(a * b, (1, 1), mode="reflect") * 2, "aten.reflection_pad1d.default", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_stay_with_torch_and_say_why(name: str) -> None:
    call, operator, reason = REFUSED[name]
    found = mf.from_torch(call, tensors())
    left = {item.operator: item.reason for item in found.left}
    assert reason in left[operator]
    compare(found, call, tensors(), 1e-6)


def test_indices_that_a_call_may_change_stay_with_torch() -> None:
    def call(a: Any, b: Any, place: Any) -> Any:
        return torch.index_copy(torch.exp(a), 0, place, b[:2]) * 2

    found = mf.from_torch(call, (*tensors(), torch.tensor([1, 2])))
    assert [item.operator for item in found.left] == ["aten.index_copy.default"]
    assert [len(region.nodes) for region in found.regions] == [1, 1]


class Block(nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """As in a residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 5, 1, bias=False), nn.BatchNorm2d(5), nn.ReLU(inplace=True)
        self.again = nn.BatchNorm2d(5)

    def forward(self, x: Any) -> Any:
        """The block."""
        y = self.relu(self.norm(self.conv(x)))
        return self.relu(self.again(y).add_(y))


def test_batch_norm_and_a_relu_in_place_import_whole() -> None:
    torch.manual_seed(0)
    module = Block().eval()
    for norm in (module.norm, module.again):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 4, 6)
    found = mf.from_torch(module, (x,))
    assert not found.left, found.report()
    assert len(found.regions) == 1
    assert not compare_with_torch(found, arguments_of(found, [x])).faults
    given = x.clone()
    with torch.no_grad():
        compare(found, lambda x: module.double()(x), (x,), 1e-5)
    assert torch.equal(x, given), "nothing of what is given is written"

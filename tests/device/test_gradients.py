"""Tensors that autograd knows: one rule for torch tensors on the CPU and on a GPU.

The fake torch stands in on both; where torch is installed, its tensors on the CPU take the same tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.codegen.target import load_target
from mirage_formal.device import launch, tensors
from mirage_formal.device.launch import Optimized
from mirage_formal.device.tensors import TensorError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import build
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import MirageError
from tests.kit.graphs import workloads as w
from tests.kit.runs.fake_devices import FakeCupy, FakeTorch, Parameter, Tensor, aligned, with_code

pytestmark = pytest.mark.filterwarnings("ignore::mirage_formal.device.launch.NoDeviceWarning")

SIZE = {"b": 2, "m": 16, "d": 16, "n": 64, "e": 16}


class Place:
    """A torch, and how its tensors are made where they lie."""

    def __init__(self, torch: Any, tensor: Callable[..., Any], parameter: Callable[..., Any], on: Optimized) -> None:
        self.torch, self.tensor, self.parameter, self.optimized = torch, tensor, parameter, on


def program() -> KernelGraph:
    return w.attention(**SIZE)


def never(arch: str) -> Any:
    raise AssertionError(arch)


def fake_place(monkeypatch: pytest.MonkeyPatch, device: int) -> Place:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    on = Optimized(program(), never)
    if device >= 0:
        built = with_code(build(w.attention_split(**SIZE, split=2, loop=2), program(), load_target("h200")))
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy(built.programs))
        on = Optimized.of(built.executable)
    return Place(
        torch,
        lambda array: Tensor(aligned(array), "torch.float16", device),
        lambda array: Parameter(aligned(array), "torch.float16", device),
        on,
    )


def real_place() -> Place:
    torch = import_module("torch")
    return Place(
        torch,
        lambda array: torch.from_numpy(array.copy()),
        lambda array: torch.nn.Parameter(torch.from_numpy(array.copy())),
        Optimized(program(), never),
    )


@pytest.fixture(params=["fake, on the CPU", "fake, on a GPU", "torch, on the CPU"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    tensors.adapter.cache_clear()
    if request.param.startswith("torch"):
        if find_spec("torch") is None:
            pytest.skip("torch is not installed")
        yield real_place()
    else:
        yield fake_place(monkeypatch, 0 if request.param.endswith("GPU") else -1)
    tensors.adapter.cache_clear()
    launch._say_no_gpu.cache_clear()


@pytest.fixture(scope="module")
def arrays() -> tuple[list[np.ndarray], np.ndarray]:
    drawn = draw_all(program(), 0, 0.3)
    return [x.astype(np.float16) for x in drawn], float64_reference.run(program(), drawn)[0]


def close(got: Any, want: np.ndarray) -> None:
    assert not got.requires_grad
    found = got.host if isinstance(got, Tensor) else got.numpy()
    assert np.linalg.norm(found.astype(np.float64) - want) <= 2e-3 * np.linalg.norm(want)


def test_a_parameter_is_refused_while_gradients_are_recorded(
    place: Place, arrays: tuple[list[np.ndarray], np.ndarray]
) -> None:
    first, *rest = arrays[0]
    with pytest.raises(TensorError) as caught:
        place.optimized(place.parameter(first), *map(place.tensor, rest))
    assert str(caught.value) == (
        f"input {program().inputs[0].name}: expected a tensor that requires no gradient, got one that does while "
        "gradients are recorded\n  hint: call it under torch.no_grad() or torch.inference_mode(), or detach the "
        "tensor: it computes no gradient"
    )


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_it_is_taken_where_none_are_recorded(
    place: Place, arrays: tuple[list[np.ndarray], np.ndarray], mode: str
) -> None:
    first, *rest = arrays[0]
    with getattr(place.torch, mode)():
        close(place.optimized(place.parameter(first), *map(place.tensor, rest)), arrays[1])


def test_plain_tensors_are_taken_whatever_is_recorded(
    place: Place, arrays: tuple[list[np.ndarray], np.ndarray]
) -> None:
    close(place.optimized(*map(place.tensor, arrays[0])), arrays[1])


def test_inference_tensors_are_taken_and_written_outside_the_mode(
    place: Place, arrays: tuple[list[np.ndarray], np.ndarray]
) -> None:
    with place.torch.inference_mode():
        given = [place.tensor(array) for array in arrays[0]]
        out = place.tensor(np.zeros(arrays[1].shape, np.float16))
        if isinstance(out, Tensor):
            out.made_for_inference = True
    assert place.optimized(*given, out=out) is out
    close(out, arrays[1])


def test_outputs_are_held_to_the_same_rule(place: Place, arrays: tuple[list[np.ndarray], np.ndarray]) -> None:
    given = [place.tensor(array) for array in arrays[0]]
    out = place.parameter(np.zeros(arrays[1].shape, np.float16))
    with pytest.raises(TensorError, match=r"out\[0\]: expected a tensor that requires no gradient"):
        place.optimized(*given, out=out)
    with place.torch.no_grad():
        assert place.optimized(*given, out=out) is out
        close(out.detach(), arrays[1])


def test_the_cpu_and_the_gpu_share_one_function(
    place: Place, arrays: tuple[list[np.ndarray], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(MirageError):
        pass

    def refuse(value: Any, slot: Any) -> None:
        raise Refused(slot.where)

    monkeypatch.setattr(tensors, "reject_gradient", refuse)
    first, *rest = arrays[0]
    with pytest.raises(Refused):
        place.optimized(place.parameter(first), *map(place.tensor, rest))

"""Launches with tensor maps: what is encoded when, and where a launch finds it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.executable import KernelLaunch, without_dependent_launches
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import load_target
from mirage_formal.device import emulate, tensors
from mirage_formal.device.driver import programmatic_launch, tensor_maps
from mirage_formal.device.driver.tensor_maps import KEPT, TensorMapArgument, TensorMapError
from mirage_formal.device.launch import Optimized
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import UnsupportedError
from tests.device.test_dependent_launches import FakeDriver
from tests.kit.graphs import workloads as w
from tests.kit.runs import fake_devices
from tests.kit.runs.fake_devices import FakeCupy, aligned, ndarray, with_code, with_tensor_maps

PROGRAM = KernelGraph(
    (w.tensor("X", 64, 256), w.tensor("Y", 64, 256)),
    (Op(OpKind.RMS_NORM, (0,), Attrs(dim=1)), Op(OpKind.ADD, (2, 1))),
    (3,),
)


def run_consumers(program: Any, given: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return emulate.run_kernel(replace(program, producer=(), pipelines=()), given)


@pytest.fixture(scope="module")
def built() -> BuiltKernels:
    """Two kernels, the second of which is dependent, each with two maps of every input."""
    return with_code(with_tensor_maps(build(PROGRAM, PROGRAM, load_target("h200"))))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, built: BuiltKernels) -> Any:
    fake = FakeCupy(built.programs, driver=13000)
    driver = FakeDriver(fake)
    functions = {"cuLaunchKernelEx": driver.function, "cuTensorMapEncodeTiled": fake.encode}
    monkeypatch.setitem(sys.modules, "cupy", fake)
    for module in (programmatic_launch, tensor_maps):
        monkeypatch.setattr(module, "driver_function", functions.get)
    monkeypatch.setattr(fake_devices, "emulate", run_consumers)
    tensors.adapter.cache_clear()
    yield fake
    tensors.adapter.cache_clear()


def inputs(seed: int) -> list[ndarray]:
    random = np.random.default_rng(seed)
    return [ndarray(aligned(random.standard_normal((64, 256)).astype(np.float16))) for _ in PROGRAM.inputs]


def call(optimized: Optimized, fake: FakeCupy, given: Sequence[ndarray]) -> list[int]:
    """The addresses that a call encodes maps of; its result must be right."""
    fake.log.clear()
    got = optimized(*given).host.astype(np.float64)
    (want,) = float64_reference.run(PROGRAM, [one.host.astype(np.float64) for one in given])
    assert np.abs(got - want).max() < 0.02
    return [entry[1] for entry in fake.log if entry[0] == "encode"]


@pytest.mark.parametrize("dependent", [True, False])
def test_a_map_is_encoded_once_for_each_address(fake: FakeCupy, built: BuiltKernels, dependent: bool) -> None:
    executable = built.executable if dependent else without_dependent_launches(built.executable)
    optimized = Optimized.of(executable)
    first, second = inputs(0), inputs(1)
    x, y = (one.data.ptr for one in first)
    encoded = call(optimized, fake, first)
    between = encoded[2]
    assert encoded == [x, x, between, between, y, y]
    assert [entry[0] for entry in fake.log if entry[0] in ("launch", "dependent")] == (
        ["launch", "dependent", "launch"] if dependent else ["launch", "launch"]
    )
    assert call(optimized, fake, first) == []
    x, y = (one.data.ptr for one in second)
    assert call(optimized, fake, second) == [x, x, y, y]
    for given in (first, second, first, second):
        assert call(optimized, fake, given) == []
    assert call(optimized, fake, [second[1], first[1]]) == [second[1].data.ptr] * 2
    assert call(optimized, fake, first) == []


def test_maps_are_placed_behind_arguments_in_order(built: BuiltKernels) -> None:
    first, second = built.executable.launches
    assert isinstance(first, KernelLaunch)
    assert isinstance(second, KernelLaunch)
    assert [(one.argument, one.rows, one.stride, one.dtype) for one in second.tensor_maps] == [
        (0, 8, 256, "float16"),
        (0, 64, 256, "float16"),
        (1, 8, 256, "float16"),
        (1, 64, 256, "float16"),
    ]
    program = built.programs[first.name]
    assert first.threads == program.threads + 128 == program.launch_threads


@pytest.fixture
def one(fake: FakeCupy, built: BuiltKernels) -> tuple[TensorMapArgument, ctypes.c_uint64]:
    """The second map of the first launch, and where the address of its tensor stands."""
    launch = built.executable.launches[0]
    assert isinstance(launch, KernelLaunch)
    tensor = ctypes.c_uint64()
    return TensorMapArgument(fake.encode, launch, launch.tensor_maps[1], tensor), tensor


def test_the_oldest_map_is_dropped(fake: FakeCupy, one: tuple[TensorMapArgument, ctypes.c_uint64]) -> None:
    argument, tensor = one

    def place(number: int) -> int:
        tensor.value = 256 * number
        found = argument.place()
        assert found % 64 == 0
        assert ctypes.c_uint64.from_address(found).value == tensor.value
        return found

    places = [place(number) for number in range(1, KEPT + 1)]
    assert len(set(places)) == KEPT
    assert all(abs(a - b) >= 128 for a in places for b in places if a != b)
    assert [place(number) for number in range(1, KEPT + 1)] == places
    assert [entry[1] for entry in fake.log] == [256 * number for number in range(1, KEPT + 1)]
    assert place(KEPT + 1) == places[0]
    assert place(2) == places[1]
    assert place(1) == places[1]
    assert len(fake.log) == KEPT + 2


def test_what_the_driver_refuses_is_an_error(fake: FakeCupy, built: BuiltKernels) -> None:
    optimized, given = Optimized.of(built.executable), inputs(0)
    fake.refusal = 1
    for _ in range(KEPT + 1):
        with pytest.raises(TensorMapError, match=r"expected cuTensorMapEncodeTiled .* error 1 of the driver") as caught:
            optimized(*given)
    assert "choose another candidate" in caught.value.hint
    assert not any(entry[0] == "launch" for entry in fake.log)
    fake.refusal = 0
    assert len(call(optimized, fake, given)) == 6


def test_an_address_that_is_not_aligned_is_refused(
    fake: FakeCupy, built: BuiltKernels, one: tuple[TensorMapArgument, ctypes.c_uint64]
) -> None:
    argument, tensor = one
    tensor.value = 24
    with pytest.raises(TensorMapError, match="multiple of 16 bytes, got address 0x18"):
        argument.place()
    optimized, given = Optimized.of(built.executable), inputs(0)
    moved = aligned(np.zeros(64 * 256 + 8, np.float16))[4 : 4 + 64 * 256].reshape(64, 256)
    assert moved.ctypes.data % 16 == 8
    with pytest.raises(tensors.TensorError, match="16 bytes"):
        optimized(ndarray(moved), given[1])
    assert fake.log.count(("encode", moved.ctypes.data)) == 0


@pytest.mark.parametrize(
    ("capability", "functions", "what"),
    [
        ("90", {}, "expected a CUDA driver with cuTensorMapEncodeTiled, got one without it"),
        ("80", {"cuTensorMapEncodeTiled": 1}, "compute capability 9.0 or later .* got 80"),
    ],
)
def test_a_gpu_or_driver_without_tensor_maps_is_said_at_load(
    monkeypatch: pytest.MonkeyPatch,
    fake: FakeCupy,
    built: BuiltKernels,
    capability: str,
    functions: dict[str, Any],
    what: str,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(built.programs, capability=capability))
    monkeypatch.setattr(tensor_maps, "driver_function", functions.get)
    with pytest.raises(UnsupportedError, match=what) as caught:
        Optimized.of(built.executable).prepare()
    assert "choose another candidate" in caught.value.hint


def test_launches_without_maps_ask_for_no_function(monkeypatch: pytest.MonkeyPatch, fake: FakeCupy) -> None:
    plain = with_code(build(PROGRAM, PROGRAM, load_target("h200")))
    fake.programs.update(plain.programs)

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(tensor_maps, "driver_function", refuse)
    monkeypatch.setattr(fake_devices, "emulate", emulate.run_kernel)
    assert call(Optimized.of(plain.executable), fake, inputs(0)) == []


def test_the_emulator_passes_a_map_for_each_behind_the_arguments(built: BuiltKernels) -> None:
    program = built.programs[built.executable.launches[0].name]  # type: ignore[union-attr]
    assert isinstance(program, Program)
    text = emulate._wrapper(program)
    assert "{&mf_params[1]}, mf::TensorMap{}, mf::TensorMap{}); }" in text
    assert f", {program.threads + 128}, {program.shared_bytes}, " in text
    plain = emulate._wrapper(replace(program, producer=(), pipelines=()))
    assert "TensorMap" not in plain
    assert f", {program.threads}, {program.shared_bytes}, " in plain

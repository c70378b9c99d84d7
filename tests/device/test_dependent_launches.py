"""Dependent launches: what the compiler makes of waiting, and what the driver is given."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.executable import without_dependent_launches
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.codegen.target import load_target
from mirage_formal.device import compile as nvrtc
from mirage_formal.device import runtime, tensors
from mirage_formal.device.driver import programmatic_launch
from mirage_formal.device.driver.driver_library import driver_function
from mirage_formal.device.driver.programmatic_launch import LaunchError
from mirage_formal.device.launch import Optimized
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.semantics import float64_reference
from tests.kit.graphs import workloads as w
from tests.kit.kernels.device_kernels import chain, predefined
from tests.kit.runs.fake_devices import FakeCupy, aligned, ndarray, with_code

H200 = load_target("h200")
SIZE = {"b": 2, "m": 16, "d": 16, "n": 64, "e": 16}


# --- machine code ----------------------------------------------------------------------------------------------------

_MEMORY = re.compile(r"\b(ld|st|cp\.async|atom|red)\b[.\w]*\.global|\bcp\.async\.c[ag]")


class _Ptx(nvrtc._Nvrtc):
    """NVRTC that gives PTX in the place of machine code."""

    def _bytes(self, name: str, program: ctypes.c_void_p) -> bytes:
        return super()._bytes(name.replace("CUBIN", "PTX"), program)


def ptx(text: str, arch: str) -> list[str]:
    """Instructions that NVRTC makes of a kernel for a virtual architecture."""
    code, _ = _Ptx(nvrtc._nvrtc()._library).compile(text, nvrtc.device_headers([text]), arch)
    return [line.strip() for line in code.rstrip(b"\0").decode().splitlines()]


def texts() -> dict[str, str]:
    """Kernels that wait: combining ones, with and without running maxima, and predefined ones."""
    graphs = {"split": w.attention_split(), "chain": chain(), "predefined": predefined()}
    found: dict[str, str] = {}
    for name, graph in graphs.items():
        kernels = [step for step in generate(graph, H200).steps if isinstance(step, GeneratedKernel)]
        found |= {f"{name} {x.program.name}": emit_cuda(x.program) for x in kernels if x.program.dependent}
    return found


@pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC")
@pytest.mark.parametrize("name", sorted(texts()))
def test_the_compiler_keeps_every_access_behind_the_wait(name: str) -> None:
    text = texts()[name]
    code = ptx(text, "compute_90a")
    (wait,) = (number for number, line in enumerate(code) if line == "griddepcontrol.wait;")
    accesses = [number for number, line in enumerate(code) if _MEMORY.search(line)]
    assert accesses
    assert min(accesses) > wait
    # A non-coherent load may be moved over a wait, for it says that nobody writes what it reads.
    assert not any(".nc" in line for line in code)
    assert not any("griddepcontrol" in line for line in ptx(text, "compute_80"))
    # Without this care there are some, unless all loads are asynchronous copies.
    if "mf::load" in text:
        assert any("ld.global.nc" in line for line in ptx(text.replace("MF_AWAITED", "MF_INPUT"), "compute_90a"))


# --- launches --------------------------------------------------------------------------------------------------------


class FakeDriver:
    """cuLaunchKernelEx of a FakeCupy: reads its arguments at the offsets that cuda.h gives them.

    Attributes:
        status: What it returns.
    """

    def __init__(self, fake: FakeCupy) -> None:
        self.fake = fake
        self.status = 0
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        self.function = kind(self.launch)

    def launch(self, config: int, function: int | None, arguments: int, extra: int | None) -> int:
        raw = ctypes.string_at(config, 56)
        gx, gy, gz, bx, by, bz, shared = struct.unpack_from("<7I", raw, 0)
        stream, attributes = struct.unpack_from("<2Q", raw, 32)
        (count,) = struct.unpack_from("<I", raw, 48)
        assert count == 1
        kind, value = struct.unpack("<I4xi60x", ctypes.string_at(attributes, 72))
        assert (kind, value, extra) == (6, 1, None)
        if self.status == 0:
            self.fake.log.append(("dependent",))
            self.fake._launch(function or 0, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0)
        return self.status


BUILT: dict[str, Callable[[], BuiltKernels]] = {
    "split": lambda: build(w.attention_split(**SIZE, split=2, loop=2), w.attention(**SIZE), H200),
    "chain": lambda: build(chain(), chain(), H200),
}


def install(monkeypatch: pytest.MonkeyPatch, built: BuiltKernels, **options: Any) -> tuple[FakeCupy, FakeDriver]:
    fake = FakeCupy(built.programs, **options)
    driver = FakeDriver(fake)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(programmatic_launch, "driver_function", lambda _: driver.function)
    tensors.adapter.cache_clear()
    return fake, driver


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    tensors.adapter.cache_clear()


def called(built: BuiltKernels, fake: FakeCupy) -> list[tuple[Any, ...]]:
    """What a call launches, whose result must be right."""
    program = built.executable.program
    optimized = Optimized.of(built.executable)
    optimized.prepare()
    for seed, stream in ((0, 7), (1, 9)):
        arrays = draw_all(program, seed, 0.3)
        fake.stream = stream
        fake.log.clear()
        got = optimized(*[ndarray(aligned(x.astype(np.float16))) for x in arrays]).host
        (want,) = float64_reference.run(program, [x.astype(np.float16).astype(np.float64) for x in arrays])
        assert np.linalg.norm(got.astype(np.float64) - want) <= 2e-3 * np.linalg.norm(want)
    return [entry for entry in fake.log if entry[0] in ("launch", "dependent")]


@pytest.mark.parametrize("name", BUILT)
def test_every_launch_but_the_first_has_the_attribute(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    built = with_code(BUILT[name]())
    fake, _ = install(monkeypatch, built, driver=12030)
    names = [launch.name for launch in built.executable.launches]  # type: ignore[union-attr]
    first, *others = (("launch", name, 9) for name in names)
    assert called(built, fake) == [first, *(entry for launch in others for entry in (("dependent",), launch))]
    assert called(replace(built, executable=without_dependent_launches(built.executable)), fake) == [first, *others]


@pytest.mark.parametrize("options", [{"driver": 12020}, {"driver": 13000, "capability": "80"}])
def test_what_driver_or_gpu_do_not_know_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    built = with_code(BUILT["chain"]())
    monkeypatch.setattr(runtime.LoadedExecutable, "_cubin", lambda *_: b"machine code")
    fake, _ = install(monkeypatch, built, **options)
    assert [entry[0] for entry in called(built, fake)] == ["launch"] * 3


def test_a_launch_that_the_driver_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    built = with_code(BUILT["chain"]())
    fake, driver = install(monkeypatch, built, driver=12030)
    driver.status = 719
    with pytest.raises(LaunchError, match="error 719"):
        called(built, fake)


def test_a_driver_that_is_not_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    driver_function.cache_clear()
    try:
        assert driver_function("cuLaunchKernelEx") is None
    finally:
        driver_function.cache_clear()

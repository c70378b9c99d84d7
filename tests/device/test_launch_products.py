"""Predefined products: the arguments that cuBLAS gets, on a cuBLAS of NumPy that reads host memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from mirage_formal.codegen.executable import Binary, Executable, KernelLaunch
from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.codegen.target import load_target
from mirage_formal.device import cublas as cublas_products
from mirage_formal.device import tensors
from mirage_formal.device.cublas import CublasError
from mirage_formal.device.elements import bits_to_floats, floats_to_bits
from mirage_formal.device.launch import Optimized
from mirage_formal.device.runtime import LoadedExecutable
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.kernel_build.build import build
from mirage_formal.semantics import float64_reference
from tests.kit.kernels.device_kernels import predefined
from tests.kit.runs.fake_devices import FakeCupy, aligned, ndarray

_KINDS: dict[int, Any] = {2: np.float16, 0: np.float32}


def value(argument: Any) -> Any:
    inner = getattr(argument, "_obj", argument)
    return getattr(inner, "value", inner)


class FakeCublas:
    """Column-major batched products in float32."""

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.workspaces: list[tuple[int, int]] = []
        self.calls = 0
        self.status = 0

    def cublasCreate_v2(self, handle: Any) -> int:
        handle._obj.value = 77
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        assert value(handle) == 77
        self.streams.append(value(stream) or 0)
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, address: Any, size: Any) -> int:
        self.workspaces.append((value(address), value(size)))
        return 0

    def cublasGemmStridedBatchedEx(self, *arguments: Any) -> int:
        given = [value(a) for a in arguments]
        handle, ta, tb, m, n, k, alpha, a, a_kind, lda, a_step, b, b_kind, ldb, b_step, beta = given[:16]
        c, c_kind, ldc, c_step, count, compute, _ = given[16:]
        assert (handle, alpha, beta, compute) == (77, 1.0, 0.0, 68)
        assert a_kind == b_kind == c_kind
        kind = np.dtype(_KINDS[a_kind])
        assert lda >= (k if ta else m)
        assert ldb >= (n if tb else k)
        assert ldc >= m

        def matrix(address: int, rows: int, cols: int, ld: int) -> np.ndarray:
            size = (ld * (cols - 1) + rows) * kind.itemsize
            flat = np.frombuffer((ctypes.c_char * size).from_address(address), kind)
            return np.lib.stride_tricks.as_strided(flat, (rows, cols), (kind.itemsize, ld * kind.itemsize))

        for i in range(count):
            left = matrix(a + i * a_step * kind.itemsize, *((k, m) if ta else (m, k)), lda)
            right = matrix(b + i * b_step * kind.itemsize, *((n, k) if tb else (k, n)), ldb)
            out = matrix(c + i * c_step * kind.itemsize, m, n, ldc)
            left, right = (left.T if ta else left), (right.T if tb else right)
            out[...] = (left.astype(np.float32) @ right.astype(np.float32)).astype(kind)
        self.calls += 1
        return self.status


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublas]:
    fake = FakeCublas()
    monkeypatch.setattr(cublas_products, "library", lambda: fake)
    tensors.adapter.cache_clear()
    yield fake
    tensors.adapter.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, graph: KernelGraph) -> tuple[Executable, FakeCupy]:
    built = build(graph, graph, load_target("h200"))
    fake = FakeCupy(built.programs)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr("mirage_formal.device.runtime.LoadedExecutable._cubin", lambda self, launch: b"")
    return built.executable, fake


def laid_out(item: Input, array: np.ndarray) -> ndarray:
    kind = np.dtype(item.tensor.dtype.value)
    span = 1 + sum((n - 1) * s for n, s in zip(item.tensor.shape, item.strides, strict=True))
    flat = aligned(np.zeros(span, kind))
    view = np.lib.stride_tricks.as_strided(flat, item.tensor.shape, tuple(kind.itemsize * s for s in item.strides))
    view[...] = array
    return ndarray(view)


def test_predefined_operators(monkeypatch: pytest.MonkeyPatch, cublas: FakeCublas) -> None:
    """Generated kernels and products in turn, on one stream, one operand column-major."""
    graph = predefined()
    executable, fake = installed(monkeypatch, graph)
    arrays = draw_all(graph, 0, 0.5)
    got = Optimized.of(executable)(*(laid_out(i, a) for i, a in zip(graph.inputs, arrays, strict=True)))
    for x, want in zip(got, float64_reference.run(graph, arrays), strict=True):
        assert np.linalg.norm(x.host - want) <= 2e-3 * np.linalg.norm(want)
    assert cublas.calls == 2
    assert cublas.streams == [7, 7]
    (size,) = {entry[1] for entry in fake.log if entry[0] == "alloc"}
    assert all(w == cublas.workspaces[0] for w in cublas.workspaces)
    assert cublas.workspaces[0][1] == cublas_products.WORKSPACE_BYTES
    assert size > cublas_products.WORKSPACE_BYTES


SHAPES = [
    ((5, 7), (7, 1), (7, 3), (3, 1)),
    ((5, 7), (1, 5), (7, 3), (1, 7)),
    ((5, 7), (9, 1), (7, 3), (1, 8)),
    ((1, 7), (7, 1), (7, 1), (1, 1)),
    ((2, 3, 4, 5), (60, 20, 5, 1), (2, 3, 5, 6), (90, 30, 6, 1)),
    ((2, 3, 4, 5), (20, 40, 5, 1), (2, 3, 5, 6), (100, 30, 6, 1)),
]


@pytest.mark.parametrize(("a", "a_strides", "b", "b_strides"), SHAPES)
def test_layouts(
    monkeypatch: pytest.MonkeyPatch,
    cublas: FakeCublas,
    a: tuple[int, ...],
    a_strides: tuple[int, ...],
    b: tuple[int, ...],
    b_strides: tuple[int, ...],
) -> None:
    inputs = (Input("A", DTensor(a, DType.FLOAT32), a_strides), Input("B", DTensor(b, DType.FLOAT32), b_strides))
    graph = KernelGraph(inputs, (Op(OpKind.MATMUL, (0, 1), Attrs()),), (2,))
    executable, _ = installed(monkeypatch, graph)
    arrays = draw_all(graph, 0, 1.0)
    got = Optimized.of(executable)(*(laid_out(i, x) for i, x in zip(inputs, arrays, strict=True)))
    np.testing.assert_allclose(got.host, float64_reference.run(graph, arrays)[0], rtol=1e-5, atol=1e-5)


def test_products_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cuBLAS generated kernels see the same values, and nothing else is launched."""

    def never() -> Any:
        raise AssertionError("cuBLAS is not touched")

    monkeypatch.setattr(cublas_products, "library", never)
    for dtype, near in ((DType.FLOAT16, 2e-3), (DType.BFLOAT16, 2e-2)):
        graph = predefined(dtype)
        executable, fake = installed(monkeypatch, graph)
        arrays = draw_all(graph, 0, 0.5)
        raw = [raw_elements(i, a) for i, a in zip(graph.inputs, arrays, strict=True)]
        types = [executable.values[number] for number in executable.outputs]
        out = [aligned(np.full(t.elements, 0xFFFF, np.uint16)) for t in types]
        loaded = LoadedExecutable(executable, 0, library=False)
        loaded.run([x.ctypes.data for x in raw], [x.ctypes.data for x in out], 7)
        for bits, t, want in zip(out, types, float64_reference.run(graph, arrays), strict=True):
            got = bits_to_floats(bits, dtype, np).reshape(t.shape)
            assert np.linalg.norm(got - want) <= near * np.linalg.norm(want)
        # Each product waits for what is before it on the stream.
        assert fake.log.count(("wait for", 7)) == 2
        assert [entry[1] for entry in fake.log if entry[0] == "launch"] == list(fake.programs)


def raw_elements(item: Input, array: np.ndarray) -> np.ndarray:
    span = 1 + sum((n - 1) * s for n, s in zip(item.tensor.shape, item.strides, strict=True))
    flat = aligned(np.zeros(span, np.uint16))
    np.lib.stride_tricks.as_strided(flat, item.tensor.shape, tuple(2 * s for s in item.strides))[...] = floats_to_bits(
        array, item.tensor.dtype, np
    )
    return flat


def test_failures_have_a_name(monkeypatch: pytest.MonkeyPatch, cublas: FakeCublas) -> None:
    graph = predefined()
    executable, _ = installed(monkeypatch, graph)
    given = [laid_out(i, a) for i, a in zip(graph.inputs, draw_all(graph, 0, 0.5), strict=True)]
    cublas.status = 13
    with pytest.raises(CublasError, match="cublasGemmStridedBatchedEx to succeed, got status 13"):
        Optimized.of(executable)(*given)


def test_machine_code_of_the_device_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What launch.json has for the architecture is loaded; what it lacks is compiled."""
    compiled: list[str] = []

    class Compiler:
        @staticmethod
        def compile(source: str, arch: str) -> Any:
            compiled.append(arch)
            return type("C", (), {"cubin": b"compiled"})

    x = Input("X", DTensor((64,), DType.FLOAT16), (1,))
    graph = KernelGraph((x,), (Op(OpKind.EXP, (0,), Attrs()),), (1,))
    built = build(graph, graph, load_target("h200"))
    for capability, arch in (("90", "sm_90a"), ("86", "sm_80"), ("100", "sm_100")):
        fake = FakeCupy(built.programs, capability=capability)
        monkeypatch.setitem(sys.modules, "cupy", fake)
        monkeypatch.setitem(sys.modules, "mirage_formal.device.compile", Compiler)
        tensors.adapter.cache_clear()
        Optimized.of(built.executable).prepare()
        assert ("load", b"compiled") in fake.log
        assert compiled.pop() == arch
    executable = built.executable
    (launch,) = executable.launches
    assert isinstance(launch, KernelLaunch)
    with_code = replace(
        executable,
        launches=(msgspec.structs.replace(launch, cubins={"sm_100": Binary("x.cubin", "")}),),
        files={**executable.files, "x.cubin": b"ready"},
    )
    Optimized.of(with_code).prepare()
    assert ("load", b"ready") in fake.log
    assert compiled == []

"""Calling executables, on a fake CuPy whose launches are emulated, and without any."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.codegen.target import load_target
from mirage_formal.device import launch, runtime, tensors
from mirage_formal.device.launch import NoDeviceWarning, Optimized
from mirage_formal.device.tensors import TensorError
from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.kernel_build.save import save_built
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import DTypeError, ShapeError, UnsupportedError
from tests.kit.graphs import workloads as w
from tests.kit.paths import REPOSITORY
from tests.kit.runs.fake_devices import FakeCupy, aligned, ndarray, with_code


@pytest.fixture(scope="module")
def split() -> tuple[KernelGraph, BuiltKernels]:
    """Attention in two kernels, with two tensors between them."""
    size = {"b": 2, "m": 16, "d": 16, "n": 64, "e": 16}
    program = w.attention(**size)
    candidate = w.attention_split(**size, split=2, loop=2)
    return program, with_code(build(candidate, program, load_target("h200")))


def install(monkeypatch: pytest.MonkeyPatch, built: BuiltKernels, **options: Any) -> FakeCupy:
    fake = FakeCupy(built.programs, **options)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    tensors.adapter.cache_clear()
    return fake


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    tensors.adapter.cache_clear()
    launch._say_no_gpu.cache_clear()


def inputs(program: KernelGraph, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    arrays = draw_all(program, seed, 0.3)
    return [aligned(x.astype(np.float16)) for x in arrays], float64_reference.run(program, arrays)[0]


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    assert got.dtype == np.float16
    assert np.linalg.norm(got.astype(np.float64) - want) <= 2e-3 * np.linalg.norm(want)


def test_cupy(monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]) -> None:
    program, built = split
    fake = install(monkeypatch, built)
    given, want = inputs(program)
    optimized = Optimized.of(built.executable)
    got = optimized(*map(ndarray, given))
    assert isinstance(got, ndarray)
    close(got.host, want)
    # The next calls load and allocate nothing but their outputs, do not wait, and launch on the stream of the moment.
    fake.log.clear()
    fake.stream = 9
    given, want = inputs(program, 1)
    out = ndarray(aligned(np.full(want.shape, np.nan, np.float16)))
    assert optimized(*map(ndarray, given), out=out) is out
    close(out.host, want)
    assert fake.log == [("wait", 9), ("launch", "kernel0", 9), ("launch", "kernel1", 9), ("record", 9)]
    fake.log.clear()
    listed = optimized(inputs=[ndarray(x) for x in given])
    assert isinstance(listed, list)
    close(listed[0].host, want)
    assert [entry[0] for entry in fake.log] == ["empty", "launch", "launch", "record"]


def test_captured_calls_leave_events_alone(
    monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]
) -> None:
    program, built = split
    fake = install(monkeypatch, built)
    optimized = Optimized.of(built.executable)
    optimized.prepare()
    assert {entry[0] for entry in fake.log} == {"alloc", "load", "attribute"}
    fake.log.clear()
    fake.capturing.add(fake.stream)
    given, want = inputs(program)
    out = ndarray(aligned(np.empty(want.shape, np.float16)))
    optimized(*map(ndarray, given), out=out)
    assert [entry[0] for entry in fake.log] == ["launch", "launch"]


def test_modules_outlive_their_executables(
    monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]
) -> None:
    """The driver refuses to unload a module while a stream is captured, and garbage is collected at any time."""
    _, built = split
    fake = install(monkeypatch, built)
    Optimized.of(built.executable).prepare()
    loaded = [entry for entry in fake.log if entry[0] == "load"]
    assert loaded
    fake.log.clear()
    again = Optimized.of(built.executable)
    again.prepare()
    assert {entry[0] for entry in fake.log} == {"alloc", "attribute"}
    assert len(runtime._MODULES[fake]) == len(loaded)


def test_numpy_is_copied(monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]) -> None:
    program, built = split
    install(monkeypatch, built)
    given, want = inputs(program)
    optimized = Optimized.of(built.executable)
    close(optimized(*given), want)
    # Strides of host arrays don't matter.
    turned = np.asfortranarray(given[0])
    out = np.empty(want.shape, np.float16)
    assert optimized(turned, *given[1:], out=out) is out
    close(out, want)


def test_each_device_has_its_own(monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]) -> None:
    program, built = split
    fake = install(monkeypatch, built, devices=2)
    given, want = inputs(program)
    optimized = Optimized.of(built.executable)
    for device in (0, 1):
        got = optimized(*(ndarray(x, device) for x in given))
        assert got.device == device
        close(got.host, want)
    assert [entry[0] for entry in fake.log].count("alloc") == 2
    assert fake.current == 0


def test_mistakes_name_what_is_wrong(monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]) -> None:
    program, built = split
    install(monkeypatch, built, devices=2)
    given, want = inputs(program)
    q, k, v = map(ndarray, given)
    optimized = Optimized.of(built.executable)
    optimized(q, k, v)
    shape = want.shape

    def refused(error: type[Exception], match: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(error, match=match):
            optimized(*arguments, **options)

    refused(TensorError, "expected 3 inputs \\(Q, K, V\\), got 2", q, k)
    refused(ShapeError, "input K: expected shape \\[2, 16, 64\\], got \\[2, 64, 16\\]", q, v, k)
    refused(DTypeError, "input Q: expected elements of float16, got float32", ndarray(q.host.astype(np.float32)), k, v)
    turned = aligned(np.ascontiguousarray(k.host.transpose(0, 2, 1))).transpose(0, 2, 1)
    refused(TensorError, "input K: expected strides \\[1024, 64, 1\\], got \\[1024, 1, 16\\]", q, ndarray(turned), v)
    refused(TensorError, "input V: expected a tensor on GPU 0, got one on GPU 1", q, k, ndarray(v.host, 1))
    odd = aligned(np.zeros(q.host.size + 1, np.float16))[1:].reshape(q.shape)
    refused(TensorError, "input Q: expected an address that is a multiple of 16", ndarray(odd), k, v)
    refused(TensorError, "expected a CuPy array as the first input is, got a NumPy array", q, k, v.host)
    refused(TensorError, "input Q: expected a tensor, got list", [[1.0]], k, v)
    refused(TensorError, "out: expected 1 outputs, got 2", q, k, v, out=[q, q])
    refused(ShapeError, "out\\[0\\]: expected shape", q, k, v, out=k)
    refused(TensorError, "apart from input Q, got overlapping", q, k, v, out=ndarray(q.host, 0))
    refused(TensorError, "as the inputs are, got a NumPy array", q, k, v, out=np.empty(shape, np.float16))
    refused(TensorError, "by position and by name", q, inputs=[q, k, v])


def test_shared_memory_that_a_device_lacks(
    monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]
) -> None:
    program, built = split
    launches = tuple(msgspec.structs.replace(x, shared_bytes=1 << 19) for x in built.executable.launches)
    install(monkeypatch, built)
    optimized = Optimized.of(replace(built.executable, launches=launches))
    with pytest.raises(UnsupportedError, match="bytes of shared memory"):
        optimized(*map(ndarray, inputs(program)[0]))


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, split: tuple[KernelGraph, BuiltKernels]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    program, _ = split
    given, want = inputs(program)

    def never(arch: str) -> Any:
        raise AssertionError("nothing is built without a GPU")

    optimized = Optimized(program, never)
    with pytest.warns(NoDeviceWarning, match="reference semantics") as caught:
        got = optimized(*given)
    assert caught[0].filename == __file__
    assert np.array_equal(got, want.astype(np.float16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        out = np.empty(want.shape, np.float16)
        optimized(*given, out=out)
    assert np.array_equal(out, got)
    with pytest.raises(DTypeError, match="float16, got float64"):
        optimized(*(x.astype(np.float64) for x in given))
    with pytest.raises(UnsupportedError, match="expected a GPU"):
        optimized.prepare()


def masked() -> tuple[KernelGraph, list[Any], Any]:
    """A selection by a mask that lies across, between exponentials and a number; inputs, and what is expected."""
    inputs = (Input("M", DTensor((4, 6), DType.BOOL), (1, 4)), w.tensor("X", 4, 6))
    program = KernelGraph(inputs, (w.op(OpKind.EXP, 1), w.op(OpKind.SELECT, 0, 2, value=Fraction(2))), (3,))
    random = np.random.default_rng(0)
    mask = random.random((4, 6)) < 0.5
    x = np.where(mask, random.standard_normal((4, 6)), np.nan).astype(np.float16)
    return program, [mask, x], np.where(mask, np.exp(x.astype(np.float64)), 2.0)


def test_masks_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read where they lie, as the bytes that they are."""
    program, (mask, x), want = masked()
    built = with_code(build(program, program, load_target("h200")))
    fake = install(monkeypatch, built)
    optimized = Optimized.of(built.executable)
    turned = aligned(np.ascontiguousarray(mask.T)).T
    close(optimized(ndarray(turned), ndarray(aligned(x))).host, want)
    names = [one.name for one in built.executable.launches if isinstance(one, KernelLaunch)]
    assert [entry[1] for entry in fake.log if entry[0] == "launch"] == names
    close(optimized(mask, x), want)  # host tensors are copied
    with pytest.raises(DTypeError, match="input M: expected elements of bool, got uint8"):
        optimized(ndarray(turned.astype(np.uint8)), ndarray(aligned(x)))


def test_band_masks_lie_on_a_device_only_where_a_kernel_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    g, block = mf.new_kernel_graph(), mf.new_threadblock_graph((2, 1, 1), (128, 1, 1), 1, 64)
    x = g.new_input((8, 6), name="X")
    computed, stored = g.band((8, 6), upper=0, name="below"), g.band((8, 6), lower=1, name="above")
    tiles = [block.new_input(one, (0, -1, -1), -1) for one in (x, computed)]
    block.new_output(block.forloop_accum(block.select(tiles[1], tiles[0], 2)), (0, -1, -1))
    (below,) = g.customized([x, computed], block)
    g.mark_output(below)
    g.mark_output(g.select(stored, x, 3))
    program = g.freeze()
    built = with_code(build(program, program, load_target("h200")))
    fake = install(monkeypatch, built)
    made: list[tuple[int, ...]] = []
    asarray = fake.asarray

    def counted(values: Any, *rest: Any) -> Any:
        made.append(np.asarray(values).shape)
        return asarray(values, *rest)

    monkeypatch.setattr(fake, "asarray", counted)
    optimized = Optimized.of(built.executable)
    values = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float16)
    keep = np.tril(np.ones((8, 6), bool))
    for _ in range(2):
        for got, want in zip(optimized(ndarray(aligned(values))), (keep, ~keep), strict=True):
            close(got.host, np.where(want, values, 2 if want is keep else 3).astype(np.float64))
    assert made == [(8, 6)]  # the mask of the selection outside of block graphs, once
    assert optimized._masks[0].keys() == {2}
    given, out = ndarray(aligned(values)), [ndarray(aligned(np.zeros((8, 6), np.float16))) for _ in range(2)]
    optimized(given, out=out)
    close(out[0].host, np.where(keep, values, 2).astype(np.float64))
    with pytest.raises(TensorError, match="expected memory apart from input X"):
        optimized(given, out=[out[0], given])
    for got, want in zip(optimized(values), (keep, ~keep), strict=True):  # host tensors are copied
        close(got, np.where(want, values, 2 if want is keep else 3).astype(np.float64))


@pytest.mark.parametrize("owner", ["numpy", "torch"])
def test_masks_without_a_gpu(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    program, given, want = masked()
    optimized = Optimized(program, lambda arch: pytest.fail(arch))
    if owner == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(x) for x in given]
    with pytest.warns(NoDeviceWarning):
        got = optimized(*given)
    close(np.asarray(got), want)
    with pytest.raises(DTypeError, match="input M: expected elements of bool, got float16"):
        optimized(given[1], given[1])


def test_it_runs_without_solvers(tmp_path: Path, split: tuple[KernelGraph, BuiltKernels]) -> None:
    """Loading and calling what is saved imports neither solvers nor anything that makes kernels."""
    _, built = split
    save_built(built, tmp_path / "kernels")
    script = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"z3", "cvc5", "galois", "sympy", "numba", "typer", "rich", "platformdirs"}}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
from pathlib import Path
import numpy as np
from mirage_formal.gpu import main
from mirage_formal.codegen.executable import load_executable
from mirage_formal.device.launch import Optimized
from mirage_formal.codegen.numerics.result_comparison import Inputs, check, draw_all
import warnings
warnings.simplefilter("ignore")
executable = load_executable(Path({str(tmp_path / "kernels")!r}))
optimized = Optimized.of(executable)
arrays = draw_all(executable.program, 0, 0.3)
out = optimized(*(x.astype(np.float16) for x in arrays))
run = lambda given: [optimized(*(x.astype(np.float16) for x in given)).astype(np.float64)]
found = check(executable.program, executable.graph, "", run, device="cpu", inputs=Inputs(scales=(0.3,)))
assert found.answer == "within"
assert main(["info"]) == 0
print(*sorted(name for name in sys.modules if name.startswith("mirage_formal.")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split("\n")[-2].split())
    for package in ("search", "optimize", "pipeline", "smt", "check"):
        assert not any(name.startswith(f"mirage_formal.{package}") for name in loaded), package

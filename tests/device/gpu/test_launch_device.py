"""Calls on a real GPU; the kernels are those of tests/kit/kernels/device_kernels.py, in MIRAGE_GPU_KERNELS."""

from __future__ import annotations

import os
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.executable import KernelLaunch, load_executable, without_dependent_launches
from mirage_formal.codegen.numerics.result_comparison import Inputs, check, draw_all
from mirage_formal.device.cupy_runner import DeviceRuns
from mirage_formal.device.driver.programmatic_launch import launcher
from mirage_formal.device.launch import Optimized
from mirage_formal.device.measure import TorchRecorder, measure
from mirage_formal.device.runtime import device_count
from mirage_formal.device.tensors import TensorError
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import DTypeError, ShapeError

KERNELS = Path(os.environ.get("MIRAGE_GPU_KERNELS", "runs/gpu/fixtures"))
NAMES = ("predefined", "predefined_bfloat16", "split", "chain", "lora", "ntrans")
#: Those in which a generated kernel follows another one.
DEPENDENT = ("predefined", "predefined_bfloat16", "split", "chain")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        find_spec("cupy") is None or find_spec("torch") is None or not device_count() or not KERNELS.is_dir(),
        reason="needs a GPU, CuPy, torch, and kernels made by tests/kit/kernels/device_kernels.py",
    ),
]


def modules() -> tuple[Any, Any]:
    return import_module("cupy"), import_module("torch")


def tensors(name: str, seed: int = 0, scale: float = 0.5) -> tuple[Optimized, list[Any], list[np.ndarray]]:
    """The executable, torch inputs with the declared strides, and the exact outputs."""
    _, torch = modules()
    executable = load_executable(KERNELS / name)
    arrays = draw_all(executable.program, seed, scale)
    made = []
    for item, array in zip(executable.program.inputs, arrays, strict=True):
        dtype = getattr(torch, item.tensor.dtype.value)
        tensor = torch.empty_strided(item.tensor.shape, item.strides, dtype=dtype, device="cuda")
        made.append(tensor.copy_(torch.from_numpy(array)))
    return Optimized.of(executable), made, list(float64_reference.run(executable.program, arrays))


def close(got: Any, want: np.ndarray, limit: float = 2e-3) -> None:
    got = np.asarray(got, dtype=np.float64)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= limit * np.linalg.norm(want)


def many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


@pytest.mark.parametrize("name", NAMES)
def test_torch(name: str) -> None:
    optimized, given, want = tensors(name)
    limit = 2e-2 if "bfloat16" in name else 2e-3
    got = many(optimized(*given))
    assert all(x.is_cuda and x.dtype == given[0].dtype for x in got)
    for x, y in zip(got, want, strict=True):
        close(x.double().cpu().numpy(), y, limit)
    out = [x.clone().fill_(float("nan")) for x in got]
    again = optimized(given, out=out)
    assert all(x is y for x, y in zip(again, out, strict=True))
    assert all((x == y).all() for x, y in zip(got, out, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_numerics(name: str) -> None:
    executable = load_executable(KERNELS / name)
    runs = DeviceRuns(executable)
    # Without a running maximum, partial sums of exponentials leave float16 at larger scales.
    scales = (0.1,) if name == "split" else (0.1, 1.0, 8.0)
    record = check(
        executable.program, executable.graph, "", runs.run, device="gpu", inputs=Inputs(0, scales, runs.cupy)
    )
    assert record.answer == "within", record


@pytest.mark.parametrize("name", ["lora", "split"])
def test_cupy_and_numpy_agree_with_torch(name: str) -> None:
    cupy, _ = modules()
    optimized, given, _ = tensors(name)
    want = many(optimized(*given))
    from_cupy = many(optimized(*(cupy.asarray(x) for x in given)))
    assert all(isinstance(x, cupy.ndarray) for x in from_cupy)
    from_numpy = many(optimized(*(x.cpu().numpy() for x in given)))
    from_cpu = many(optimized(*(x.cpu() for x in given)))
    for x, y, z, t in zip(want, from_cupy, from_numpy, from_cpu, strict=True):
        assert isinstance(z, np.ndarray)
        assert (x.cpu().numpy() == y.get()).all()
        assert (x.cpu().numpy() == z).all()
        assert (x.cpu() == t).all()


@pytest.mark.parametrize("name", NAMES)
def test_capture_in_torch(name: str) -> None:
    """A captured call sees what its inputs hold at each replay."""
    _, torch = modules()
    optimized, given, _ = tensors(name)
    optimized.prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = many(optimized(*given))
    for seed in (1, 2):
        _, other, want = tensors(name, seed)
        for x, y in zip(given, other, strict=True):
            x.copy_(y)
        for x in captured:
            x.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for x, y in zip(captured, want, strict=True):
            close(x.double().cpu().numpy(), y, 2e-2 if "bfloat16" in name else 2e-3)


def test_capture_in_cupy() -> None:
    cupy, _ = modules()
    optimized, given, want = tensors("split")
    arrays = [cupy.asarray(x) for x in given]
    out = cupy.empty(want[0].shape, dtype=cupy.float16)
    optimized(*arrays, out=out)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        optimized(*arrays, out=out)
        graph = stream.end_capture()
    out.fill(float("nan"))
    cupy.cuda.Device().synchronize()
    graph.launch(stream=stream)
    stream.synchronize()
    close(out.get(), want[0])


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_launches_give_the_same_bits(name: str) -> None:
    """As launches in order do: replays of a graph, calls on a stream, and no call overlaps the next one.

    Inputs are changed between calls by kernels of others, in the order of the stream, and outputs are NaN before each:
    a kernel that ran ahead of what it depends on would read an old input, an old intermediate tensor, or see its own
    output overwritten.
    """
    cupy, _ = modules()
    executable = load_executable(KERNELS / name)
    ways = [DeviceRuns(executable), DeviceRuns(without_dependent_launches(executable))]
    assert any(isinstance(x, KernelLaunch) and x.dependent for x in executable.launches)
    if launcher(cupy.cuda.runtime, str(cupy.cuda.Device().compute_capability)) is None:
        pytest.skip("driver or GPU have no dependent launches")
    sets = [
        [ways[0].draw(item, 10 * seed + i, 0.5) for i, item in enumerate(executable.graph.inputs)] for seed in range(4)
    ]
    want: list[list[Any]] = []
    for given in sets:
        made = ways[1].outputs()
        ways[1].launch(given, made)
        cupy.cuda.Device().synchronize()
        want.append([x.get() for x in made])
    assert any((x != y).any() for x, y in zip(want[0], want[1], strict=True))
    for runs in ways:
        inputs, outputs = [x.copy() for x in sets[0]], [runs.outputs() for _ in sets]

        def calls(runs: DeviceRuns = runs, inputs: list[Any] = inputs, outputs: list[list[Any]] = outputs) -> None:
            for given, made in zip(sets, outputs, strict=True):
                for x, y in zip(inputs, given, strict=True):
                    cupy.bitwise_or(y, y, out=x)  # a kernel, and an ordinary launch
                for x in made:
                    x.fill(cupy.iinfo(x.dtype).max)
                runs.launch(inputs, made)

        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            calls()
            stream.synchronize()
            stream.begin_capture()
            calls()
            graph = stream.end_capture()
        for replayed in (False, True) * 25:
            if replayed:
                graph.launch(stream=stream)
            else:
                with stream:
                    calls()
            stream.synchronize()
            for made, right in zip(outputs, want, strict=True):
                assert all((x.get() == y).all() for x, y in zip(made, right, strict=True))


def test_the_current_stream_is_used() -> None:
    """The call waits for what its stream did before, and for nothing else."""
    _, torch = modules()
    optimized, given, want = tensors("split")
    optimized(*given)
    torch.cuda.synchronize()
    good = [x.clone() for x in given]
    for x in given:
        x.zero_()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        for x, y in zip(given, good, strict=True):
            x.copy_(y)
        got = optimized(*given)
        assert not side.query(), "the call waited"
    side.synchronize()
    close(got.double().cpu().numpy(), want[0])


def test_streams_do_not_share_the_workspace_at_once() -> None:
    """Calls on many streams, whose inputs differ, each get their own results."""
    _, torch = modules()
    optimized, _, _ = tensors("split")
    sets = [tensors("split", seed)[1:] for seed in range(4)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sets]
    results = []
    for _ in range(20):
        for stream, (given, want) in zip(streams, sets, strict=True):
            with torch.cuda.stream(stream):
                results.append((optimized(*given), want))
    torch.cuda.synchronize()
    for got, want in results:
        close(got.double().cpu().numpy(), want[0])


def test_another_thread() -> None:
    optimized, given, want = tensors("lora")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(optimized(*given)))
    thread.start()
    thread.join()
    close(found[0].double().cpu().numpy(), want[0])


def test_mistakes() -> None:
    _, torch = modules()
    optimized, given, _ = tensors("lora")
    x = given[0]
    with pytest.raises(ShapeError, match="input X"):
        optimized(x[:8], *given[1:])
    with pytest.raises(DTypeError, match="float16, got float32"):
        optimized(x.float(), *given[1:])
    with pytest.raises(TensorError, match="strides"):
        optimized(x.t().contiguous().t(), *given[1:])
    odd = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape)
    with pytest.raises(TensorError, match="multiple of 16"):
        optimized(odd, *given[1:])
    with pytest.raises(TensorError, match="GPU 0, got one on the CPU"):
        optimized(x, given[1].cpu(), *given[2:])
    learned = x.clone().requires_grad_()
    with pytest.raises(TensorError, match="requires no gradient"):
        optimized(learned, *given[1:])
    with torch.no_grad():
        assert torch.equal(many(optimized(learned, *given[1:]))[0], many(optimized(x, *given[1:]))[0])
    big = torch.empty(16 * 4096 + 4096, dtype=x.dtype, device="cuda")
    with pytest.raises(TensorError, match="overlapping"):
        optimized(big[: x.numel()].view(x.shape), *given[1:], out=big[: 16 * 4096].view(16, 4096))


def test_measure_by_cupy_and_by_torch_agree() -> None:
    optimized, given, _ = tensors("lora")
    out = many(optimized(*given))
    mine = DeviceRuns(load_executable(KERNELS / "lora")).measure()
    size = sum(x.nbytes for x in given)
    other = measure(
        lambda x: optimized(*x, out=out), lambda seed: tensors("lora", seed)[1], size, TorchRecorder(), outputs=out
    )
    print(f"lora by CuPy {mine.us:.2f} us, by torch {other.us:.2f} us")
    assert 0.7 < mine.us / other.us < 1.4

"""Triton files of kernels on a real GPU, as tuning runs them; the kernels are those of test_launch_device.py."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.autotune.timing_subprocess import describe_machine
from mirage_formal.autotune.triton.launch_variants import TritonText, triton_texts
from mirage_formal.autotune.triton.precompile import Task, compile_file
from mirage_formal.codegen.executable import load_executable
from mirage_formal.codegen.numerics.result_comparison import computed_answer, draw_all
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.device.runtime import arch_of, current_device, device_count
from mirage_formal.kernel_build.triton.triton_callable import TritonOptimized
from tests.device.gpu.test_launch_device import KERNELS, NAMES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not all(map(find_spec, ("cupy", "torch", "triton"))) or not device_count() or not KERNELS.is_dir(),
        reason="needs a GPU, CuPy, torch, Triton, and kernels made by tests/kit/kernels/device_kernels.py",
    ),
]
OPTIONS = (LaunchOptions(), LaunchOptions(2.0, 3))


def written(name: str, place: Path) -> list[tuple[TritonText, Path]]:
    found = triton_texts(KERNELS / name, OPTIONS)
    files = [place / f"{one.digest}.py" for one in found]
    for one, file in zip(found, files, strict=True):
        file.write_text(one.text, encoding="utf-8")
    return list(zip(found, files, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_files_are_right_and_have_times(name: str, tmp_path: Path) -> None:
    from mirage_formal.autotune.triton.triton_runner import TritonFileRunner

    assert describe_machine().triton
    files = TritonFileRunner()
    for one, file in written(name, tmp_path):
        record = files.compared(one.directory, file)
        assert computed_answer(record) == "within", (str(one.options), record)
        assert files.timed(one.directory, file, 4).us > 0
        us, cuda_us = files.in_turns(one.directory, file, one.directory, 4)
        assert min(us, cuda_us) > 0
        print(f"{name}, {one.options}: {us:.2f} us, CUDA {cuda_us:.2f} us")


@pytest.mark.parametrize("name", NAMES)
def test_a_launch_finds_what_was_compiled_ahead(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of a file is compiled a second time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    torch: Any = import_module("torch")
    driver: Any = import_module("triton").runtime.driver
    for one, _ in written(name, tmp_path):
        try:
            assert compile_file(Task(one.text, arch_of(current_device()))) == ""
        finally:
            driver.reset_active()
        before = {path.parent for path in (tmp_path / "cache").rglob("*.cubin")}
        optimized, given = called(one, torch)
        optimized(*given)
        torch.cuda.synchronize()
        assert {path.parent for path in (tmp_path / "cache").rglob("*.cubin")} == before


def called(one: TritonText, torch: Any) -> tuple[TritonOptimized, list[Any]]:
    program = load_executable(one.directory).program
    given = []
    for item, array in zip(program.inputs, draw_all(program, 0, 0.5), strict=True):
        dtype = getattr(torch, item.tensor.dtype.value)
        tensor = torch.empty_strided(item.tensor.shape, item.strides, dtype=dtype, device="cuda")
        given.append(tensor.copy_(torch.from_numpy(array)))
    return TritonOptimized(program, lambda: one.text), given


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_captured_in_a_graph(name: str, tmp_path: Path) -> None:
    torch: Any = import_module("torch")
    (one, _), *_ = written(name, tmp_path)
    optimized, given = called(one, torch)
    wanted = optimized(given)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimized(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = optimized(given)
    for value in found:
        value.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(value, other) for value, other in zip(found, wanted, strict=True))

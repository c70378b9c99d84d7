"""From a search to a result that runs in Triton, with processes as on a GPU; what is not there is one, and its times.

Workers compile Triton files for a real architecture, their results are computed by Triton's interpreter and compared
with float64 (``tests.kit.kernels.triton_gpu_process``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.autotune import timing
from mirage_formal.autotune.timing import TimingProcess
from mirage_formal.check.__main__ import main as check_main
from mirage_formal.device import runtime
from mirage_formal.kernel_build.build import KernelWarning
from tests.kit.paths import REPOSITORY
from tests.kit.processes import Command

pytest.importorskip("torch")
pytest.importorskip("triton")


class InterpretedGpu(TimingProcess):
    """The GPU that is a process with Triton's interpreter."""

    def __init__(self) -> None:
        super().__init__((sys.executable, "-m", "tests.kit.kernels.triton_gpu_process"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(timing, "TimingProcess", InterpretedGpu)
    monkeypatch.setattr(runtime, "device_count", lambda: 1)
    monkeypatch.setenv("MIRAGE_FORMAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_auto_is_triton_where_that_is_faster_and_right(
    gpu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = mf.new_kernel_graph()
    x, w = graph.new_input(dims=(2, 64), name="X"), graph.new_input(dims=(64, 64), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    asked: dict[str, Any] = {"config": "norm", "workers": 1, "keep": 2, "cache": False, "max_kernel_ops": 1}
    with pytest.warns(KernelWarning, match="back end auto: Triton: .* takes 4.00 us, the fastest CUDA kernels 9.00"):
        results = mf.superoptimize(graph, out=gpu / "run", measure=1, backend="auto", accept_kernels="tested", **asked)
    best = results[0]
    assert best.backend == "triton"
    assert any((gpu / "compiled").rglob("*.cubin")), "it was compiled for the GPU's architecture before it was run"
    directory = gpu / "run" / "kernels" / best.directory.name
    record = json.loads((directory / "measure.json").read_text())["triton"]
    assert (record["backend"], record["us"], record["cuda_us"]) == ("triton", 4.0, 9.0)
    assert {scale["answer"] for scale in record["scales"]} == {"within"}
    assert check_main([str(gpu / "run"), "--jobs", "1"]) == 0
    capsys.readouterr()

    mirage = Command(monkeypatch, capsys)
    line = ("tune", "run", "--kernels", "4", "--finalists", "1", "--workers", "1", "--backend", "auto")
    ended = mirage(*line, "--accept", "tested", "--progress", "none")
    assert ended.code == 0, ended
    assert f"{best.directory.name} in Triton, warps x" in ended.out
    assert "tested, not proved safe" in " ".join(ended.out.split())
    file = gpu / "run-triton" / f"{best.directory.name}.py"
    assert f"written to {file}" in " ".join(ended.out.split())
    assert file.read_text() == best.triton_source()
    own = subprocess.run(
        [sys.executable, str(file)], env={"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert (own.returncode, own.stdout[:5]) == (0, "right"), own

"""benchmarks/gpu_sanitize.py with a compute-sanitizer that only says what it was asked to watch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mirage_formal.codegen.target import load_target
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.save import save_built
from tests.kit.graphs import workloads as w
from tests.kit.kernels.device_kernels import predefined
from tests.kit.paths import REPOSITORY


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_sanitize", REPOSITORY / "benchmarks" / "gpu_sanitize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$@" > "$SEEN"\necho "$SAID"\necho "001: finite"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("SAID", "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
    return module


def test_racecheck_watches_generated_kernels_without_cublas(script: ModuleType, tmp_path: Path) -> None:
    kernels = tmp_path / "run-b1" / "kernels" / "001-a"
    save_built(build(predefined(), predefined(), load_target("h200")), kernels)
    row = script.sanitize(tmp_path / "run-b1", kernels, "racecheck", 60.0)
    command = (tmp_path / "seen").read_text()
    assert (row["outcome"], row["products"]) == ("clean", "host")
    assert row["kernels"] == ["op0_rms_norm", "op2_softmax", "op4_silu", "op5_add"]
    assert all(f"--kernel-name kernel_name={name}" in command for name in row["kernels"])
    assert command.strip().endswith("--without-library")
    # memcheck follows cuBLAS.
    row = script.sanitize(tmp_path / "run-b1", kernels, "memcheck", 60.0)
    assert row["products"] == "cuBLAS"
    assert "--without-library" not in (tmp_path / "seen").read_text()


def test_a_hazard_is_found(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = tmp_path / "run-b1" / "kernels" / "001-a"
    save_built(build(w.ntrans_fused(n=512), w.ntrans(n=512), load_target("h200")), kernels)
    row = script.sanitize(tmp_path / "run-b1", kernels, "racecheck", 60.0)
    assert (row["outcome"], row["products"]) == ("clean", "none")
    monkeypatch.setenv("SAID", "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)")
    assert script.sanitize(tmp_path / "run-b1", kernels, "racecheck", 60.0)["outcome"] == "found"

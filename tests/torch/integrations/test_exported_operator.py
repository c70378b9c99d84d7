"""torch_operator.py of an exported folder: what it refuses, its fake kernel, and its values on the emulator."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_formal.export.folder import export_candidate
from tests.export.emulated_gpu import EmulatedGpu, as_cupy
from tests.kit.runs import small_runs

pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("operator")
    small_runs.make(root / "attention", keep=2, kernels=1)
    export_candidate(root / "attention", "torch", root / "out")
    return root / "out"


@pytest.fixture(scope="module")
def module(folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("torch_operator")
    finally:
        sys.path.remove(str(folder))


def inputs(**place: Any) -> list[torch.Tensor]:
    return [torch.ones(shape, dtype=torch.float16, **place) for shape in ((2, 8, 4), (2, 4, 48), (2, 48, 4))]


def changed(number: int, value: torch.Tensor) -> list[torch.Tensor]:
    given = inputs()
    given[number] = value
    return given


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (inputs()[:2], TypeError, r"expected 3 tensors \(Q, K, V\), got 2"),
        (changed(0, torch.ones(2, 8, 4)), TypeError, r"Q: expected torch\.float16, got torch\.float32"),
        (changed(0, inputs()[1]), ValueError, r"Q: expected shape \[2, 8, 4\], got \[2, 4, 48\]"),
        (inputs(), ValueError, r"Q: expected a tensor on a CUDA device, got cpu"),
        (
            changed(0, torch.ones(2, 4, 8, dtype=torch.float16).transpose(1, 2)),
            ValueError,
            r"Q: expected strides \[32, 4, 1\], got \[32, 1, 8\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    given: list[torch.Tensor], error: type[Exception], said: str, module: Any
) -> None:
    with pytest.raises(error, match=said):
        module.run(*given)


def test_the_fake_kernel_has_the_shapes_of_the_outputs(module: Any) -> None:
    (found,) = module.run(*inputs(device="meta"))
    assert (found.shape, found.dtype, found.device.type) == ((2, 8, 4), torch.float16, "meta")
    assert torch.ops.mirage_export.attention is not None


def test_the_operator_launches_the_kernels(module: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in as_cupy(EmulatedGpu(folder)).items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.delitem(sys.modules, "load_cupy", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(module, "check", lambda given: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    given = [torch.from_numpy(np.load(folder / "inputs" / f"{i}.npy")) for i in range(3)]
    (found,) = module.run(*given)
    value, tolerance = (np.load(folder / "expected" / f"0{end}.npy") for end in ("", "-tolerance"))
    assert (np.abs(found.numpy().reshape(-1).astype(np.float64) - value) <= tolerance).all()

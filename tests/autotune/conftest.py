"""A small run with kernels, for whoever times Triton files beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.runs import small_runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("triton") / "run"
    small_runs.make(root, kernels=2)
    return root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"

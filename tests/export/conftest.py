"""Exported folders: one kernel, two with a workspace, a product by cuBLAS, bfloat16 with a mask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from mirage_formal.export.folder import export_candidate
from mirage_formal.frontend.kernel_builder import KernelBuilder
from mirage_formal.graph.types import DType
from mirage_formal.kernel_build.build import build_run
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.runs.small_runs import kernel_runs


def _masked(root: Path) -> None:
    graph = KernelBuilder()
    x = graph.new_input((16, 64), dtype=DType.BFLOAT16, name="X")
    w = graph.new_input((64, 32), dtype=DType.BFLOAT16, name="W")
    mask = graph.band((16, 32), upper=0, name="M")
    graph.mark_output(graph.where(mask, graph.exp(graph.matmul(x, w)), 0.0))
    run_search(graph.freeze(), Settings(config="tiny", keep=1, workers=1), root, name="masked")
    assert build_run(root, 1)


@pytest.fixture(scope="session")
def built_runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("built")
    found = kernel_runs(root)
    _masked(root / "masked")
    return {**found, "masked": root / "masked"}


@pytest.fixture(scope="session")
def exported(built_runs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders by name; tests that change one copy it."""
    root = tmp_path_factory.mktemp("exported")
    chosen = {"one": ("attention", 1), "two": ("attention", 2), "product": ("rms_norm", 2), "masked": ("masked", 1)}
    for name, (run, rank) in chosen.items():
        export_candidate(built_runs[run], "torch", root / name, rank)
    return {name: root / name for name in chosen}

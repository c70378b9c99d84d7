"""Runs whose candidates have kernels for two architectures, made once for a file of tests."""

from __future__ import annotations

from pathlib import Path

from mirage_formal.run.driver import run
from mirage_formal.run.kernel_build.build import build_run
from mirage_formal.run.settings import Settings
from tests.kit.runs.known_engine import PROGRAMS


def kernel_runs(root: Path) -> dict[str, Path]:
    """With a running maximum, and with a predefined operator beside a product by cuBLAS."""
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=9, workers=1)
    for name in ("attention", "rms_norm"):
        run(PROGRAMS[name]()[0], settings, root / name, name=name)
        assert [outcome for _, outcome in build_run(root / name, count=2)] == ["built", "built"]
    return {path.name: path for path in root.iterdir()}


def first(root: Path) -> Path:
    """The first candidate's kernels."""
    return sorted((root / "kernels").iterdir())[0]

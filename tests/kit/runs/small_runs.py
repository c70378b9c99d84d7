"""Small runs: one with every kind of file, and those whose candidates have kernels for two architectures.

Files are proofs with digit lemmas, a running maximum, kernels, records of a device.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mirage_formal.codegen.executable import load_executable, moved_bytes
from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.device.measure import Measurement
from mirage_formal.device.sealed_records import write_measurement, write_numerics
from mirage_formal.kernel_build.build import build_run
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.semantics import float64_reference
from tests.kit.runs.known_engine import PROGRAMS


def make(root: Path, name: str = "attention", kernels: int = 1, keep: int = 9) -> None:
    """Write a run, with kernels if some are asked for; searched and built once in this process, then copied."""
    shutil.copytree(Path(_made(name, kernels, keep).name) / "run", root, dirs_exist_ok=True)


@cache
def _made(name: str, kernels: int, keep: int) -> TemporaryDirectory[str]:
    """A directory that goes when this process ends."""
    place = TemporaryDirectory(prefix="small-run-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    root = Path(place.name) / "run"
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=keep, workers=1)
    run_search(PROGRAMS[name]()[0], settings, root, name=name)
    if kernels:
        assert build_run(root, kernels)
        for directory in sorted((root / "kernels").iterdir()):
            on_device(directory)
    return place


def on_device(directory: Path) -> None:
    """Write what a right kernel's run on a GPU writes."""
    executable = load_executable(directory)

    def right(arrays: Any) -> list[Any]:
        found = float64_reference.run(executable.program, arrays)
        return [x.astype(np.float16).astype(np.float64) for x in found]

    record = result_comparison.check(executable.program, executable.graph, executable.digest, right, device="Test")
    write_numerics(directory, record)
    measured = Measurement(3.0, 2.5, 4.0, 0.1, 15, 64, 64)
    write_measurement(directory, measured, "Test", moved_bytes(executable.program))


def kernel_runs(root: Path) -> dict[str, Path]:
    """With a running maximum, and with a predefined operator beside a product by cuBLAS."""
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=9, workers=1)
    for name in ("attention", "rms_norm"):
        run_search(PROGRAMS[name]()[0], settings, root / name, name=name)
        assert [outcome for _, outcome in build_run(root / name, count=2)] == ["built", "built"]
    return {path.name: path for path in root.iterdir()}


def first(root: Path) -> Path:
    """The first candidate's kernels."""
    return sorted((root / "kernels").iterdir())[0]

"""Tests of exported folders on a GPU, in processes that cannot import mirage_formal.

    python3 benchmarks/export_gpu.py FOLDER... [--ways cupy library torch]

FOLDER is what `mirage-formal export` has written, perhaps elsewhere. Each is copied, and its test.py is run in every
way that this machine can: with CuPy and NVRTC; with the library that CMake and nvcc build, if they are here; with
PyTorch, if it is here. Then one exact value is changed, and the test has to fail. There is one line for each folder and
way, and the exit code is 0 only if all are right. This file needs Python and NumPy, its processes CuPy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

WAYS = ("cupy", "library", "torch")
LIMIT_S = 300
_BLOCK = "raise ImportError('this process may not import mirage_formal')\n"


def ways_here() -> tuple[str, ...]:
    """The ways that this machine has what they need for."""
    toolkit = shutil.which("cmake") is not None and shutil.which("nvcc") is not None
    there = {"cupy": find_spec("cupy") is not None, "library": toolkit, "torch": find_spec("torch") is not None}
    return tuple(way for way in WAYS if there[way])


def build_library(folder: Path) -> str:
    """Build the shared library of a folder for this GPU; what went wrong, or nothing."""
    commands = (["cmake", "-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Release"], ["cmake", "--build", "build"])
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            return (done.stdout + done.stderr)[-600:]
    return ""


def run_test(folder: Path, way: str, blocked: Path) -> tuple[int, str]:
    """Run a folder's test where mirage_formal cannot be imported; the exit code, and the last of what it said."""
    path = os.pathsep.join([str(blocked), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(folder / "test.py"), way]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"nothing within {LIMIT_S} s"
    return done.returncode, "; ".join((done.stdout + done.stderr).strip().splitlines()[-2:])


def test_folder(folder: Path, ways: Sequence[str], blocked: Path) -> bool:
    """Test a copy of a folder in every way, print a line for each, and return whether all are right."""
    right = True
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copytree(folder, Path(place) / folder.name))
        for way in ways:
            start = time.monotonic()
            fault = build_library(copy) if way == "library" else ""
            code, said = (1, f"build failed: {fault}") if fault else run_test(copy, way, blocked)
            print(f"{folder.name}: exit code {code} after {time.monotonic() - start:.1f} s: {said}", flush=True)
            right = right and code == 0
        value = np.load(copy / "expected" / "0.npy")
        known = ~np.isnan(np.load(copy / "expected" / "0-tolerance.npy"))
        value[int(np.argmax(np.where(known, np.abs(value), 0)))] *= 1.5
        np.save(copy / "expected" / "0.npy", value)
        code, said = run_test(copy, ways[0], blocked)
        print(f"{folder.name}: with one value changed, exit code {code}: {said}", flush=True)
    return right and code == 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Test all folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=ways_here(), help="default: those possible here")
    given = parser.parse_args(arguments)
    if not given.ways:
        parser.error("neither CuPy nor PyTorch is here")
    print(f"ways: {', '.join(given.ways)}; Python {sys.version.split()[0]}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "mirage_formal.py").write_text(_BLOCK)
        found = [test_folder(folder.resolve(), given.ways, Path(place)) for folder in given.folders]
    return 0 if all(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())

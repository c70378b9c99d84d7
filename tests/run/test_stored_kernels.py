"""Kernels of a directory are launched only where they are what code generation makes of their candidate."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_formal import gpu, records
from mirage_formal.cli.graphs import arrays
from mirage_formal.cli.graphs.subject import read_graph
from mirage_formal.codegen.executable import Executable
from mirage_formal.device.launch import Optimized
from mirage_formal.run.result_cache.stored_kernel_check import stored_kernels
from mirage_formal.support.errors import FormatError
from tests.kit.paths import REPOSITORY
from tests.kit.runs import tampering
from tests.kit.runs.small_runs import first, kernel_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return kernel_runs(tmp_path_factory.mktemp("stored"))


@pytest.fixture
def attention(runs: dict[str, Path], tmp_path: Path) -> Path:
    return tampering.copy(runs["attention"], tmp_path / "attention")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Executable]:
    """What would be loaded on the GPU that the commands see."""
    found: list[Executable] = []

    def taken(executable: Executable, **how: Any) -> Any:
        found.append(executable)
        raise RuntimeError("loaded")

    for module in (gpu, arrays):
        monkeypatch.setattr(module, "device_count", lambda: 1)
        monkeypatch.setattr(module, "current_device", lambda: 0)
        monkeypatch.setattr(module, "arch_of", lambda device: "sm_90a")
    monkeypatch.setitem(sys.modules, "mirage_formal.device.cupy_runner", SimpleNamespace(DeviceRuns=taken))
    monkeypatch.setattr(Optimized, "of", staticmethod(taken))
    return found


def other_function(directory: Path) -> None:
    """relu in the place of exp, and the digest of that in launch.json."""
    source = next(path for path in sorted(directory.glob("*.cu")) if "mf::exp(" in path.read_text())
    before = source.read_bytes()
    source.write_bytes(before.replace(b"mf::exp(", b"mf::relu("))
    old, new = records.sha256(before), records.sha256(source.read_bytes())
    launch = directory / "launch.json"
    launch.write_text(launch.read_text().replace(old, new))


def without_machine_code(directory: Path) -> None:
    """The same with no machine code, so that the source is what is compiled."""
    other_function(directory)

    def drop(record: dict[str, Any]) -> None:
        for launch in record["launches"]:
            if "cubins" in launch:
                launch["cubins"] = {}

    tampering.edit(directory / "launch.json", drop)


def signed(directory: Path) -> None:
    """The manifest is written anew as well."""
    other_function(directory)
    tampering.sign_kernels(directory)


def other_machine_code(directory: Path) -> None:
    """A byte of the machine code, in all digests."""
    path = next(iter(sorted(directory.glob("*-sm_90a.cubin"))))
    data = bytearray(path.read_bytes())
    old, place = records.sha256(bytes(data)), data.rfind(b"\0" * 16)
    data[place + 3] ^= 1
    path.write_bytes(bytes(data))
    launch = directory / "launch.json"
    launch.write_text(launch.read_text().replace(old, records.sha256(bytes(data))))
    tampering.sign_kernels(directory)


def other_candidate(directory: Path) -> None:
    """Kernels of another candidate of the same run."""
    other = sorted(directory.parent.iterdir())[1]
    shutil.rmtree(directory)
    shutil.copytree(other, directory)


def other_proof(directory: Path) -> None:
    """A candidate whose proof is not one."""
    root = directory.parent.parent / "candidates" / directory.name
    tampering.edit(root / "proof" / "equivalence.json", lambda record: record["steps"].pop())
    tampering.sign_candidate(root)


ATTACKS = [other_function, without_machine_code, signed, other_machine_code, other_candidate, other_proof]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_changed_is_not_launched(
    attention: Path, launched: list[Executable], attack: Callable[[Path], None]
) -> None:
    directory = first(attention)
    attack(directory)
    with pytest.raises(FormatError, match="expected"):
        stored_kernels(directory)
    (report,) = gpu.run_all(attention, 1, 0, measure=False, numerics=False, library=True)
    assert not report["ok"]
    assert report["error"].startswith("FormatError")
    one = read_graph(attention, 1)
    with pytest.raises(FormatError, match="expected"):
        arrays.compute_outputs(one, [], "gpu")
    assert launched == []


@pytest.mark.parametrize("name", ["attention", "rms_norm"])
def test_what_was_built_is_launched(runs: dict[str, Path], name: str, launched: list[Executable]) -> None:
    for directory in sorted((runs[name] / "kernels").iterdir()):
        found = stored_kernels(directory, "sm_90a")
        assert found.bound
        assert found.remarks == ()
        report = gpu.run_one(directory, measure=False, numerics=False)
        assert report["remarks"] == []
        assert report["error"] == "RuntimeError: loaded"
    with pytest.raises(RuntimeError, match="loaded"):
        arrays.compute_outputs(read_graph(runs[name], 1), [], "auto")
    assert len(launched) == 3


def test_kernels_by_themselves_are_said_to_have_no_candidate(runs: dict[str, Path], tmp_path: Path) -> None:
    alone = tampering.copy(first(runs["attention"]), tmp_path / "alone")
    found = stored_kernels(alone)
    assert not found.bound
    assert found.remarks == ("no candidate beside them whose proof could be replayed",)
    unread = replace(found, about=replace(found.about, read_back=0))
    assert any(remark.startswith("CUDA C++ of") for remark in unread.remarks)
    signed(alone)
    with pytest.raises(FormatError, match="expected"):
        stored_kernels(alone)


def test_it_needs_no_solver(runs: dict[str, Path], tmp_path: Path) -> None:
    """What solvers said when the kernels were made is taken as recorded, and said to be."""
    good, bad = (tampering.copy(first(runs["attention"]), tmp_path / name) for name in ("good", "bad"))
    signed(bad)
    script = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"z3", "cvc5", "galois", "sympy", "numba", "typer", "rich", "platformdirs"}}:
            raise ModuleNotFoundError("blocked: " + name, name=name)
sys.meta_path.insert(0, Block())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("z3", "cvc5") else real(name, package)
from pathlib import Path
from mirage_formal.support.errors import FormatError
from mirage_formal.run.result_cache.stored_kernel_check import stored_kernels
print(*stored_kernels(Path({str(good)!r})).remarks, sep="\\n")
try:
    stored_kernels(Path({str(bad)!r}))
except FormatError as error:
    print("refused:", error.what)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"MIRAGE_FORMAL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    *remarks, refused = done.stdout.splitlines()
    assert refused.startswith("refused: CUDA C++ of the Program")
    assert remarks[-1] == "no candidate beside them whose proof could be replayed"
